"""Our policy: devices have prices, and every job takes what is worth most to it at these prices.

The worth of a set of devices is how fast the job would come to its end on it: 1 / (seconds until it is done), less what
it costs to change. So a device goes where it shortens most: to the job that is done soonest with it, as shortest
remaining time first would have it, and of several kinds to the job for which the kind makes the greatest difference.

Prices are those at which jobs together want what there is (the multipliers of the capacities in the linear programme
over all jobs' options). At these prices each job can be looked at alone, which is why it is quick with thousands of
jobs. What does not come out even is given in order of what jobs would gain; then jobs and pairs of jobs are improved as
long as there is a gain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .jobs import NOTHING, Devices, Job, total
from .options import options
from .policy import Costs
from .prices import Choice, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .policy import Plan

HORIZON = 600.0
"""Seconds for which a job is thought to keep what it gets, unless it is done earlier: a change must pay within them."""

STAY = 0.1
"""By so much of its worth a set must be better than what a job has: rates are measured, and by noise alone plans would
change for ever. On Gavel's trace, with rates that are known, it makes no difference up to a fifth."""

INFINITE = np.array([float("inf")])
"""Seconds of a step without devices."""

PATIENCE, TURN = 4 * 3600.0, 3600.0
"""Seconds of waiting after which a job is given something whatever it is worth, and for how long."""

PROMISED, KEPT = 1e3, 1e6
"""Worth of what is guaranteed to a job, and of it if the job has it already, of the greatest worth of all: whatever
others would gain, and however many of them."""

RESERVED = 0.1
"""Share of each kind for jobs that go first whatever they are worth: who decides when everything is done, and who has
waited for long. With more of it most jobs are done later, and the last one no earlier. Rounded down: of few devices
none is set apart."""


class Market:
    """Prices.

    Args:
        costs: of changing. horizon, patience: seconds; stay: a share; see the constants.
    """

    name, rigid, at_once, every = "easyscale", False, True, 600.0

    def __init__(
        self,
        costs: Costs | None = None,
        horizon: float = HORIZON,
        patience: float = PATIENCE,
        stay: float = STAY,
    ) -> None:
        self._costs = costs or Costs()
        self._horizon = horizon
        self._patience = patience
        self._stay = stay

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        """See `Policy`."""
        kinds = sorted(kind for kind, count in capacity.items() if count)
        free = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
        plan: Plan = {}
        if not kinds:
            return plan
        for tier in sorted({job.priority for job in jobs}, reverse=True):
            self._tier([job for job in jobs if job.priority == tier], kinds, free, now, plan)
        return plan

    def _tier(self, jobs: list[Job], kinds: list[str], free: NDArray[np.int64], now: float, plan: Plan) -> None:
        """Plan the jobs of one priority, and take from `free` what they get."""
        order = sorted(jobs, key=lambda job: (job.arrived, job.name))
        table, given = self.table(order, kinds, free)
        chosen = Choice(table, free)
        self._share(order, table, chosen, now)
        self._fill(order, table, chosen, now)
        plan.update({job.name: given[row] for job, row in zip(order, chosen.rows, strict=True) if given[row]})

    def _share(self, jobs: list[Job], table: Table, chosen: Choice, now: float) -> None:
        """Give each tenant what its jobs can use of its share, which is the same for all; the rest is everybody's."""
        tenants = sorted({job.tenant for job in jobs})
        if len(tenants) < 2:
            return
        share = chosen.free // len(tenants)
        within = np.where((table.usage <= share).all(axis=1), table.value, 0.0)
        large = [place for place in self._starving(jobs, table, now) if not table.best(within)[place]][:1]
        chosen.reserve(large, self._spare(jobs, table, chosen), table.thrift)  # within a share its turn would not come
        share = chosen.free // len(tenants)
        for tenant in tenants:
            own = [place for place, job in enumerate(jobs) if job.tenant == tenant and place not in large]
            if own:
                part, rows = table.part(own)
                among = Choice(part, share.copy())
                self._fill([jobs[place] for place in own], part, among, now)
                chosen.take(own, rows[among.rows])

    def _fill(self, jobs: list[Job], table: Table, chosen: Choice, now: float) -> None:
        """Deal out what is left to jobs that have nothing, and let all gain what they can."""
        best = table.best(table.value)
        starving = self._starving(jobs, table, now)
        # The turn of one of them comes whatever it needs.
        chosen.reserve(starving[:1], self._spare(jobs, table, chosen), table.thrift)
        room = np.minimum((chosen.free * RESERVED).astype(np.int64), self._spare(jobs, table, chosen))
        room = chosen.reserve(self._critical(jobs, best, chosen.free), room, table.value)
        chosen.reserve(starving, room, table.thrift)
        chosen.settle()
        chosen.improve([job.tenant for job in jobs], fixed=starving)

    @staticmethod
    def _spare(jobs: list[Job], table: Table, chosen: Choice) -> NDArray[np.int64]:
        """What is left, less what is guaranteed to jobs that have nothing yet."""
        rest = Choice(table, chosen.free.copy())
        owed = [place for place, job in enumerate(jobs) if job.guaranteed and chosen.rows[place] == table.first[place]]
        owed.sort(key=lambda place: -table.thrift[table.rows(place)].max())
        rest.reserve(owed, rest.free.copy(), table.thrift)  # the fewest devices that will do
        return rest.free

    @staticmethod
    def _critical(jobs: list[Job], best: NDArray[np.float64], free: NDArray[np.int64]) -> list[int]:
        """Jobs that would still run when all others were done, the longest first.

        A job that takes longer than all work takes all devices decides when everything is done. It costs the others
        little to let it run, since it cannot use many devices: else it would not take that long.
        """
        able = np.flatnonzero(best > 0).tolist()
        alone = 1 / np.maximum(best, 1e-12)
        work = sum(job.left * job.shape.ests * job.shape.rates.fastest for job in jobs if job.shape.rates.paces)
        together = work / max(1, int(free.sum()))
        return sorted((place for place in able if alone[place] > together), key=lambda place: -alone[place])

    def _starving(self, jobs: list[Job], table: Table, now: float) -> list[int]:
        """Jobs that have a turn and could use it, the eldest first. To whom something is guaranteed, that is enough."""
        able = table.best(table.value) > 0
        turns = [place for place, job in enumerate(jobs) if not job.guaranteed and self._starves(job, now)]
        return [place for place in turns if able[place]]

    def _starves(self, job: Job, now: float) -> bool:
        """Whether it has a turn for having waited: as many as it has lost patience, and it is in none of these yet."""
        waited = now - job.arrived - job.ran
        return waited > self._patience * (1 + job.ran // TURN)

    def table(self, jobs: list[Job], kinds: list[str], free: NDArray[np.int64]) -> tuple[Table, list[Devices]]:
        """What they could have, and the sets of devices of its rows."""
        nothing, there = np.zeros((1, len(kinds)), dtype=np.int64), free.tolist()
        seconds, usages, first, kept = [], [], [], []
        given: list[Devices] = []
        for job in jobs:
            sheet = options(job.shape, kinds, there)
            first.append(len(given))
            given += [NOTHING, *sheet.given]
            seconds += [INFINITE, sheet.seconds]
            usages += [nothing, sheet.usage]
            if not job.given:
                continue
            if job.given in sheet.place:
                kept.append(first[-1] + 1 + sheet.place[job.given])
            elif (_counted(job.given, kinds) <= free).all():
                kept.append(len(given))
                given.append(job.given)
                seconds.append(np.array([job.shape.step_seconds(job.given)]))
                usages.append(_counted(job.given, kinds)[None])
        table = Table(np.concatenate(seconds), np.concatenate(usages), np.array(first))
        return replace(table, value=self._worth(jobs, kinds, table, np.array(kept, dtype=np.int64))), given

    def _worth(self, jobs: list[Job], kinds: list[str], table: Table, kept: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of sets of devices to jobs.

        Args:
            table: its values are the seconds of a step. kept: rows of what jobs have already.
        """
        steps = np.array([job.left for job in jobs])[table.owner]
        has = np.array([total(job.given) for job in jobs])[table.owner]
        left = np.maximum(steps * table.value, 1e-3)
        of_kinds = np.array([[dict(job.given).get(kind, 0) for kind in kinds] for job in jobs])[table.owner]
        joining = 1 - np.minimum(of_kinds, table.usage).sum(axis=1) / np.maximum(table.usage.sum(axis=1), 1)
        cost = self._costs.change + self._costs.join * joining
        changed = 1 / (left * (1 + cost / np.minimum(self._horizon, left)))
        worth = np.where(has > 0, changed, 1 / (left + self._costs.start))
        worth[kept] = (1 + self._stay) / left[kept]
        return worth + _promised(jobs, table, has, worth)


def _promised(jobs: list[Job], table: Table, has: NDArray[np.int64], worth: NDArray[np.float64]) -> NDArray[np.float64]:
    """What sets are worth more since so many devices are guaranteed to their job, which has some already.

    Of three, when the third is of no use, two are.
    """
    if not any(job.guaranteed for job in jobs):
        return np.zeros(len(worth))
    devices = table.usage.sum(axis=1)
    guaranteed = np.array([job.guaranteed for job in jobs])[table.owner]
    useful = table.best(np.where(devices <= guaranteed, devices, 0).astype(np.float64))[table.owner]
    guaranteed = np.where(useful > 0, useful, guaranteed)
    enough = (guaranteed > 0) & (devices >= guaranteed) & (worth > 0)
    return np.where(enough, np.where(has >= guaranteed, KEPT, PROMISED) * worth.max(initial=0.0), 0.0)


def _counted(given: Devices, kinds: Sequence[str]) -> NDArray[np.int64]:
    """How many of each of these kinds; more than anybody has if there are others among them."""
    counts = dict(given)
    known = sum(counts.get(kind, 0) for kind in kinds) == total(given)
    return np.array([counts.get(kind, 0) if known else 1 << 40 for kind in kinds], dtype=np.int64)
