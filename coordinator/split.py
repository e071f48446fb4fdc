"""How many ESTs each of the given devices runs so that the slowest of them finishes as early as can be. Pure.

A device that runs n ESTs is done after `fixed + n * est` seconds. The best time is one of these values: the least at
which all devices together have room for every EST. Below it lies the time of ESTs that could be cut in pieces, and from
there it is only a few ESTs away, so the search takes O(devices log devices) steps whatever the number of ESTs.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

UNLIMITED = 1 << 40


class Pace(NamedTuple):
    """How fast a device is for a job.

    Args:
        est: seconds that one EST takes, more than 0. fixed: seconds of a step whatever the number of ESTs.
        most: ESTs that its memory has room for.
    """

    est: float
    fixed: float = 0.0
    most: int = UNLIMITED

    def seconds(self, ests: int) -> float:
        """When it is done with so many ESTs."""
        return self.fixed + ests * self.est if ests else 0.0

    def room(self, seconds: float) -> int:
        """ESTs that it can run in this time, exactly: `self.seconds(room) <= seconds`."""
        room = min(self.most, max(0, int((seconds - self.fixed) / self.est)))
        while room < self.most and self.seconds(room + 1) <= seconds:  # the quotient was rounded
            room += 1
        while room and self.seconds(room) > seconds:
            room -= 1
        return room


@dataclass(frozen=True, slots=True)
class Split:
    """The best split over groups of equal devices.

    Args:
        seconds: when the slowest device is done.
        each: ESTs of every device, by group.
        group, extra: in this group, so many devices run one EST more.
    """

    seconds: float
    each: tuple[int, ...]
    group: int
    extra: int


def split(ests: int, groups: Sequence[tuple[Pace, int]]) -> Split | None:
    """Spread ESTs over groups of equal devices.

    Args:
        groups: a pace, and how many devices have it.

    Returns:
        None if their memory has no room for all ESTs.
    """
    if sum(pace.most * count for pace, count in groups) < ests:
        return None
    begin = _begin(ests, groups)
    each = [pace.room(begin) for pace, _ in groups]
    left = ests - sum(room * count for room, (_, count) in zip(each, groups, strict=True))
    if left <= 0:  # rounding apart, `begin` is a lower bound: one EST less, and count again
        each = [max(0, room - 1) for room in each]
        left = ests - sum(room * count for room, (_, count) in zip(each, groups, strict=True))
    times = [(pace.seconds(each[k] + 1), k) for k, (pace, count) in enumerate(groups) if count and each[k] < pace.most]
    heapify(times)
    while True:
        seconds, k = times[0]
        pace, count = groups[k]
        if left <= count:
            break
        left -= count
        each[k] += 1
        heapreplace(times, (pace.seconds(each[k] + 1) if each[k] < pace.most else float("inf"), k))
    slowest = max([seconds, *(pace.seconds(n) for n, (pace, count) in zip(each, groups, strict=True) if count)])
    return Split(slowest, tuple(each), k, left)


def _begin(ests: int, groups: Sequence[tuple[Pace, int]]) -> float:
    """A time before which they cannot be done, even if ESTs could be cut in pieces."""
    left, seconds = float(ests), 0.0
    open_ = [(pace, count) for pace, count in groups if count]
    while left > 0:
        seconds = _level(left, open_)
        full = [one for one in open_ if one[0].most < UNLIMITED and one[0].seconds(one[0].most) <= seconds]
        if not full:
            break
        left -= sum(pace.most * count for pace, count in full)
        open_ = [one for one in open_ if one not in full]
    return seconds


def _level(work: float, groups: Sequence[tuple[Pace, int]]) -> float:
    """When all are done at the same time, those left out that would not have begun by then."""
    open_ = list(groups)
    while True:
        rate = sum(count / pace.est for pace, count in open_)
        seconds = (work + sum(count * pace.fixed / pace.est for pace, count in open_)) / rate
        useful = [one for one in open_ if one[0].fixed < seconds]
        if len(useful) in (0, len(open_)):
            return seconds
        open_ = useful


def shares(ests: int, paces: Sequence[Pace], before: Sequence[int] = ()) -> list[int] | None:
    """ESTs of each device, in the order of the devices; None if their memory has no room for all.

    Args:
        before: what each had. That is left as it is where nothing is better, in whatever order the devices are; where
            several splits are equally good, few devices are given something else.
    """
    kinds: dict[Pace, list[int]] = {}
    for index, pace in enumerate(paces):
        kinds.setdefault(pace, []).append(index)
    found = split(ests, [(pace, len(members)) for pace, members in kinds.items()])
    if found is None:
        return None
    if _serves(ests, paces, before) and max(map(Pace.seconds, paces, before)) <= found.seconds:
        return list(before)
    result = [0] * len(paces)
    for group, members in enumerate(kinds.values()):
        had = sorted(members, key=lambda i: -(before[i] if i < len(before) else 0))
        for place, index in enumerate(had):
            result[index] = found.each[group] + (group == found.group and place < found.extra)
    return result


def _serves(ests: int, paces: Sequence[Pace], before: Sequence[int]) -> bool:
    """Whether it is a split of these ESTs over these devices."""
    fits = len(before) == len(paces) and all(0 <= n <= pace.most for n, pace in zip(before, paces, strict=True))
    return fits and sum(before) == ests
