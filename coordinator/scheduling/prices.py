"""Prices of devices at which what jobs want is what there is, and choices that fit together. Pure arithmetic on tables.

Each job has some rows, of which it takes one; each row has a worth and uses devices of some kinds. Wanted is the choice
of the greatest worth in all that uses no more than there is: a multiple-choice knapsack in several dimensions. Prices
(the multipliers of the capacities) solve it but for what does not come out even; the rest is put right row by row. With
few devices it is solved as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

OCTAVES, STEPS = 64, 32
POWERS = np.array([0.0, *2.0 ** (np.arange(-OCTAVES * STEPS, 1) / STEPS)])
"""Prices, of the highest, at which nothing is wanted: STEPS from one to its double."""

EXACT = 1_000_000
"""Rows, times the numbers of devices that can be left, up to which the best choice of all is looked for."""

PASSES = 4
"""How often all jobs are improved, at most."""

PAIRS = 24
"""With more jobs than this, they are not improved in pairs: what does not come out even is little then."""


class Users(NamedTuple):
    """The rows that use devices of one kind, and the others.

    Args:
        rows: that use it; usage: how many each. jobs: whose they are; counts, first: how many rows of each, and where
            they begin among these.
        others: rows that do not; others_first: where those of each job begin among them, of which each has some.
    """

    rows: NDArray[np.int64]
    usage: NDArray[np.float64]
    jobs: NDArray[np.int64]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]
    others: NDArray[np.int64]
    others_first: NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """What jobs could have.

    Args:
        value: of each row, at least 0; float64 [rows]. usage: devices by kind; int64 [rows, kinds].
        first: each job's first row, which has no value and uses nothing; int64 [jobs].
    """

    value: NDArray[np.float64]
    usage: NDArray[np.int64]
    first: NDArray[np.int64]

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The job of each row."""
        return np.repeat(np.arange(len(self.first)), np.diff(self.first, append=len(self.value)))

    @cached_property
    def columns(self) -> NDArray[np.float64]:
        """Devices of each kind, kind after kind in memory; float64 [kinds, rows]."""
        return np.ascontiguousarray(self.usage.T, dtype=np.float64)

    @cached_property
    def users(self) -> list[Users]:
        """Of each kind: most rows use few kinds, so what depends on the price of one kind is little."""
        found = []
        for column in self.columns:
            rows, others = np.flatnonzero(column > 0), np.flatnonzero(column == 0)
            jobs, first, counts = np.unique(self.owner[rows], return_index=True, return_counts=True)
            others_first = np.searchsorted(self.owner[others], np.arange(len(self.first)))
            found.append(Users(rows, column[rows], jobs, counts, first, others, others_first))
        return found

    @cached_property
    def thrift(self) -> NDArray[np.float64]:
        """The worth of each row for each of its devices."""
        thrift: NDArray[np.float64] = self.value / np.maximum(self.usage.sum(axis=1), 1)
        return thrift

    def best(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The greatest of each job's rows."""
        return np.maximum.reduceat(value, self.first)

    def argbest(self, value: NDArray[np.float64]) -> NDArray[np.int64]:
        """The first of each job's rows that is as great as any of them."""
        rows = np.where(value >= self.best(value)[self.owner], np.arange(len(value)), len(value))
        return np.minimum.reduceat(rows, self.first)

    def part(self, jobs: Sequence[int]) -> tuple[Table, NDArray[np.int64]]:
        """The same of these jobs only, and which rows of this table they are."""
        ranges = [np.arange(self.rows(job).start, self.rows(job).stop) for job in jobs]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *ranges])
        first = np.cumsum([0, *(len(one) for one in ranges)])[:-1]
        return Table(self.value[rows], self.usage[rows], first.astype(np.int64)), rows

    def rows(self, job: int) -> slice:
        """Of one job."""
        return slice(int(self.first[job]), int(self.first[job + 1]) if job + 1 < len(self.first) else len(self.value))


def clear(table: Table, free: NDArray[np.int64]) -> NDArray[np.float64]:
    """Prices of the kinds at which jobs want no more than there is, each as low as the others allow.

    They begin at nothing and rise, one after the other, until none has to: a kind is wanted more when others rise.
    """
    steps = np.zeros(len(free), dtype=np.int64)
    most = float(table.value.max(initial=0.0))
    while True:
        before = steps.copy()
        for kind in range(len(free)):
            prices = most * POWERS[steps]
            prices[kind] = 0.0
            value = table.value - prices @ table.columns
            steps[kind] = _raised(table.users[kind], value, int(free[kind]), most * POWERS, int(steps[kind]))
        if np.array_equal(steps, before):
            return most * POWERS[steps]


def _raised(users: Users, value: NDArray[np.float64], there: int, prices: NDArray[np.float64], low: int) -> int:
    """The first of these prices of a kind, from `low`, at which no more of it is wanted than there is."""
    if not len(users.rows):
        return low
    without = np.maximum.reduceat(value[users.others], users.others_first)[users.jobs]
    utility = value[users.rows] - prices[low] * users.usage
    wants = np.maximum.reduceat(utility, users.first) > without  # at a higher price nobody else will
    rows = np.repeat(wants, users.counts)
    of_users, usage, without, counts = value[users.rows[rows]], users.usage[rows], without[wants], users.counts[wants]
    if not len(of_users):
        return low
    first, owner = np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts)

    def enough(step: int) -> bool:
        utility = of_users - prices[step] * usage
        best = np.maximum.reduceat(utility, first)
        need = np.where(utility >= best[owner], usage, np.inf)  # of rows that are equally good, the one with least
        return bool(np.minimum.reduceat(need, first)[best > without].sum() <= there)

    if enough(low):
        return low
    high, width, last = low + 1, 1, len(prices) - 1
    while high < last and not enough(high):
        low, width = high, width * 4
        high = min(last, low + width)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def exact(table: Table, jobs: Sequence[int], free: NDArray[np.int64]) -> list[int]:
    """The rows of these jobs that are worth most together.

    Job by job, what can be had with each number of devices of each kind (dynamic programming).
    """
    shape = tuple(int(count) + 1 for count in free)
    best, choices = np.zeros(shape), []
    for job in jobs:
        rows = table.rows(job)
        found, choice = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
        for row in range(rows.start, rows.stop):
            usage = table.usage[row].tolist()
            if any(used >= size for used, size in zip(usage, shape, strict=True)):
                continue
            there = tuple(slice(used, None) for used in usage)
            left = tuple(slice(0, size - used) for used, size in zip(usage, shape, strict=True))
            worth = best[left] + table.value[row]
            better = worth > found[there]
            found[there][better] = worth[better]
            choice[there][better] = row
        best = found
        choices.append(choice)
    left_over, taken = free.copy(), []
    for choice in reversed(choices):
        taken.append(int(choice[tuple(left_over)]))
        left_over -= table.usage[taken[-1]]
    return taken[::-1]


class Choice:
    """A row for each job; together they fit.

    Args:
        free: devices that are left, by kind. It is changed.
    """

    def __init__(self, table: Table, free: NDArray[np.int64]) -> None:
        self._table = table
        self.free = free
        self.rows = table.first.copy()

    @property
    def worth(self) -> float:
        """Of all rows together."""
        return float(self._table.value[self.rows].sum())

    def take(self, jobs: Sequence[int], rows: NDArray[np.int64]) -> None:
        """These rows for these jobs, which fit."""
        for job, row in zip(jobs, rows.tolist(), strict=True):
            self._set(job, row)

    def _set(self, job: int, row: int) -> None:
        self.free += self._table.usage[self.rows[job]] - self._table.usage[row]
        self.rows[job] = row

    def _best(self, job: int, value: NDArray[np.float64]) -> int:
        """The best of a job's rows that fit in what it has and what is left."""
        rows = self._table.rows(job)
        room = self.free + self._table.usage[self.rows[job]]
        fits = (self._table.usage[rows] <= room).all(axis=1)
        return int(rows.start + np.where(fits, value[rows], -np.inf).argmax())

    def reserve(self, jobs: Sequence[int], room: NDArray[np.int64], value: NDArray[np.float64]) -> NDArray[np.int64]:
        """Give each of these what is best by this value, as far as there is room for them; the room that is left."""
        room = np.minimum(room, self.free)
        for job in jobs:
            if not room.any():
                break
            if self.rows[job] != self._table.first[job]:
                continue
            rows = self._table.rows(job)
            fits = (self._table.usage[rows] <= room).all(axis=1)
            row = int(rows.start + np.where(fits, value[rows], -np.inf).argmax())
            room = room - self._table.usage[row]
            self._set(job, row)
        return room

    def settle(self) -> None:
        """Choose for all jobs that have nothing: the best there is with few devices, else by prices.

        Each job takes what is best at the prices and still there: first those that gain most by it. With few jobs this
        is tried once more for each of them, which then takes what is worth most to it before all others: at no price
        would one take a block of devices and leave two others the rest.
        """
        before = self.rows.copy()
        jobs = np.flatnonzero(before == self._table.first).tolist()
        if not jobs:
            return
        rows = sum(self._table.rows(job).stop - self._table.rows(job).start for job in jobs)
        if rows * np.prod(self.free + 1.0) <= EXACT:
            for job, row in zip(jobs, exact(self._table, jobs, self.free), strict=True):
                self._set(job, row)
            return
        prices = clear(self._table, self.free)
        self._settle(prices)
        if len(before) > PAIRS:
            return
        self._improve_alone()
        worth, best = self.worth, self.rows.copy()
        for job in jobs:
            self._set_all(before)
            self._set(job, self._best(job, self._table.value))
            self._settle(prices)
            self._improve_alone()
            if self.worth > worth * (1 + 1e-12):
                worth, best = self.worth, self.rows.copy()
        self._set_all(best)

    def _set_all(self, rows: NDArray[np.int64]) -> None:
        self.free += self._table.usage[self.rows].sum(axis=0) - self._table.usage[rows].sum(axis=0)
        self.rows[:] = rows

    def _settle(self, prices: NDArray[np.float64]) -> None:
        table = self._table
        priced = table.value - prices @ table.columns
        wanted, surplus = table.argbest(priced), table.best(priced)
        order = np.argsort(-surplus, kind="stable")
        order = order[self.rows[order] == table.first[order]]  # without those for whom something is reserved
        fits = (table.usage[wanted[order]].cumsum(axis=0) <= self.free).all(axis=1)
        whole = len(order) if fits.all() else int(fits.argmin())  # so many get what they want
        self.rows[order[:whole]] = wanted[order[:whole]]
        self.free -= table.usage[wanted[order[:whole]]].sum(axis=0)
        for job in order[whole:].tolist():
            self._set(job, self._best(job, priced))

    def improve(self, owners: Sequence[object] = (), fixed: Sequence[int] = ()) -> None:
        """As long as a job, or a pair of jobs, gains by something else.

        Args:
            owners: of each job; none: they are all one's. Only jobs of one owner are looked at in pairs, since one of
                them may lose by it.
            fixed: jobs that give nothing to others.
        """
        free = [job for job in range(len(self.rows)) if job not in fixed] if len(self.rows) <= PAIRS else []
        pairs = [
            (one, other)
            for one in free
            for other in free
            if other < one and (not owners or owners[one] == owners[other])
        ]
        for _ in range(PASSES):
            gained = self._improve_alone()
            for one, other in pairs:
                gained |= self._improve_pair(one, other)
            if not gained:
                return

    def _improve_alone(self) -> bool:
        table, gained = self._table, False
        room = self.free + table.usage[self.rows]
        fits = (table.usage <= room[table.owner]).all(axis=1)
        gains = table.best(np.where(fits, table.value, -np.inf)) - table.value[self.rows]
        order = np.argsort(-gains, kind="stable")
        for job in order[gains[order] > 0].tolist():
            row = self._best(job, table.value)
            if table.value[row] > table.value[self.rows[job]]:
                self._set(job, row)
                gained = True
        return gained

    def _improve_pair(self, one: int, other: int) -> bool:
        """The best rows of two jobs with what both have and what is left."""
        table = self._table
        first, second = table.rows(one), table.rows(other)
        room = self.free + table.usage[self.rows[one]] + table.usage[self.rows[other]]
        fits = (table.usage[first][:, None, :] + table.usage[second][None, :, :] <= room).all(axis=2)
        both = np.where(fits, table.value[first][:, None] + table.value[second][None, :], -np.inf)
        best, now = int(both.argmax()), table.value[self.rows[one]] + table.value[self.rows[other]]
        if both.flat[best] <= now * (1 + 1e-12):
            return False
        rows = divmod(best, both.shape[1])
        self._set(one, int(table.first[one]))  # so that what is left is never negative
        self._set(other, second.start + rows[1])
        self._set(one, first.start + rows[0])
        return True
