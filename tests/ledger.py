"""What the runners of a watched job have done, gradient by gradient and step by step: see `watching/watched.py`.

It is read from files that runners append to, so it knows to the millisecond what the records of a job tell once a
second, and it knows of work that nobody reported because its worker was killed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

LINE = 28
"""Bytes."""

SCRIPT = Path(__file__).parent / "watching" / "watched.py"


class Finished(NamedTuple):
    """One replica has finished a step.

    Args:
        at: seconds since the epoch. fingerprint: of the parameters after it. pid: of the runner.
    """

    at: float
    fingerprint: int
    pid: int


class Ledger:
    """The lines of all runners.

    Args:
        folder: where they lie; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """For the processes to watch."""
        return {"WATCHED": str(self.folder)}

    @property
    def computed(self) -> int:
        """Gradients that ESTs have begun to compute, probes not included."""
        return self._count("computed")

    @property
    def finished(self) -> int:
        """Steps that replicas have finished: each counts for every replica."""
        return self._count("finished")

    @property
    def runners(self) -> int:
        """Runners that have built their training."""
        return len([*self.folder.glob("*.computed")])

    def steps(self) -> list[Finished]:
        """All finished steps in order of time."""
        found = []
        for path in self.folder.glob("*.finished"):
            for line in path.read_bytes().decode().splitlines():
                at, fingerprint = line.split()
                found.append(Finished(float(at), int(fingerprint, 16), int(path.stem)))
        return sorted(found)

    def _count(self, kind: str) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(f"*.{kind}")) // LINE


def watched(model: Path, folder: Path) -> Path:
    """A script in a folder of its own, with the job of the script `model`, watched."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(model, folder / "model.py")
    return Path(shutil.copy(SCRIPT, folder / "watched.py"))
