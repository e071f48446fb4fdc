"""What the tests of this process have been through: simulated seeds, injected faults, planted bugs found."""

from __future__ import annotations

from collections import Counter, defaultdict

counts: dict[str, Counter[str]] = defaultdict(Counter)
"""Kind ("seed", "fault", "planted") -> name -> how many. Process-wide; the end of the test run prints it."""


def add(kind: str, name: str, count: int = 1) -> None:
    """Count something that was done."""
    counts[kind][name] += count
