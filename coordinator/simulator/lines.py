"""Lines of trace files, and what is wrong with them."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import structlog

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

log = structlog.get_logger()


class Line:
    """A context in which a ValueError is told with the line's number, or the line is left out."""

    def __init__(self, path: Path, number: int, skip: bool) -> None:
        self.path, self.number, self._skip = path, number, skip

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, ValueError):
            return False
        if self._skip:
            log.warning("trace.line_skipped", file=str(self.path), line=self.number, why=str(error))
            return True
        raise UserError(
            f"{self.path}, line {self.number}: {error}", "mend it, or leave such lines out with --skip-broken"
        ) from error


def rows(path: Path, delimiter: str, fields: int, skip: bool, header: str = "") -> Iterator[tuple[Line, list[str]]]:
    """The lines of a file, split.

    Args:
        fields: how many each must have. header: what the first line must begin with, if there is one.

    Raises:
        UserError: the file cannot be read, or is of another kind.
    """
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.reader(file, delimiter=delimiter)
            if header and not delimiter.join(next(reader, [])).startswith(header):
                raise UserError(f"{path} does not begin with {header!r}: it is another kind of file")
            for row in reader:
                line = Line(path, reader.line_num, skip)
                with line:
                    if len(row) < fields:
                        raise ValueError(f"it has {len(row)} fields, not {fields}")
                    yield line, row
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def number(text: str, what: str, *, above: float | None = None) -> float:
    """A finite number of at least 0, or above something.

    Raises:
        ValueError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} is {text[:40]!r}, which is no number") from None
    if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
        raise ValueError(f"{what} is {text[:40]!r}; it must be {'above' if above is not None else 'at least'} 0")
    return value


def whole(text: str, what: str, *, least: int = 0) -> int:
    """A whole number.

    Raises:
        ValueError: it is none, or too small.
    """
    value = number(text, what)
    if value != int(value) or value < least:
        raise ValueError(f"{what} is {text[:40]!r}; it must be a whole number from {least}")
    return int(value)
