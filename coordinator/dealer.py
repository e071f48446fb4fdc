"""Asks a policy which devices each job should have: what the coordinator sees, in a policy's words, and back. Pure but
for what it remembers: since when it has seen a job, for how long jobs have had workers, and the last plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from . import probes, records, room, throughput
from .scheduling.jobs import NOTHING, Job, Rates, Shape, devices
from .split import Pace
from .willing import willing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .attempts import Alive
    from .scheduling.policy import Plan, Policy
    from .views import Entry, JobView

UNKNOWN = records.Rate(1.0)
"""How fast jobs are thought to be while nothing is known of any."""

Dealt = dict[str, Counter[str]]
"""Workers by job and kind."""


@dataclass(slots=True)
class Dealer:
    """Remembers, and asks when there is a reason to."""

    policy: Policy
    _seen: dict[str, float] = field(default_factory=dict)
    _ran: dict[str, float] = field(default_factory=dict)
    _looked: float | None = None
    _asked: float = float("-inf")
    _asked_about: object = None
    _plan: Plan = field(default_factory=dict)

    def deal(
        self,
        jobs: Sequence[JobView],
        pool: Mapping[str, str],
        alive: Alive,
        assigned: Mapping[str, Entry[str]],
        now: float,
    ) -> Dealt:
        """How many workers of which kind each job should have.

        Args:
            jobs: those that can run now. pool: the kind of each worker that can serve, as `kinds` gives it.
        """
        self._remember(jobs, now)
        guess = _guess(jobs)
        seen = [self._job(job, guess, pool, alive, assigned) for job in jobs]
        able = [job for job in seen if job.shape.rates.paces]
        about = (
            sorted(pool.items()),
            [(job.name, job.shape, job.priority, job.tenant, job.guaranteed) for job in able],
        )
        changed = about != self._asked_about and (self.policy.at_once or self._short(pool))
        if changed or self._due(able, now):
            self._plan = self.policy.plan(Counter(pool.values()), able, now)
            self._asked, self._asked_about = now, about
        return {job.name: Counter(dict(self._plan.get(job.name, NOTHING))) for job in jobs}

    def _short(self, pool: Mapping[str, str]) -> bool:
        """Whether devices that were dealt out are not there any more, or not of that kind."""
        dealt = Counter[str]()
        for given in self._plan.values():
            dealt.update(dict(given))
        return not dealt <= Counter(pool.values())

    def _due(self, able: Sequence[Job], now: float) -> bool:
        """Whether the policy is to be asked again for the time that has passed."""
        waits = any(self._plan.get(job.name, NOTHING) == NOTHING for job in able)
        return now >= self._asked + self.policy.every and (waits or not self.policy.at_once)

    def _remember(self, jobs: Sequence[JobView], now: float) -> None:
        names = {job.name for job in jobs}
        for memory in (self._seen, self._ran):
            for name in memory.keys() - names:
                del memory[name]
        passed = 0.0 if self._looked is None else now - self._looked  # clocks begin when a machine is started
        for job in jobs:
            self._seen.setdefault(job.name, now)
            if job.members:
                self._ran[job.name] = self._ran.get(job.name, 0.0) + passed
        self._looked = now

    def _job(
        self,
        job: JobView,
        guess: records.Rate,
        pool: Mapping[str, str],
        alive: Alive,
        assigned: Mapping[str, Entry[str]],
    ) -> Job:
        spec, rates = job.record, throughput.known(job)
        probed = probes.by_kind(spec.spec, [*pool], alive)
        known = probes.fill(rates.kinds if rates is not None else {}, probed, guess)
        mean = throughput.mean_rate(known.values()) if known else guess
        paces: dict[str, Pace] = {}
        models: dict[str, str] = {}
        for worker in (w for w in pool if willing(alive[w], job)):
            kind, model = pool[worker], throughput.kind_of(alive[worker])
            rate = known.get(model, mean)
            most = room.of_worker(rate, alive[worker], job.name, spec.spec)
            if most:  # of devices of one kind, the one with the least memory counts: which the job gets is not known
                paces[kind] = Pace(rate.est, rate.fixed, min(most, paces[kind].most if kind in paces else most))
                models[kind] = model
        shape = Shape(
            rates=Rates(tuple(sorted(paces.items())), _exchange(rates)),
            ests=spec.ests,
            least=spec.min_workers,
            most=min(spec.ests, spec.max_workers or spec.ests),
            mixes=spec.numerics == "exact",
            classes=tuple(sorted((kind, model) for kind, model in models.items() if kind != model)),
        )
        mine = Counter(pool[w] for w, entry in assigned.items() if entry.value == job.name and w in pool)
        done = max(job.base[0], job.progress.value.step if job.progress else 0)
        return Job(
            name=job.name,
            shape=shape,
            left=float(max(1, spec.steps - done)),
            priority=spec.priority,
            tenant=spec.tenant,
            arrived=self._seen[job.name],
            ran=self._ran.get(job.name, 0.0),
            given=devices(mine),
            guaranteed=spec.guaranteed_workers,
        )


def _guess(jobs: Sequence[JobView]) -> records.Rate:
    """Of a job of which nothing is known: as fast as the fastest that is. So it soon has its turn, and is measured."""
    known = [rates for job in jobs if (rates := throughput.known(job)) is not None]
    return min((rate for rates in known for rate in rates.kinds.values()), key=lambda rate: rate.est, default=UNKNOWN)


def _exchange(rates: records.Rates | None) -> float:
    """See `scheduling.jobs.Rates`."""
    sizes = [(throughput.exchange_of(key)[1], seconds) for key, seconds in (rates.exchange if rates else {}).items()]
    found = [seconds * size / (size - 1) for size, seconds in sizes if size > 1]
    return median(found) if found else 0.0
