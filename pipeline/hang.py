"""When is a computation hanging? A deadline learned from the computations before it. Pure.

Liveness is progress, not a heartbeat: a process whose heart beats while its work stands still is dead for our purpose.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FLOOR_SECONDS = 120.0
"""No computation is called hanging earlier than this: user code may hold the interpreter for a minute."""

FIRST_SECONDS = 900.0
"""Deadline before anything has been learned: imports, compilation, a first step."""

FACTOR = 10.0


@dataclass(slots=True)
class HangWatch:
    """Durations of computations, and the one under way.

    Args:
        floor, first: seconds; see the constants. A `floor` lowered for tests lowers `first` to ten times itself.
    """

    floor: float = FLOOR_SECONDS
    first: float = FIRST_SECONDS
    _began: float | None = None
    _learned: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def begin(self, now: float) -> None:
        """A computation begins."""
        self._began = now

    def end(self, now: float) -> None:
        """It ended, or somebody else is being waited for."""
        if self._began is not None:
            self._learned.append(now - self._began)
        self._began = None

    @property
    def deadline(self) -> float:
        """Seconds that the computation under way may take."""
        if len(self._learned) < 3:
            return min(self.first, 10 * self.floor)
        return max(self.floor, FACTOR * max(self._learned))

    def hanging(self, now: float) -> float | None:
        """Seconds since the computation began, if that is longer than its deadline."""
        if self._began is None or now - self._began <= self.deadline:
            return None
        return now - self._began
