"""Lines of trace files, and what is wrong with them."""

from __future__ import annotations

import csv
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

log = structlog.get_logger()

TOLD = 5
"""Lines that are left out and named; the others are counted."""


def read(
    path: Path, delimiter: str, parse: Callable[[int, list[str]], T], *, fields: int, header: str = "", skip: bool
) -> list[T]:
    """Read a file line by line.

    Args:
        parse: a line from its number and its fields; a ValueError says what is wrong with it.
        fields: how many each must have at least. header: what the first line must begin with, if there is one.
        skip: leave broken lines out, and say so.

    Raises:
        UserError: the file cannot be read or is of another kind, or a line is broken.
    """
    found, broken = [], 0
    with opened(path) as lines:
        reader = csv.reader(lines, delimiter=delimiter)
        if header and not delimiter.join(next(reader, [])).startswith(header):
            raise UserError(f"{path} does not begin with {header!r}: it is another kind of file")
        for row in reader:
            if not row:
                continue
            try:
                if len(row) < fields:
                    raise ValueError(f"it has {len(row)} field(s), not {fields}")
                found.append(parse(reader.line_num, row))
            except ValueError as error:
                if not skip:
                    raise UserError(
                        f"{path}, line {reader.line_num}: {error}",
                        "mend it, or leave such lines out with --skip-broken",
                    ) from error
                broken += 1
                if broken <= TOLD:
                    log.warning("trace.line_left_out", file=str(path), line=reader.line_num, why=str(error))
    if broken > TOLD:
        log.warning("trace.lines_left_out", file=str(path), lines=broken)
    return found


@contextmanager
def opened(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, whatever is in it.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            yield (line.replace("\0", "?") for line in file)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", "name a file that you may read") from error


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
