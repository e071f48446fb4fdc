"""All logs of a process come out of one place, for people on a terminal and as JSON lines elsewhere."""

from __future__ import annotations

import io
import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from easyscale import logs
from easyscale.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()  # before configure(), as in every module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_elsewhere_than_on_a_terminal_a_line_is_json_with_the_event_first() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    log.info("worker.claimed", job="digits", step=3, odd=object)
    (line,) = lines(stream)
    assert next(iter(line)) == "event"
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "worker.claimed",
        "job": "digits",
        "step": 3,
        "odd": "<class 'object'>",
        "level": "info",
    }


def test_on_a_terminal_a_line_is_for_people() -> None:
    stream = Terminal()
    logs.configure(stream=stream)
    log.info("worker.claimed", job="digits")
    assert "worker.claimed" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()
    with pytest.raises(ValueError, match="Expecting value"):
        lines(stream)


def test_the_format_can_be_chosen() -> None:
    stream, terminal = io.StringIO(), Terminal()
    logs.configure(stream=stream, json=False)
    log.info("hello")
    assert "hello" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    logs.configure(stream=terminal, json=True)
    log.info("hello")
    assert lines(terminal)[0]["event"] == "hello"


def test_other_libraries_are_heard_from_warnings_on_in_the_same_format() -> None:
    stream = io.StringIO()
    logs.configure("debug", stream)
    logging.getLogger("botocore.auth").debug("a signature")
    logging.getLogger("urllib3").warning("retry %d", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    retry, old = lines(stream)
    assert (retry["event"], retry["logger"], retry["level"]) == ("retry 2", "urllib3", "warning")
    assert old["logger"] == "py.warnings"


def test_a_level_leaves_out_what_is_below_it() -> None:
    stream = io.StringIO()
    logs.configure("warning", stream)
    log.info("no")
    log.warning("yes")
    logs.configure("error", stream)
    logging.getLogger("boto").warning("no")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_an_exception_is_one_line_of_json() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("worker.failed")
    (line,) = lines(stream)
    assert line["exception"].endswith("KeyError: 'x'")


def test_text_that_the_stream_cannot_write_is_no_error() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    logs.configure(stream=stream)
    log.info("häßlich", path="\udcff")
    stream.flush()
    assert json.loads(raw.getvalue())["event"] == "häßlich"


def test_configuring_again_does_not_double_the_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    logs.configure(stream=second)
    log.info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_bound_fields_of_the_context_are_on_every_line() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    with structlog.contextvars.bound_contextvars(job="digits"):
        log.info("step")
    assert lines(stream)[0]["job"] == "digits"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UserError, match=r"'loud'.*\n.*debug, info"):
        logs.configure("loud")
