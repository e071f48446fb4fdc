"""How a job's ESTs are spread over its workers: contiguous ranges, as even as can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import records

if TYPE_CHECKING:
    from collections.abc import Sequence


def even(ests: int, workers: Sequence[str]) -> tuple[records.Member, ...]:
    """Ranges whose lengths differ by at most one, longer ones first, in the workers' order.

    At most `ests` workers can be used; the rest get nothing.
    """
    used = workers[:ests]
    members = []
    first = 0
    for index, worker in enumerate(used):
        last = first + ests // len(used) + (index < ests % len(used))
        members.append(records.Member(worker, first, last))
        first = last
    return tuple(members)


def shares(capacity: int, wants: Sequence[tuple[int, int]]) -> list[int]:
    """How many workers each job gets, jobs in order of precedence.

    Args:
        capacity: workers there are.
        wants: (least, most) per job. A job that cannot have its least gets none and does not hold up the next one.

    Returns:
        One count per job: everybody's least first, then one at a time round the table while anyone wants more.
    """
    counts = []
    left = capacity
    for least, _ in wants:
        counts.append(least if least <= left else 0)
        left -= counts[-1]
    while left:
        hungry = [i for i, (_, most) in enumerate(wants) if 0 < counts[i] < most]
        if not hungry:
            break
        for i in hungry[:left]:
            counts[i] += 1
        left -= min(left, len(hungry))
    return counts
