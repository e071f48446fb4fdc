"""The last words of a test run: how much was tried, in numbers that are counted while the tests run (`tally.py`)."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def closing(outcomes: Mapping[str, int], counts: Mapping[str, Counter[str]], width: int = 100) -> list[str]:
    """The lines of the block.

    Args:
        outcomes: how many tests ended how.
        counts: see `tally.counts`.
        width: columns of the terminal.
    """
    ended = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
    lines = [f"tests: {sum(outcomes.values())} ({ended})"]
    lines.append(f"simulated seeds: {counts.get('seed', Counter()).total()}")
    for title, kind in (("injected faults", "fault"), ("planted bugs found", "planted")):
        found = counts.get(kind, Counter())
        lines.append(f"{title}: {found.total()}, of {len(found)} kinds")
        text = "; ".join(f"{name} {count}" for name, count in sorted(found.items(), key=lambda it: (-it[1], it[0])))
        lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
    return lines
