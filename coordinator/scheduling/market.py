"""Our policy: devices have prices, and every job takes what is worth most to it at these prices.

The worth of a set of devices is how fast the job would come to its end on it: 1 / (seconds until it is done), less what
it costs to change. So a device goes where it shortens most: to the job that is done soonest with it, as shortest
remaining time first would have it, and of several kinds to the job for which the kind makes the greatest difference.

Prices are those at which jobs together want what there is (the multipliers of the capacities in the linear programme
over all jobs' options). At these prices each job can be looked at alone: that is why it is quick with thousands of jobs,
and why `easyscale show` can say what a further device would gain and what others would lose. What does not come out
even is given in order of what jobs would gain; then jobs and pairs of jobs are improved as long as there is a gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .jobs import NOTHING, Devices, Job, devices, total
from .options import options
from .policy import Costs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .policy import Plan

HORIZON = 600.0
"""Seconds for which a job is thought to keep what it gets, unless it is done earlier: a change must pay within them."""

ROUNDS, HALVINGS = 3, 30
"""How often the price of each kind is looked for again, and how closely."""

PAIRS = 24
"""With more jobs than this, they are not improved in pairs: what does not come out even is little then."""

PATIENCE, TURN = 4 * 3600.0, 3600.0
"""Seconds of waiting after which a job is given something whatever it is worth, and for how long."""

RESERVED = 0.1
"""Share of each kind for jobs that go first whatever they are worth (`Market._urgent`). More of it ends everything a
little earlier and most jobs later: on Gavel's trace at six times its load, a half instead of a tenth made the mean time
of a job 1.10 times as long, and the last job was no earlier."""


@dataclass(frozen=True, slots=True)
class Table:
    """What the jobs of one round could have, a row for each set of devices.

    Args:
        value: what it is worth; usage: devices by kind. first: a job's first row; the last one is the number of rows.
        given: the sets themselves.
    """

    value: NDArray[np.float64]
    usage: NDArray[np.int64]
    first: NDArray[np.int64]
    given: list[Devices]

    def rows(self, job: int) -> slice:
        """Of one job."""
        return slice(int(self.first[job]), int(self.first[job + 1]))


class Market:
    """Prices.

    Args:
        costs: of changing. horizon, patience: seconds; see the constants.

    """

    name, rigid, at_once, every = "easyscale", False, True, 600.0

    def __init__(self, costs: Costs | None = None, horizon: float = HORIZON, patience: float = PATIENCE) -> None:
        self._costs = costs or Costs()
        self._horizon = horizon
        self._patience = patience

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        """See `Policy`."""
        kinds = sorted(kind for kind, count in capacity.items() if count)
        free = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
        plan: Plan = {}
        for tier in sorted({job.priority for job in jobs}, reverse=True):
            self._tier([job for job in jobs if job.priority == tier], kinds, free, now, plan)
        return plan

    def _tier(self, jobs: list[Job], kinds: list[str], free: NDArray[np.int64], now: float, plan: Plan) -> None:
        """Plan the jobs of one priority, and take from `free` what they get."""
        order = sorted(jobs, key=lambda job: (job.arrived, job.name))
        table = self._table(order, kinds, free)
        chosen = Choice(table, free)
        chosen.reserve(self._urgent(order, table, free, now))
        prices = clear(table, free)
        chosen.settle(prices)
        chosen.improve()
        plan.update({job.name: given for job, given in zip(order, chosen.sets(), strict=True) if given})

    def _urgent(self, jobs: list[Job], table: Table, free: NDArray[np.int64], now: float) -> list[int]:
        """Jobs that are given something first: those that would still run when all others were done, and the impatient.

        A job that takes longer than all work takes all devices decides when everything is done. It costs the others
        little to let it run, since it cannot use many devices: else it would not take that long.
        """
        alone = [1 / float(table.value[table.rows(place)].max(initial=1e-12)) for place in range(len(jobs))]
        work = sum(job.left * job.shape.ests * job.shape.rates.fastest for job in jobs)
        together = work / max(1, int(free.sum()))
        critical = sorted((place for place in range(len(jobs)) if alone[place] > together), key=lambda p: -alone[p])
        starving = [place for place, job in enumerate(jobs) if self._starves(job, now)]
        return list(dict.fromkeys([*critical, *starving]))

    def _starves(self, job: Job, now: float) -> bool:
        """Whether it has a turn for having waited: as many as it has lost patience, and it is in none of these yet."""
        waited = now - job.arrived - job.ran
        return waited > self._patience * (1 + job.ran // TURN)

    def _table(self, jobs: list[Job], kinds: list[str], free: NDArray[np.int64]) -> Table:
        there = devices({kind: int(count) for kind, count in zip(kinds, free, strict=True)})
        column = {kind: place for place, kind in enumerate(kinds)}
        values: list[float] = []
        sets: list[Devices] = []
        first = [0]
        for job in jobs:
            found = {option.given: option.seconds for option in options(job.shape, there)}
            if job.given and job.given not in found and all(dict(there).get(k, 0) >= n for k, n in job.given):
                found[job.given] = job.shape.step_seconds(job.given)
            found = {given: seconds for given, seconds in found.items() if seconds < float("inf")}
            values += [self.worth(job, given, seconds) for given, seconds in found.items()]
            sets += found
            first.append(len(sets))
        usage = np.zeros((len(sets), len(kinds)), dtype=np.int64)
        for row, given in enumerate(sets):
            for kind, count in given:
                usage[row, column[kind]] = count
        return Table(np.array(values), usage, np.array(first), sets)

    def worth(self, job: Job, given: Devices, seconds: float) -> float:
        """Of these devices to the job. `seconds`: of a step on them."""
        left = max(job.left * seconds, 1e-3)
        if given == job.given:
            return 1 / left
        cost = self._costs.start if not job.given else self._costs.change
        if job.given and total(given) > total(job.given):
            cost += self._costs.join * (1 - total(job.given) / total(given))
        horizon = min(self._horizon, left)
        return max(0.0, 1 - cost / horizon) / left if job.given else 1 / (left + cost)


def clear(table: Table, free: NDArray[np.int64]) -> NDArray[np.float64]:
    """Prices of the kinds at which jobs want no more than there is, each as low as the others allow."""
    prices = np.zeros(len(free))
    if not len(table.value):
        return prices
    rows = np.flatnonzero(np.diff(table.first))  # of jobs that have any options
    starts = table.first[rows]
    job_of_row = np.repeat(np.arange(len(rows)), np.diff(table.first)[rows])
    most = float((table.value / table.usage.sum(axis=1)).max())

    def wanted(kind: int, base: NDArray[np.float64], price: float) -> int:
        utility = base - price * table.usage[:, kind]
        best = np.maximum.reduceat(utility, starts)
        takes = (utility >= best[job_of_row]) & (utility > 0)
        # of options that are equally good, the one that asks for least
        need = np.where(takes, table.usage[:, kind], np.iinfo(np.int64).max)
        least = np.minimum.reduceat(need, starts)
        return int(least[best > 0].sum())

    for _ in range(ROUNDS):
        before = prices.copy()
        for kind in range(len(free)):
            others = prices.copy()
            others[kind] = 0.0
            base = table.value - table.usage @ others
            low, high = 0.0, most
            if wanted(kind, base, 0.0) <= free[kind]:
                prices[kind] = 0.0
                continue
            for _ in range(HALVINGS):
                middle = (low + high) / 2 if low > high / 64 else high / 8
                low, high = (middle, high) if wanted(kind, base, middle) > free[kind] else (low, middle)
            prices[kind] = high
        if np.array_equal(prices, before):
            break
    return prices


class Choice:
    """A row for each job, or none, that fit together. `free` is what is left; it is changed."""

    def __init__(self, table: Table, free: NDArray[np.int64]) -> None:
        self._table = table
        self._free = free
        self._row = [-1] * (len(table.first) - 1)

    def sets(self) -> list[Devices]:
        """What each job gets."""
        return [self._table.given[row] if row >= 0 else NOTHING for row in self._row]

    def _set(self, job: int, row: int) -> None:
        if self._row[job] >= 0:
            self._free += self._table.usage[self._row[job]]
        if row >= 0:
            self._free -= self._table.usage[row]
        self._row[job] = row

    def _best(self, job: int, room: NDArray[np.int64], value: NDArray[np.float64]) -> tuple[float, int]:
        """The best of a job's rows that fit: what it is worth, and which."""
        rows = self._table.rows(job)
        if rows.start == rows.stop:
            return 0.0, -1
        fits = np.where((self._table.usage[rows] <= room).all(axis=1), value[rows], -1.0)
        place = int(fits.argmax())
        return (float(fits[place]), rows.start + place) if fits[place] > 0 else (0.0, -1)

    def reserve(self, jobs: Sequence[int]) -> None:
        """Give each of these what is worth most for each of its devices, as far as there is something for them."""
        room = np.ceil(self._free * RESERVED).astype(np.int64)
        for job in jobs:
            rows = self._table.rows(job)
            if rows.start == rows.stop:
                continue
            sizes = self._table.usage[rows].sum(axis=1)
            fits = (self._table.usage[rows] <= room).all(axis=1)
            if fits.any():
                value = np.where(fits, self._table.value[rows] / sizes, -1.0)
                row = rows.start + int(value.argmax())
                room -= self._table.usage[row]
                self._set(job, row)

    def settle(self, prices: NDArray[np.float64]) -> None:
        """Each job takes what is best at these prices and still there: first those that gain most by it."""
        table = self._table
        priced = table.value - table.usage @ prices
        surplus = [float(priced[table.rows(job)].max(initial=0.0)) for job in range(len(self._row))]
        for job in sorted(range(len(self._row)), key=lambda job: -surplus[job]):
            if self._row[job] < 0:
                self._set(job, self._best(job, self._free, priced)[1])

    def improve(self) -> None:
        """As long as a job, or a pair of jobs, gains by something else."""
        for _ in range(4):
            before = list(self._row)
            self._improve_alone()
            if len(self._row) <= PAIRS:
                self._improve_in_pairs()
            if self._row == before:
                return

    def _improve_alone(self) -> None:
        table, gains = self._table, []
        for job, row in enumerate(self._row):
            room = self._free + (table.usage[row] if row >= 0 else 0)
            value, better = self._best(job, room, table.value)
            gain = value - (table.value[row] if row >= 0 else 0.0)
            if better != row and gain > 0:
                gains.append((-gain, job))
        for _, job in sorted(gains):
            row = self._row[job]
            room = self._free + (table.usage[row] if row >= 0 else 0)
            value, better = self._best(job, room, table.value)
            if value > (table.value[row] if row >= 0 else 0.0):
                self._set(job, better)

    def _improve_in_pairs(self) -> None:
        for one in range(len(self._row)):
            for other in range(one):
                self._improve_pair(one, other)

    def _improve_pair(self, one: int, other: int) -> None:
        """The best rows of two jobs with what both have and what is free."""
        table = self._table
        rows = [table.rows(one), table.rows(other)]
        room, now = self._free.copy(), 0.0
        for row in (self._row[one], self._row[other]):
            if row >= 0:
                room += table.usage[row]
                now += float(table.value[row])
        usage = [np.vstack([table.usage[r], np.zeros((1, len(room)), dtype=np.int64)]) for r in rows]
        value = [np.append(table.value[r], 0.0) for r in rows]
        fits = (usage[0][:, None, :] + usage[1][None, :, :] <= room).all(axis=2)
        both = np.where(fits, value[0][:, None] + value[1][None, :], -1.0)
        place = int(both.argmax())
        if both.flat[place] <= now * (1 + 1e-12):
            return
        first, second = divmod(place, both.shape[1])
        self._set(one, -1)
        self._set(other, -1)
        self._set(one, rows[0].start + first if first < len(value[0]) - 1 else -1)
        self._set(other, rows[1].start + second if second < len(value[1]) - 1 else -1)
