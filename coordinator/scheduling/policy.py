"""What a policy is: it says which devices each job should have. Pure; the coordinator and the simulator both ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .jobs import Devices, Job

Plan = dict[str, "Devices"]
"""Devices by job; a job that is not named gets none."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds in which devices that a job has do not train it.

    Args:
        start: all of them, when a job that had none gets some: processes are started, the model is built, the state is
            read. stop: its steps that are lost, and the commit, when it loses all.
        join: a newcomer's, until it is ready; the others go on meanwhile. change: all of them, at each change.

    The defaults are what `benchmarks/restart.py`, `recovery.py` and `moves.py` measured (docs/benchmarks.md).
    """

    start: float = 6.1
    stop: float = 0.3
    join: float = 1.3
    change: float = 0.1

    def times(self, factor: float) -> Costs:
        """All of them so many times as long."""
        return Costs(self.start * factor, self.stop * factor, self.join * factor, self.change * factor)


class Policy(Protocol):
    """A way to share devices between jobs.

    Attributes:
        name: as it is chosen on the command line. rigid: jobs run on as many devices as they have ESTs, or not at all.
        at_once: it wants to be asked whenever something happens. every: it wants to be asked again after so many
            seconds: in rounds, or, if `at_once`, while jobs wait.
    """

    name: str
    rigid: bool
    at_once: bool
    every: float

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        """Which devices each job should have.

        Args:
            capacity: devices there are, by kind. jobs: all that are not done, by arrival.

        Guarantees:
            Of no kind more than there are; no job less than its least, more than its most, or what it cannot run on;
            equal inputs give equal plans.
        """
        ...
