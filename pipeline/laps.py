"""Seconds that the phases of something take, one after the other, for the log: where did a start go?"""

from __future__ import annotations

import time


class Laps:
    """A stopwatch that is read at the end of each phase.

    Attributes:
        seconds: by phase, rounded to milliseconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def end(self, phase: str) -> None:
        """This phase ends, and the next begins."""
        now = time.monotonic()
        self.seconds[phase] = round(now - self._began, 3)
        self._began = now
