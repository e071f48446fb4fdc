"""What a job could do with devices: the sets of devices that are worth having, and how long a step takes on each.

A set is worth having if no smaller one is as fast. Of one kind these are few: with 64 ESTs, 11 devices are no better
than 10 (the slowest has 7 either way). Of two kinds, devices are chosen so that both are done at about the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .jobs import Devices, Shape, devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ..split import Pace

LEVELS = 16
"""Step times that sets of two kinds aim at."""


@dataclass(frozen=True, slots=True)
class Option:
    """A set of devices, and the seconds of a step on it."""

    given: Devices
    seconds: float


@lru_cache(maxsize=4096)
def options(shape: Shape, capacity: Devices) -> tuple[Option, ...]:
    """The sets worth having of what there is, the fastest first."""
    there = dict(capacity)
    found: dict[Devices, float] = {}
    for given in _candidates(shape, there):
        if given not in found:
            found[given] = shape.step_seconds(given)
    return tuple(_worth_having(found))


def _candidates(shape: Shape, there: Mapping[str, int]) -> Iterator[Devices]:
    paces = [(kind, pace) for kind, pace in shape.rates.paces if there.get(kind)]
    for kind, _ in paces:
        for count in _counts(shape.ests):
            if count <= there[kind]:
                yield devices({kind: max(count, shape.least)})
    if not shape.mixes:
        return
    for first, second in ((a, b) for i, a in enumerate(paces) for b in paces[i + 1 :]):
        for seconds in _levels(shape.ests, first[1], second[1]):
            yield from _pairs(shape, there, first, second, seconds)
    yield devices({kind: min(there[kind], shape.ests) for kind, _ in paces})


def _counts(ests: int) -> Iterable[int]:
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
    for count in {*_counts(alone), *(alone - n for n in _counts(alone)), there[first[0]]}:
        left = shape.ests - count * each
        if 0 < count <= there[first[0]] and left > 0:
            more = -(-left // other)
            if more <= there[second[0]]:
                yield devices({first[0]: count, second[0]: more})


def _worth_having(found: Mapping[Devices, float]) -> Iterator[Option]:
    kept: list[tuple[dict[str, int], float]] = []
    for given, seconds in sorted(found.items(), key=lambda item: (item[1], sum(n for _, n in item[0]), item[0])):
        counts = dict(given)
        if seconds == float("inf"):
            return
        if not any(all(counts.get(kind, 0) >= n for kind, n in less.items()) for less, _ in kept):
            kept.append((counts, seconds))
            yield Option(given, seconds)
