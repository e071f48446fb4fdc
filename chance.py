"""Random numbers that are nobody's business: delays between retries, drawn from a generator of their own.

Python's global generator belongs to the job: whatever a thread of ours drew from it between two draws of the user's
dataset would change the data of that step, and nobody could see it, since all replicas would agree.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tenacity.wait import wait_base

if TYPE_CHECKING:
    from types import ModuleType

    from tenacity import RetryCallState

_own = random.Random()  # noqa: S311 - delays


class wait_random(wait_base):  # noqa: N801 - in place of tenacity's, which draws from the global generator
    """Wait for a random number of seconds between two."""

    def __init__(self, least: float, most: float) -> None:
        self._bounds = least, most

    def __call__(self, retry_state: RetryCallState) -> float:  # noqa: ARG002 - every wait gets it
        """Seconds before the next attempt."""
        return _own.uniform(*self._bounds)


def keep_from_global(*modules: ModuleType) -> None:
    """Let modules of libraries that call `random.random()` and the like draw from our generator."""
    for module in modules:
        assert getattr(module, "random", None) in (random, _own), f"{module.__name__} imports random no more"
        module.random = _own  # type: ignore[attr-defined]
