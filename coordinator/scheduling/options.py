"""What a job could do with devices: the sets of devices that are worth having, and how long a step takes on each.

A set is worth having if no smaller one is as fast. Of one kind these are few: with 64 ESTs, 11 devices are no better
than 10 (the slowest has 7 either way). Of two kinds, devices are chosen so that both are done at about the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from .jobs import Devices, Shape, devices, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..split import Pace

LEVELS = 8
"""Step times that sets of two kinds aim at."""

MOST = 64
"""Sets that are looked at for one job: those which use devices best, and the fastest of one kind. With more, there are
the fastest and the slowest of each kind, too."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The sets worth having, the fastest first.

    Args:
        given: the sets. seconds: of a step on each. usage: devices by kind, a row for each set.
        place: of a set among them.
    """

    given: tuple[Devices, ...]
    seconds: NDArray[np.float64]
    usage: NDArray[np.int64]
    place: dict[Devices, int]


def options(shape: Shape, kinds: Sequence[str], there: Sequence[int]) -> Sheet:
    """The sets worth having of so many devices of these kinds."""
    return _sheet(shape, tuple(kinds), tuple(_bucket(int(number), shape) for number in there))


def _bucket(number: int, shape: Shape) -> int:
    """What matters of how many there are: clusters that differ by little have their sheets in common."""
    if number >= shape.most or number <= 8:
        return min(number, shape.most)
    step = 1 << (number.bit_length() - 3)
    alone = (max(count, shape.least) for count in _counts(shape.ests))
    return max([number // step * step, *(count for count in alone if count <= number)])


@lru_cache(maxsize=1 << 14)
def _sheet(shape: Shape, kinds: tuple[str, ...], numbers: tuple[int, ...]) -> Sheet:
    there = {kind: number for kind, number in zip(kinds, numbers, strict=True) if number}
    found = {given: shape.step_seconds(given) for given in set(_candidates(shape, there))}
    kept = list(_worth_having(found))
    if len(kept) > MOST:
        thrift = sorted(kept, key=lambda given: found[given] * _weight(shape, given))
        single = [given for given in kept if len(given) == 1]
        slowest = {given[0][0]: given for given in single}  # each runs where only so much is free
        fastest = {given[0][0]: given for given in reversed(single)}
        chosen = {*slowest.values(), *fastest.values(), *single[: MOST // 2], *thrift[: MOST // 2]}
        kept = [given for given in kept if given in chosen]
    usage = np.array([[dict(given).get(kind, 0) for kind in kinds] for given in kept], dtype=np.int64)
    usage = usage.reshape(len(kept), len(kinds))
    seconds = np.array([found[given] for given in kept])
    return Sheet(tuple(kept), seconds, usage, {given: i for i, given in enumerate(kept)})


def _weight(shape: Shape, given: Devices) -> float:
    """Devices, each counted by what it could do: the less of it is used, the worse is the set."""
    return sum(number / pace.est for kind, number in given if (pace := shape.rates.pace(kind)) is not None)


def _candidates(shape: Shape, there: Mapping[str, int]) -> Iterator[Devices]:
    paces = {kind: pace for kind, pace in shape.rates.paces if there.get(kind)}
    for kind in paces:
        for count in _counts(shape.ests):
            if max(count, shape.least) <= there[kind]:
                yield devices({kind: max(count, shape.least)})
    for group in shape.groups(paces):
        for first, second in combinations([(kind, paces[kind]) for kind in group], 2):
            for seconds in _levels(shape.ests, first[1], second[1]):
                yield from _pairs(shape, there, first, second, seconds)
        yield devices({kind: min(there[kind], shape.ests) for kind in group})


@lru_cache(maxsize=1 << 10)
def _counts(ests: int) -> Sequence[int]:
    """Numbers of equal devices of which the next smaller one would be slower."""
    return sorted({-(-ests // each) for each in range(1, ests + 1)})


def _levels(ests: int, *paces: Pace) -> list[float]:
    """Times at which devices of these paces have run one EST more."""
    times = sorted({pace.seconds(n) for pace in paces for n in range(1, min(ests, pace.most) + 1)})
    if len(times) <= LEVELS:
        return times
    last = len(times) - 1  # close together where they are short: there are many devices then, and many ways to mix
    return [times[place] for place in sorted({round(last ** (i / (LEVELS - 1))) for i in range(LEVELS)} | {0})]


def _pairs(
    shape: Shape, there: Mapping[str, int], first: tuple[str, Pace], second: tuple[str, Pace], seconds: float
) -> Iterator[Devices]:
    """Devices of two kinds that are done by this time."""
    each, other = first[1].room(seconds), second[1].room(seconds)
    if not each or not other:
        return
    alone = -(-shape.ests // each)
    for count in {1, alone // 4, alone // 2, alone - alone // 4, alone - 1, there[first[0]]}:
        left = shape.ests - count * each
        if 0 < count <= there[first[0]] and left > 0:
            more = -(-left // other)
            if more <= there[second[0]]:
                yield devices({first[0]: count, second[0]: more})


def _worth_having(found: Mapping[Devices, float]) -> Iterator[Devices]:
    kept: list[dict[str, int]] = []
    for given, seconds in sorted(found.items(), key=lambda item: (item[1], total(item[0]), item[0])):
        counts = dict(given)
        if seconds == float("inf"):
            return
        if not any(all(counts.get(kind, 0) >= number for kind, number in less.items()) for less in kept):
            kept.append(counts)
            yield given
