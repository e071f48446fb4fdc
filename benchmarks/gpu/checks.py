"""What a check comes to, and how a part tells it: a line of JSON in a file, at once, so that a part which hangs or dies
takes nothing along that it had found.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Outcome(StrEnum):
    """Of a check. `differs` and `failed` make the whole fail; a missed target does not: it is a finding."""

    equal = "equal"
    differs = "DIFFERS"
    failed = "FAILED"
    late = "out of time"
    skipped = "skipped"
    told = "told"
    met = "met"
    missed = "missed"


WRONG = (Outcome.differs, Outcome.failed)


@dataclass(frozen=True)
class Check:
    """One line of the table.

    Args:
        name: of what was looked at, within its part. outcome: see above. said: for people, on a line.
        values: what was measured or found, for machines.
    """

    name: str
    outcome: Outcome
    said: str = ""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """What a part will look at: `count` things of a kind."""

    what: str
    count: int


@dataclass(frozen=True)
class Options:
    """Of all parts.

    Args:
        device: `cuda`, or `stand-in`: see tests/numerics/stand_in.py; both are `cuda:0` to PyTorch.
        quick: leave out what takes long. tiny: of everything just enough for the parts' own code to run, for tests.
        jobs: processes at a time. seconds: that the part has.
    """

    device: str = "cuda"
    quick: bool = False
    tiny: bool = False
    jobs: int = 1
    seconds: float = 60.0

    def as_text(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @property
    def on_gpu(self) -> bool:
        """Whether there is one."""
        return self.device == "cuda"


class Teller:
    """Where a part puts its checks.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, check: Check) -> None:
        """Put it there."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(check)) + "\n")

    def compare(self, name: str, found: object, expected: object, said: str = "", **values: Any) -> None:
        """Equal or not."""
        same = found == expected
        text = said if same else f"{said + ': ' if said else ''}{found}, and should be {expected}"
        self(Check(name, Outcome.equal if same else Outcome.differs, text, values))


def read(path: Path, begin: int = 0) -> Iterator[Check]:
    """The checks in a file, from the given one on; a line that is still being written is left."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True)[begin:]:
        if line.endswith("\n"):
            one = json.loads(line)
            yield Check(one["name"], Outcome(one["outcome"]), one["said"], one["values"])
