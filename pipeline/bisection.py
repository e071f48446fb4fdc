"""Bisecting: where two histories part, with as few looks as possible. Pure.

It rests on one property of training: once two histories differ they go on differing, so "they differ by now" is false
up to some place and true from there on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


def first(count: int, differs: Callable[[int], bool]) -> int:
    """The smallest `i` in `0 .. count - 1` with `differs(i)`, or `count` if there is none.

    Args:
        count: how many places there are.
        differs: false up to some place, true from there on. Asked at most `count.bit_length()` times.
    """
    lo, hi = 0, count
    while lo < hi:
        mid = (lo + hi) // 2
        if differs(mid):
            hi = mid
        else:
            lo = mid + 1
    return lo


def first_unlike(here: Sequence[Hashable], there: Sequence[Hashable]) -> int | None:
    """Where two sequences first differ, or None if they are equal; where one ends, if it is a beginning of the other.

    They are compared by hashes of their beginnings, so an element that is alike again later does not mislead.
    """
    ours, theirs = _beginnings(here), _beginnings(there)
    shorter = min(len(ours), len(theirs))
    place = first(shorter, lambda i: ours[i] != theirs[i])
    return None if place == shorter and len(here) == len(there) else place


def _beginnings(sequence: Sequence[Hashable]) -> list[int]:
    """For each place a hash of all up to it. In one process, so Python's own hashes will do."""
    running, found = 0, []
    for element in sequence:
        running = hash((running, element))
        found.append(running)
    return found
