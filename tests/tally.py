"""What the tests did, for the summary at the end of a run: seeds simulated, faults injected, planted bugs found."""

from __future__ import annotations

from collections import Counter

counts: dict[str, Counter[str]] = {"seed": Counter(), "fault": Counter(), "planted": Counter()}
"""Kind -> name -> how many, for this process."""


def add(kind: str, name: str, count: int = 1) -> None:
    """Count something. `kind` is `seed`, `fault` or `planted`."""
    counts[kind][name] += count
