"""What the tests did, for the summary at the end of a run: seeds simulated, faults injected, planted bugs found, and
how much was looked at of CUDA's kernels without a GPU.

A test counts in the process that it runs in. `closing.py` takes what was counted along with the test's report to the
process that writes the summary: with pytest-xdist that is another one.
"""

from __future__ import annotations

from collections import Counter

Counts = dict[str, Counter[str]]
"""Kind -> name -> how many."""


def nothing() -> Counts:
    """Before anything was done."""
    return {"seed": Counter(), "fault": Counter(), "planted": Counter(), "cuda": Counter()}


_counted = nothing()


def add(kind: str, name: str, count: int = 1) -> None:
    """Count something. `kind` is `seed`, `fault`, `planted` or `cuda`."""
    _counted[kind][name] += count


def taken() -> dict[str, dict[str, int]]:
    """What this process has counted since it was last asked, as plain values."""
    found = {kind: dict(names) for kind, names in _counted.items() if names}
    for names in _counted.values():
        names.clear()
    return found
