"""How long one EST takes on this device, before any step is made: so a job's first ranges need not be even.

The first EST of a process says little of that: kernels are loaded, memory is allocated, loader processes are forked. So
it is computed again, and only that is timed. Where the first one took long nothing is told, since nobody knows whether
the next one would: a start is not to be held up for the sake of a guess. What is made of it: `coordinator/probes.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

COLD_SECONDS = 5.0
"""If the first EST took longer, none is computed for the time it takes."""

MOST_PASSES = 5
"""That are timed."""

ENOUGH_SECONDS = 0.1
"""After so long no other one is begun. What took as long is not the work of one unlucky moment."""


def est_seconds(once: Callable[[], float], cold: float) -> float | None:
    """Seconds of one EST: the least of some, since what disturbs only adds.

    Args:
        once: computes one, and gives the seconds that count. cold: what the first one took.

    Returns:
        None if it is not known.
    """
    if cold > COLD_SECONDS:
        return None
    began, took = time.monotonic(), [once()]
    while len(took) < MOST_PASSES and time.monotonic() - began < ENOUGH_SECONDS:
        took.append(once())
    return min(took)
