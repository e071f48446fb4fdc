"""Logging, set up in one place: structlog for us, and other libraries' log records through the same output.

On a terminal a line is for people, anywhere else it is one JSON object. Every line has an event name and fields.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from .errors import UserError

if TYPE_CHECKING:
    from structlog.typing import Processor

LEVELS = ("debug", "info", "warning", "error")
OURS = "easyscale"
"""The logger of all structlog records, and the name of the one handler."""


def configure(level: str = "info", stream: TextIO | None = None, json: bool | None = None) -> None:
    """Send all logs of this process to one stream. May be called again.

    Other libraries are heard from `warning` on, whatever the level: botocore's debug lines hold signatures.

    Args:
        level: one of `LEVELS`.
        stream: default: standard error.
        json: JSON lines or text for people; default: JSON unless the stream is a terminal.

    Raises:
        UserError: no such level.
    """
    if level not in LEVELS:
        raise UserError(f"log level {level!r} is unknown", f"use one of {', '.join(LEVELS)}")
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.set_name(OURS)
    handler.setFormatter(_formatter(colors=stream.isatty(), json=not stream.isatty() if json is None else json))
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == OURS]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, _number(level)))
    logging.getLogger(OURS).setLevel(_number(level))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            *_COMMON,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *_: logging.getLogger(OURS),
        cache_logger_on_first_use=False,  # module-level loggers must follow a later configure()
    )


_COMMON: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _number(level: str) -> int:
    return int(getattr(logging, level.upper()))


def _formatter(*, colors: bool, json: bool) -> logging.Formatter:
    finish: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if json:
        finish += [structlog.processors.format_exc_info, _plain, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        finish.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain))
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *_COMMON], processors=finish
    )


def _plain(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The event first, as people look for it first."""
    return {"event": str(event.pop("event", "")), **event}
