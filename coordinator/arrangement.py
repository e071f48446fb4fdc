"""Which of the workers that could be members are worth it, and who of them runs which ESTs, by what is known of their
speed. Pure.

Ranges are those by which the slowest member is done first. Who would get no EST, or without whom a step takes no
longer, is left out; who serves already stays unless a step gets `GAIN` faster without it, so that a generation is not
spent on little. Leaves to others: how speeds are learned (`throughput.py`), when a running job follows
(`membership.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from . import records, room, split, throughput
from .split import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .attempts import Alive

GAIN = 0.1
"""The part of a step that must be won for a running job to be given other ranges, or fewer members."""

USEFUL = 0.001
"""The part of a step that newcomers must win to be taken: one of a thousand equal workers wins as much."""

EQUAL = 1e-6
"""Rounding."""


class Arrangement(NamedTuple):
    """Members with their ranges, and the seconds that a step should take with them."""

    members: tuple[records.Member, ...]
    seconds: float

    @property
    def workers(self) -> list[str]:
        """Its members' ids."""
        return [member.worker for member in self.members]


NONE = Arrangement((), float("inf"))
"""There is none."""


def paces_of(
    rates: records.Rates | None, workers: Sequence[str], alive: Alive, job: str = ""
) -> dict[str, Pace] | None:
    """How fast these workers are, and for how many ESTs they have room; None if all are of unknown kinds.

    Of an unknown kind: as fast as the mean of the known, and with room for all, until it has shown what it takes there.

    Args:
        job: its name, for what workers say of themselves.
    """
    if rates is None:
        return None
    kinds = {throughput.kind_of(alive[worker]) for worker in workers}
    there = [rates.kinds[kind] for kind in sorted(kinds) if kind in rates.kinds]
    if not there:
        return None
    mean = throughput.mean_rate(there)
    found = {worker: rates.kinds.get(throughput.kind_of(alive[worker]), mean) for worker in workers}
    return {
        w: Pace(rate.est * rates.factors.get(w, 1.0), rate.fixed, room.of_worker(rate, alive[w], job, rates.spec))
        for w, rate in found.items()
    }


@dataclass(slots=True)
class Model:
    """What a step takes.

    Args:
        ests: of the job. least: members that there must be.
        paces: of all workers in question, each with room for one EST at least.
        exchange: see `records.Rates`.
        lane: the lane of a generation of these workers.
        before: ESTs that workers have now.
    """

    ests: int
    least: int
    paces: Mapping[str, Pace]
    exchange: Mapping[str, float]
    lane: Callable[[Sequence[str]], str]
    before: Mapping[str, int]

    def seconds(self, members: Sequence[records.Member]) -> float:
        """With these ranges."""
        slowest = max((self.paces[m.worker].seconds(m.last - m.first) for m in members), default=0.0)
        return slowest + self._exchange([member.worker for member in members])

    def as_is(self, members: tuple[records.Member, ...]) -> Arrangement:
        """These members with these ranges."""
        return Arrangement(members, self.seconds(members))

    def arrange(self, workers: Sequence[str], least: int | None = None) -> Arrangement:
        """The best ranges for these workers, in their order; `NONE` if their memory has no room for all ESTs.

        Args:
            least: if fewer would get any EST, all get one; default: the job's.
        """
        counts = self._counts(workers, self.least if least is None else least)
        return self.as_is(_ranges(workers, counts)) if counts is not None else NONE

    def best(self, workers: Sequence[str]) -> Arrangement:
        """The best for as few of these workers as it takes, at least `least`.

        More workers compute faster, and may exchange more slowly. How slowly is known for some numbers of members; what
        is not measured is taken as the next smaller that is, so that it is tried once. So between two known numbers the
        most are the best, and of those that are not needed the last ones are left out. The fastest are tried first, and
        of equally fast ones those with more room: if memory is short, another choice may be better, but it is never
        feasible where this is not.
        """
        order = sorted(workers, key=lambda worker: (self.paces[worker].est, -self.paces[worker].most))[: self.ests]
        most, least = len(order), max(self.least, 1)
        sizes = {throughput.exchange_of(key)[1] for key in self.exchange}
        tops = sorted({most, least, *(size - 1 for size in sizes | {2} if least < size <= most)})
        found = [self.arrange(self._in_order(workers, order[:top])) for top in tops]
        seconds = min(one.seconds for one in found)
        top, best = next((t, f) for t, f in zip(tops, found, strict=True) if f.seconds <= seconds * (1 + EQUAL))
        low, high = least, min(top, len(best.members))
        while low < high:  # the fewest that are as good
            middle = (low + high) // 2
            fewer = self.arrange(self._in_order(workers, order[:middle]))
            if fewer.seconds <= best.seconds * (1 + EQUAL):
                best, high = fewer, middle
            else:
                low = middle + 1
        return best

    def grow(self, staying: Sequence[str], newcomers: Sequence[str], wanted: Sequence[str] = ()) -> Arrangement:
        """All of those who serve, each with an EST at least, and who of those who could join is worth it.

        Args:
            wanted: newcomers of whose kind nothing is known: they are taken in any case, to be measured.
        """
        best = self.best([*staying, *newcomers])
        joining = [worker for worker in newcomers if worker in best.workers or worker in wanted]
        chosen = [*staying, *joining][: self.ests]
        grown = self.arrange(chosen)
        must = {*staying, *wanted} & {*chosen}
        if not must <= {*grown.workers}:
            useful = [worker for worker in chosen if worker in must or worker in grown.workers]
            grown = self.arrange(useful, len(useful))
        if wanted or not staying or len(staying) < self.least:
            return grown
        alone = self.arrange(staying[: self.ests], len(staying))
        return grown if grown.seconds < alone.seconds * (1 - USEFUL) else alone

    def improve(self, staying: Sequence[str], newcomers: Sequence[str]) -> Arrangement:
        """The same without those of who serve whose going makes a step `GAIN` faster, or who have no EST."""
        best, grown = self.best([*staying, *newcomers]), self.grow(staying, newcomers)
        kept = min(self.arrange(grown.workers), grown, key=lambda one: one.seconds)
        return best if best.seconds < kept.seconds * (1 - GAIN) else kept

    def _counts(self, workers: Sequence[str], least: int) -> list[int] | None:
        paces, before = [self.paces[worker] for worker in workers], [self.before.get(worker, 0) for worker in workers]
        counts = split.shares(self.ests, paces, before)
        if counts is None or sum(1 for count in counts if count) >= min(least, len(workers)):
            return counts
        # Everybody has one, whatever it costs, and the rest is spread.
        paces = [Pace(pace.est, pace.fixed + pace.est, pace.most - 1) for pace in paces]
        more = split.shares(self.ests - len(workers), paces, [count - 1 for count in before])
        assert more is not None, "there is room for all, and each has room for one"
        return [1 + count for count in more]

    def _exchange(self, workers: Sequence[str]) -> float:
        if len(workers) < 2:
            return 0.0
        lane = f"{self.lane(workers)} "
        known = [int(key.removeprefix(lane)) for key in self.exchange if key.startswith(lane)]
        size = max((size for size in known if size <= len(workers)), default=None)
        return self.exchange[f"{lane}{size}"] if size is not None else 0.0

    @staticmethod
    def _in_order(workers: Sequence[str], chosen: Sequence[str]) -> list[str]:
        these = set(chosen)
        return [worker for worker in workers if worker in these]


def _ranges(workers: Sequence[str], counts: Sequence[int]) -> tuple[records.Member, ...]:
    """Contiguous, in this order; who has no EST is no member."""
    ends = accumulate(counts)
    return tuple(
        records.Member(worker, end - count, end)
        for worker, count, end in zip(workers, counts, ends, strict=True)
        if count
    )
