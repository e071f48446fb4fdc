"""How fast workers are for a job and what it takes of their memory, learned from what they say of their steps. Pure.

A step takes `max(fixed + n * est) + exchange` seconds: `est` and `fixed` are those of a kind of device, `est` times the
worker's own factor where that is far from its kind, `exchange` is that of a lane and a number of members. What decides
is only the record that is kept of it (`records.Rates`), so a successor decides as its predecessor did; the samples
behind it are in memory, and are taken anew. A number in the record moves only when the samples say clearly that it is
wrong, so that noise moves nothing: steps in production have a coefficient of variation of 0.1, but of 1.1 for one job
in ten, hence medians. Leaves to others: what is thought of kinds that were not measured (`probes.py`), what follows
from it (`arrangement.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, isfinite, log, sqrt
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING

import msgspec

from . import keys, records
from .kv import Put, absent, unchanged
from .transactions import Txn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from .attempts import Alive
    from .views import JobView

KEPT = 256
"""Reports of a worker that are remembered; there is about one a second."""

KEPT_REST = 64
"""Of what need not be known as well."""

RECENT = 24
"""The newest reports: if they say something else than the older ones, the worker has changed, and those are dropped."""

CHANGED, CHANGED_ERRORS = 0.25, 5.0
"""By how much they do: at least so much, and so many standard errors, since this is asked every second for days."""

FEW = 16
"""Of so few samples, the median deviation may be small by chance."""

MIN_REPORTS = 4
"""Fewer say nothing."""

CLEAR = 3.0
"""Standard errors by which samples must be off the record for it to move."""

MOVED = 0.1
"""And how much at least; of `fixed` and of exchanges, this part of a step; of memory, this part of what a job takes."""

MAX_ERROR = 0.15
"""What is measured less exactly than this is not measured yet."""

NOTICED, FORGIVEN = 1.5, 1.25
"""A worker gets a factor of its own from the first on, and loses it below the second."""

SUSTAINED_SECONDS = 3.0
"""How long either must have been so. The medians have their own inertia: half of `RECENT` must have changed."""

LOOK_SECONDS, WRITE_SECONDS = 1.0, 3.0
"""Between two looks at what a job's record should be, and between two writes of it."""

EXPLORE_SECONDS = 3600.0
"""After this long, what is not measured any more is forgotten, so that it is tried again: an exchange of so many, or
the factor of a worker that serves nobody because of it. Networks and devices can get better."""

MOST_SECONDS = 1e6
"""What takes longer was not measured by a clock."""

MOST_BYTES = 1 << 50
"""What takes more is in no device's memory."""

MOST_KINDS, MOST_EXCHANGES, MOST_FACTORS, MOST_NAME = 32, 32, 128, 200
"""What a record has room for; and characters of a kind's name."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median, its relative standard error, and of how many samples it is."""

    value: float
    error: float
    count: int

    def clearly(self, by: float) -> bool:
        """Whether a relative difference is more than noise."""
        return abs(by) > CLEAR * self.error


UNKNOWN = Estimate(0.0, 0.0, 0)


def estimate(logs: Iterable[float]) -> Estimate:
    """Of samples given by their logarithms, at least one; outliers do not matter.

    The error is that of a normal distribution's median.
    """
    samples = list(logs)
    middle, count = median(samples), len(samples)
    return Estimate(exp(middle), _error(_spread(samples, middle), count), count)


def _spread(samples: Sequence[float], middle: float) -> float:
    """The standard deviation, by the median of absolute deviations; of few samples, that of all but the worst."""
    off = sorted(abs(sample - middle) for sample in samples)
    if len(off) >= FEW:
        return 1.4826 * median(off)
    kept = off[:-1] if len(off) >= 6 else off
    return sqrt(sum(each * each for each in kept) / max(1, len(kept) - 1))


def _error(spread: float, count: int) -> float:
    """Of a median of so many: more for few, which may be close to each other by chance."""
    return 1.2533 * spread / sqrt(count) * (1 + 4 / count)


@dataclass(slots=True)
class _Samples:
    """What a worker has said. `ests` are logarithms; `exchanges` and `steps` are of its newest generation only."""

    generation: int = 0
    step: int = 0
    ests: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    fixed: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_REST))
    exchanges: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_REST))
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_REST))
    est: Estimate = field(default=UNKNOWN)
    """Seconds of one EST."""
    off_since: float | None = None
    """Since when its factor should be another one."""
    memory: records.Footprint | None = None
    """The newest word of it."""

    def take(self, progress: records.Progress, ests: int) -> None:
        """Take in a report of a member with so many ESTs."""
        if (progress.generation, progress.step) <= (self.generation, self.step):
            return  # told again
        if progress.generation > self.generation:
            self.exchanges.clear()
            self.steps.clear()
        self.generation, self.step = progress.generation, progress.step
        if progress.memory is not None and _sane_bytes(progress.memory):
            self.memory = progress.memory
        compute, exchange, step = progress.compute_seconds, progress.exchange_seconds, progress.step_seconds
        if compute is None or exchange is None or not (_sane(compute) and _sane(step) and _sane(exchange)):
            return
        rest = step - compute - exchange
        first = progress.step <= progress.started + 1  # warms up: caches, libraries, the first allocation
        if compute <= 0.0 or rest < -1e-4 or first:
            return
        self.ests.append(log(compute / ests))
        self.fixed.append(max(0.0, rest))
        self.exchanges.append(exchange)
        self.steps.append(step)
        self._forget_what_was()
        self.est = estimate(self.ests)

    def _forget_what_was(self) -> None:
        if len(self.ests) < RECENT + MIN_REPORTS:
            return
        samples = list(self.ests)
        middle = median(samples)
        by = abs(median(samples[-RECENT:]) - middle)
        if by > CHANGED and by > CHANGED_ERRORS * _error(_spread(samples, middle), RECENT):
            for kept in (self.ests, self.fixed):
                while len(kept) > RECENT // 2:
                    kept.popleft()

    @property
    def measured(self) -> bool:
        """Whether there is enough to judge by."""
        return self.est.count >= MIN_REPORTS and self.est.error <= MAX_ERROR


def _sane(seconds: float) -> bool:
    return isfinite(seconds) and 0.0 <= seconds <= MOST_SECONDS


def _sane_bytes(told: records.Footprint) -> bool:
    return 0 < told.peak <= MOST_BYTES and 0 <= told.est <= MOST_BYTES and told.ests >= 1


class Throughput:
    """The samples of all jobs, and what they would have recorded."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, _Samples]] = {}
        self._specs: dict[str, str] = {}
        """By job: the specification that its samples are of."""
        self._looks: dict[str, tuple[float, float]] = {}
        """By job: when to look next, and when to write at the earliest."""
        self._measured: dict[tuple[str, str], float] = {}
        """When an exchange or a factor of a job was last measured, or first seen by us."""

    def forget(self, jobs: Mapping[str, JobView]) -> None:
        """Nothing need be remembered of jobs that are over or gone."""
        for name in [name for name in self._samples if name not in jobs or jobs[name].over]:
            del self._samples[name], self._specs[name]
            self._looks.pop(name, None)
            for pair in [pair for pair in self._measured if pair[0] == name]:
                del self._measured[pair]

    def learn(self, job: JobView, alive: Alive, now: float, hints: Mapping[str, float] | None = None) -> list[Txn]:
        """Take in what members have said; what to write because of it, if anything.

        Args:
            hints: factors that workers of kinds which were never measured are thought to have. They are recorded with
                the first rate of their kind, until their own steps say something else: or else ranges would be even
                from the first rate on, and follow a second time when the factors are measured.
        """
        samples = self._hear(job, alive)
        look, write = self._looks.get(job.name, (now, now))
        if not samples or now < look:
            return []
        self._looks[job.name] = now + LOOK_SECONDS, write
        recorded = known(job) or records.Rates(spec=job.record.spec)
        before = msgspec.structs.replace(recorded, factors={**(hints or {}), **recorded.factors})
        kinds = self._kinds(before, samples, alive, job.record.ests)
        had = {
            worker: by for worker, by in before.factors.items() if worker in alive and kind_of(alive[worker]) in kinds
        }
        factors = self._factors(job, had, kinds, samples, alive, now)
        exchange = self._exchange(job, before, samples, now)
        after = _bounded(records.Rates(spec=before.spec, kinds=kinds, exchange=exchange, factors=factors), alive)
        if after == recorded or now < write:
            return []
        self._looks[job.name] = now + LOOK_SECONDS, now + WRITE_SECONDS
        key = keys.rates(job.name)
        compares = (
            unchanged(job.rates.kv) if job.rates else absent(key),
            unchanged(job.spec.kv) if job.spec else absent(keys.spec(job.name)),
        )
        return [Txn(f"rates {job.name}", compares, (Put(key, records.encode(after)),))]

    def _hear(self, job: JobView, alive: Alive) -> dict[str, _Samples]:
        """The samples of those members that are measured."""
        if self._specs.get(job.name) != job.record.spec:
            self._samples[job.name], self._specs[job.name] = {}, job.record.spec
        samples = self._samples[job.name]
        for worker in [worker for worker in samples if worker not in alive]:
            del samples[worker]
        for member in job.members:
            record = alive.get(member.worker)
            progress = record.progress if record is not None and record.job == job.name else None
            if progress is not None and progress.generation == job.generation:  # else of other ranges
                samples.setdefault(member.worker, _Samples()).take(progress, member.last - member.first)
        mine = [member.worker for member in job.members]
        return {worker: samples[worker] for worker in mine if worker in samples and samples[worker].measured}

    def _kinds(
        self, before: records.Rates, samples: Mapping[str, _Samples], alive: Alive, ests: int
    ) -> dict[str, records.Rate]:
        """By kind: what the better half of its workers can do, those left out that have a factor of their own."""
        kinds = dict(before.kinds)
        for kind in sorted({kind_of(alive[worker]) for worker in samples}):
            here = [w for w in samples if kind_of(alive[w]) == kind and w not in before.factors]
            if not here and kind in kinds:
                continue
            here = here or [w for w in samples if kind_of(alive[w]) == kind]
            est = sorted((samples[w].est for w in here), key=lambda found: found.value)[(len(here) - 1) // 2]
            fixed = median_low(median(samples[w].fixed) for w in here)
            old = kinds.get(kind) or records.Rate(0.0)
            by = est.value / old.est - 1 if old.est else float("inf")
            step = median_low(median(samples[w].steps or [est.value]) for w in here)
            rate = old
            if abs(by) > MOVED and est.clearly(by):
                rate = msgspec.structs.replace(old, est=_short(est.value), fixed=_short(fixed))
            elif abs(fixed - old.fixed) > MOVED * max(step, est.value):
                rate = msgspec.structs.replace(old, fixed=_short(fixed))
            kinds[kind] = _taking(rate, [told for w in here if (told := samples[w].memory) is not None], ests)
        return kinds

    def _factors(
        self,
        job: JobView,
        had: Mapping[str, float],
        kinds: Mapping[str, records.Rate],
        samples: Mapping[str, _Samples],
        alive: Alive,
        now: float,
    ) -> dict[str, float]:
        """Who is far from its kind, and has been for a while; ids of workers that are gone mean nothing any more."""
        factors = dict(had)
        for worker in self._stale(job, factors, samples, now):
            del factors[worker]
            self._samples[job.name].pop(worker, None)
        for worker, mine in samples.items():
            est, own = mine.est, factors.get(worker)
            ratio = est.value / kinds[kind_of(alive[worker])].est
            off = max(ratio, 1 / ratio)
            if own is None:
                due = off >= NOTICED and est.clearly(off - 1)
            else:
                due = off <= FORGIVEN or (abs(ratio / own - 1) > 2 * MOVED and est.clearly(ratio / own - 1))
            if not due:
                mine.off_since = None
                continue
            mine.off_since = now if mine.off_since is None else mine.off_since
            if now - mine.off_since >= SUSTAINED_SECONDS:
                if off <= FORGIVEN:
                    del factors[worker]
                else:
                    factors[worker] = _short(ratio)
        return factors

    def _exchange(
        self, job: JobView, before: records.Rates, samples: Mapping[str, _Samples], now: float
    ) -> dict[str, float]:
        """The least that any member says: it was the last to have computed, so it waited for nobody.

        Members rarely tell of the same step, so it is the least of each over many steps, the very least left out.
        """
        exchange = dict(before.exchange)
        size = len(job.members)
        if size > 1 and job.plan is not None and all(m.worker in samples for m in job.members):
            here = [samples[m.worker] for m in job.members if len(samples[m.worker].exchanges) >= MIN_REPORTS]
            if len(here) == size:
                key = exchange_key(job.plan.value.lane, size)
                seconds = min(sorted(one.exchanges)[len(one.exchanges) // 10] for one in here)
                step = median_low(median(one.steps) for one in here)
                self._measured[job.name, key] = now
                if key not in exchange or abs(seconds - exchange[key]) > MOVED * step:
                    exchange[key] = _short(seconds)
        for key in self._stale(job, exchange, (), now):
            del exchange[key]
        return exchange

    def _stale(self, job: JobView, names: Iterable[str], measured: Collection[str], now: float) -> list[str]:
        """Which of these have not been measured for too long; `measured` are just now."""
        found = []
        for name in names:
            if name in measured:
                self._measured[job.name, name] = now
            elif now - self._measured.setdefault((job.name, name), now) > EXPLORE_SECONDS:
                del self._measured[job.name, name]
                found.append(name)
        return found


def _taking(rate: records.Rate, told: Sequence[records.Footprint], ests: int) -> records.Rate:
    """The same with the memory of the worker that says the most, if what a job of so many ESTs takes is clearly other.

    It is counted, not timed, so it has no errors; but a process takes now a little more and now a little less.
    """
    if not told:
        return rate
    memory = max(max(1, one.peak - one.ests * one.est) for one in told)
    est = max(one.est for one in told)
    whole = rate.memory + ests * rate.est_bytes
    same = abs(memory - rate.memory) <= MOVED * whole and ests * abs(est - rate.est_bytes) <= MOVED * whole
    return rate if same else msgspec.structs.replace(rate, memory=memory, est_bytes=est)


def known(job: JobView) -> records.Rates | None:
    """What is known of the job as it is specified now."""
    rates = job.rates.value if job.rates else None
    if rates is None or job.spec is None or rates.spec != job.spec.value.spec:
        return None
    return rates if all(rate.est > 0.0 for rate in rates.kinds.values()) else None


def kind_of(record: records.WorkerRecord) -> str:
    """The name under which a worker's kind is known."""
    return record.kind[:MOST_NAME]


def exchange_key(lane: str, size: int) -> str:
    """The name under which an exchange is known."""
    return f"{lane} {size}"


def exchange_of(key: str) -> tuple[str, int]:
    """The lane and the number of members that it is of."""
    lane, _, size = key.rpartition(" ")
    return lane, int(size)


def mean_rate(rates: Iterable[records.Rate]) -> records.Rate:
    """How fast an unknown kind is thought to be, by those that are known: at least one."""
    known = list(rates)
    return records.Rate(fmean(rate.est for rate in known), fmean(rate.fixed for rate in known))


def _short(seconds: float) -> float:
    """What is worth writing down."""
    return float(f"{seconds:.4g}")


def _bounded(rates: records.Rates, alive: Alive) -> records.Rates:
    """Not more than fits: kinds that are here first, sizes as few as are left, the factors furthest from 1."""
    here = {kind_of(record) for record in alive.values()}
    kinds = sorted(rates.kinds.items(), key=lambda item: (item[0] not in here, item[0]))[:MOST_KINDS]
    sizes = sorted(rates.exchange.items(), key=lambda item: exchange_of(item[0])[1])
    step = max(1, -(-len(sizes) // MOST_EXCHANGES))
    factors = sorted(rates.factors.items(), key=lambda item: (-abs(log(item[1])), item[0]))[:MOST_FACTORS]
    return records.Rates(
        spec=rates.spec, kinds=dict(kinds), exchange=dict(sizes[::step]), factors=dict(sorted(factors))
    )
