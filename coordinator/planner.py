"""The coordinator's mind: from a picture of the store to the transactions that should follow. No I/O, no clock.

Guarantees: one transaction per job and decision, conditional on everything it was decided from; generations only go
up; an attempt is counted in the same transaction that starts the next one; a job without workers waits and says for
what. Leaves to others: leadership (`coordinator.py`), how ranges are cut (`ranges.py`), claims (`pipeline/agent.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from . import keys, ranges, reasons, records
from .kv import Compare, Delete, Put, absent, unchanged
from .transactions import Txn

if TYPE_CHECKING:
    from .views import Entry, JobView, View

STALE_SECONDS = 15.0
"""A worker whose record has not changed for this long is taken for gone, whatever its lease says."""

CLAIM_SECONDS = 10.0
"""A member that has not claimed its slot this long after the plan was made is passed over."""

SETTLE_SECONDS = 3.0
"""How long growth waits for other workers that are still preparing, so that they join in one generation."""

KEPT_RECOVERIES = 50

KEPT_DAMAGE = 50

MAX_COUNTED = 32
"""Reports and claims dealt with one by one in a transaction: etcd takes 128 operations in one."""

CHARGED: dict[records.Cause, str] = {"died": "died", "hang": "died", "raised": "raised"}
"""Which purse an ended attempt is charged to; other causes are free."""


@dataclass(slots=True)
class _Seen:
    """A value and since when it has been like that, on our own clock."""

    value: object
    since: float


@dataclass(slots=True)
class _Loss:
    """A loss that the job has not yet got over, counted from the last sign of life of those lost."""

    since: float
    cause: str
    generation: int
    last_step: int


@dataclass(slots=True)
class Planner:
    """Decides for all jobs; remembers only what it has observed, so a successor can start with nothing.

    Args:
        stale, claim_patience, settle: seconds; see the constants.
    """

    stale: float = STALE_SECONDS
    claim_patience: float = CLAIM_SECONDS
    settle: float = SETTLE_SECONDS
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _claimed: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    _passed_over: dict[tuple[str, str], float] = field(default_factory=dict)
    _losses: dict[str, _Loss] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def decide(self, view: View, now: float) -> list[Txn]:
        """The transactions that this picture calls for."""
        alive = self._alive(view, now)
        jobs = sorted(
            (job for job in view.jobs.values() if job.spec is not None),
            key=lambda job: (-_spec(job).priority, job.spec.kv.create_revision if job.spec else 0),
        )
        allotted = self._allot(view, jobs, alive)
        txns = [txn for job in jobs for txn in self._decide_job(job, allotted[job.name], alive, now)]
        return txns + _assign(view, allotted)

    # ---- observation

    def _since(self, what: str, value: object, now: float) -> float:
        """Seconds for which `what` has had this value, as far as we have seen."""
        seen = self._seen.get(what)
        if seen is None or seen.value != value:
            seen = self._seen[what] = _Seen(value, now)
        return now - seen.since

    def _alive(self, view: View, now: float) -> dict[str, records.WorkerRecord]:
        alive = {
            worker: entry.value
            for worker, entry in view.workers.items()
            if self._since(entry.kv.key, entry.kv.mod_revision, now) < self.stale
        }
        members = {member.worker for job in view.jobs.values() for member in job.members}
        known = {keys.worker(worker) for worker in members | view.workers.keys()}
        for key in [key for key in self._seen if key.startswith(keys.WORKERS) and key not in known]:
            del self._seen[key]
        self._left = (self._left & members) | {worker for worker, record in alive.items() if record.leaving}
        return alive

    # ---- between jobs

    def _allot(self, view: View, jobs: list[JobView], alive: dict[str, records.WorkerRecord]) -> dict[str, list[str]]:
        """Which workers serve which job. Workers stay where they are unless another job is entitled to them."""
        pool = sorted(worker for worker, record in alive.items() if not record.leaving)
        runnable = [job for job in jobs if not job.over and job.desired == "running"]
        wants = []
        for job in runnable:
            spec = _spec(job)
            willing = sum(1 for worker in pool if _willing(alive[worker], job))
            most = min(spec.ests, spec.max_workers or spec.ests, willing)
            wants.append((spec.min_workers, most) if most >= spec.min_workers else (0, 0))
        counts = ranges.shares(len(pool), wants)
        allotted: dict[str, list[str]] = {job.name: [] for job in jobs}
        for job in jobs:  # a paused job keeps its workers until its members have committed and let go
            if job.desired == "paused" and not job.over and job.claims:
                allotted[job.name] = [member.worker for member in job.members if member.worker in alive]
        taken = {worker for workers in allotted.values() for worker in workers}
        for keep in (True, False):
            for job, count in zip(runnable, counts, strict=True):
                mine = allotted[job.name]
                order = [member.worker for member in job.members] if keep else []
                rest = [w for w in pool if not keep or _assigned(view, w) == job.name]
                rest.sort(key=lambda w: alive[w].only is None)  # those that can serve nobody else come first
                for worker in [w for w in order if w in rest] + rest:
                    if len(mine) >= count:
                        break
                    if worker not in taken and _willing(alive[worker], job):
                        mine.append(worker)
                        taken.add(worker)
        return allotted

    # ---- within a job

    def _decide_job(
        self, job: JobView, allotted: list[str], alive: dict[str, records.WorkerRecord], now: float
    ) -> list[Txn]:
        if len(job.reports) > MAX_COUNTED:  # the rest is for the next decisions
            job = replace(job, reports=dict(sorted(job.reports.items())[:MAX_COUNTED]))
        status = job.status.value if job.status else records.Status()
        lost = self._lost(job, alive, now)
        hold = self._hold(job, lost, allotted, alive, now)
        if hold:
            lost = {}  # their generation goes on: they are counted when it ends, and only then
        status = self._count(job, status, lost, alive, now)
        status = self._finish(job, status, now)
        members = self._members(job, status, allotted, alive, lost, hold, now)
        status = self._explain(job, status, members if members is not None else job.members, allotted, alive)
        operations: list[Put | Delete] = [
            Delete(entry.kv.key) for entry in job.reports.values() if _counted(job, entry.value, lost)
        ]
        if members is not None:
            plan = records.Plan(
                generation=job.generation + 1, members=members, cause=reasons.cause_of_change(job, members, lost)
            )
            operations.append(Put(keys.plan(job.name), records.encode(plan)))
            # A lost member's claim may outlive it (an election restarts leases): its peers must not wait for it.
            gone = [slot for slot, m in enumerate(job.members) if m.worker in lost and slot in job.claims]
            if len(gone) > MAX_COUNTED:  # all of them, then: it costs the survivors one step
                operations.append(Delete(keys.generation_claims(job.name, job.generation), prefix=True))
            else:
                operations += [Delete(keys.claim(job.name, job.generation, slot)) for slot in gone]
        if job.status is None or status != job.status.value:
            operations.append(Put(keys.status(job.name), records.encode(status)))
        if not operations:
            return []
        compares = [_as_read(job.plan, keys.plan(job.name)), _as_read(job.status, keys.status(job.name))]
        compares.append(unchanged(job.wish) if job.wish else absent(keys.desired(job.name)))
        compares += [unchanged(entry.kv) for entry in job.reports.values()]
        return [Txn(f"decide {job.name}", tuple(compares), tuple(operations))]

    def _lost(self, job: JobView, alive: dict[str, records.WorkerRecord], now: float) -> dict[str, records.Cause]:
        """Members of the current generation that cannot take part any more, and why."""
        lost: dict[str, records.Cause] = {}
        claims, claimed = job.claims, self._seen_claims(job)
        age = self._since(keys.plan(job.name), job.generation, now)
        for slot, member in enumerate(job.members):
            report, record = job.reports.get(member.worker), alive.get(member.worker)
            if report is not None:
                lost[member.worker] = report.value.cause
            elif record is None:
                lost[member.worker] = "preempted" if member.worker in self._left else "died"
            elif slot in claims or job.desired == "paused":
                continue
            elif slot in claimed:
                lost[member.worker] = "preempted"  # it let go, or lost its lease and is back
            elif age > self.claim_patience and record.state != "running":
                # one that still runs an older generation is in the middle of a step: its agent watches it
                lost[member.worker] = "hang"
                self._passed_over[job.name, member.worker] = now
        return lost

    def _seen_claims(self, job: JobView) -> set[int]:
        """Slots of the current generation that were claimed at some time."""
        generation, slots = self._claimed.get(job.name, (0, set()))
        if generation != job.generation:
            slots = set()
        slots |= {s for s, c in job.claims.items() if c.value.worker == job.members[s].worker}
        self._claimed[job.name] = job.generation, slots
        return slots

    def _count(
        self,
        job: JobView,
        status: records.Status,
        lost: dict[str, records.Cause],
        alive: dict[str, records.WorkerRecord],
        now: float,
    ) -> records.Status:
        """Charge what ended, begin to time the recovery, and fail the job when a purse is empty."""
        if job.over or job.desired == "cancelled":
            return status
        causes: list[tuple[str, records.Cause]] = list(lost.items())
        causes += [
            (worker, entry.value.cause)
            for worker, entry in job.reports.items()
            if worker not in lost and _counted(job, entry.value, lost)
        ]
        if not causes:
            return status
        if lost:
            self._begin_recovery(job, lost, alive, now)
        attempts = dict(status.attempts)
        for _, cause in causes:
            attempts[cause] = attempts.get(cause, 0) + 1
        reached = _reached(job)
        streak = dict(status.streak) if reached <= status.streak_step else {}
        for purse in {CHARGED[cause] for _, cause in causes if cause in CHARGED}:
            streak[purse] = streak.get(purse, 0) + 1
        status = _replace(status, attempts=attempts, streak=streak, streak_step=max(reached, status.streak_step))
        return self._judge(job, status, causes)

    def _judge(self, job: JobView, status: records.Status, causes: list[tuple[str, records.Cause]]) -> records.Status:
        retries = _spec(job).retries
        budget = {"died": retries.died, "raised": retries.raised}
        for worker, cause in causes:
            purse = CHARGED.get(cause)
            spent = purse is not None and status.streak.get(purse, 0) > budget[purse]
            if not spent and cause not in records.FINAL:
                continue
            report = job.reports[worker].value if worker in job.reports else None
            failure = records.Failure(
                cause=cause,
                step=report.step if report else _reached(job),
                worker=worker,
                message=report.message if report else "the worker vanished (its lease ended)",
                traceback=report.traceback if report else "",
            )
            return _replace(status, state="failed", reason=reasons.failed_because(failure, status), failure=failure)
        return status

    def _begin_recovery(
        self,
        job: JobView,
        lost: dict[str, records.Cause],
        alive: dict[str, records.WorkerRecord],
        now: float,
    ) -> None:
        if job.name in self._losses or all(cause == "preempted" for cause in lost.values()):
            return
        ran = job.progress is not None and job.progress.value.generation == job.generation
        if not ran and not self._seen_claims(job):
            return  # nobody had begun: there is nothing to get over
        seen = [job.progress.value.step if job.progress else 0]
        seen += [r.progress.step for r in alive.values() if r.job == job.name and r.progress]
        cause = reasons.short("; ".join(f"{worker} {cause}" for worker, cause in sorted(lost.items())), 200)
        signs = [self._seen[key].since for worker in lost if (key := keys.worker(worker)) in self._seen]
        self._losses[job.name] = _Loss(min(signs, default=now), cause, job.generation, max(seen))

    def _finish(self, job: JobView, status: records.Status, now: float) -> records.Status:
        """Notice the end of a recovery and the end of the job."""
        loss = self._losses.get(job.name)
        latest = job.progress.value if job.progress else None
        if loss and latest and latest.generation > loss.generation and latest.step > latest.started:
            del self._losses[job.name]
            recovery = records.Recovery(
                cause=loss.cause,
                seconds=round(now - loss.since, 3),
                steps_recomputed=max(1, loss.last_step - latest.started),
            )
            status = _replace(
                status,
                recoveries=(*status.recoveries, recovery)[-KEPT_RECOVERIES:],
                recovered=status.recovered + 1,
            )
        if job.damage and (found := job.damage.value.found) and not set(found) <= set(status.damage):
            status = _replace(status, damage=tuple(sorted({*status.damage, *found}))[:KEPT_DAMAGE])
        if status.state in records.TERMINAL:
            return status
        if job.base[0] >= _spec(job).steps:  # not the head: that one may be damaged
            return _replace(status, state="done", reason="")
        if job.desired == "cancelled":
            return _replace(status, state="cancelled", reason="cancelled by the user")
        return status

    def _members(
        self,
        job: JobView,
        status: records.Status,
        allotted: list[str],
        alive: dict[str, records.WorkerRecord],
        lost: dict[str, records.Cause],
        hold: bool,
        now: float,
    ) -> tuple[records.Member, ...] | None:
        """The members of the next generation, or None to leave things as they are."""
        if status.state in records.TERMINAL:
            return () if job.members else None
        if hold:
            return None
        if _stopping(job, lost, allotted):
            return ()
        candidates = [w for w in allotted if w not in lost and self._can_serve(job, alive[w], now)]
        spec = _spec(job)
        staying = [m.worker for m in job.members if m.worker in candidates]
        newcomers = [w for w in candidates if w not in staying]
        workers = (staying + newcomers)[: spec.ests]
        if len(workers) < spec.min_workers:
            workers = []
        members = ranges.even(spec.ests, workers)
        if members == job.members and not lost and not self._reread(job):
            return None
        if not job.members and not members:
            return None
        shrinking = bool(lost) or len(staying) < len(job.members)
        pending = [w for w in allotted if alive[w].state in ("idle", "preparing") and w not in lost]
        if not shrinking and pending and len(workers) < spec.ests:
            grown = self._since(f"growth {job.name}", (job.generation, bool(newcomers)), now)
            if grown < self.settle:
                return None
        return members

    def _hold(
        self,
        job: JobView,
        lost: dict[str, records.Cause],
        allotted: list[str],
        alive: dict[str, records.WorkerRecord],
        now: float,
    ) -> bool:
        """Whether the generation must not end yet: members commit under it what only they hold."""
        if not job.members or any(cause != "preempted" for cause in lost.values()):
            return False
        if _stopping(job, lost, allotted):
            return not self._let_go(job, alive, now)
        staying = [m.worker for m in job.members if m.worker in allotted and m.worker not in lost]
        return self._hands_over(job, staying, alive, now)

    def _hands_over(self, job: JobView, staying: list[str], alive: dict[str, records.WorkerRecord], now: float) -> bool:
        """Whether only a member that goes holds the newest state: it commits it under this generation first."""
        held = {
            member.worker: record.progress.step if record.job == job.name and record.progress else 0
            for member in job.members
            if (record := alive.get(member.worker)) is not None
        }
        safe = max([job.base[0], *(step for worker, step in held.items() if worker in staying)])
        # Members that run this generation have its state in common, whatever they have told of it yet.
        apart = [w for w in held if alive[w].state != "running" or alive[w].generation < job.generation]
        late = any(held[worker] > safe for worker in apart if worker not in staying)
        return late and self._since(f"hand-over {job.name}", (job.generation, safe), now) < self.claim_patience

    def _let_go(self, job: JobView, alive: dict[str, records.WorkerRecord], now: float) -> bool:
        """Whether members that all stop, because the job pauses or because they leave, are done."""
        here = [alive[m.worker] for m in job.members if m.worker in alive]
        if job.claims or any(record.state == "running" for record in here):
            return False
        unsaved = any(record.progress and record.progress.step > job.base[0] for record in here)
        waited = self._since(f"pause {job.name}", (job.generation, job.base, unsaved), now)
        return not unsaved or waited > self.claim_patience

    def _can_serve(self, job: JobView, record: records.WorkerRecord, now: float) -> bool:
        over = self._passed_over.get((job.name, record.id))
        if over is not None and now - over < self.claim_patience:
            return False
        report = job.reports.get(record.id)
        return record.job == job.name and record.state in ("ready", "running") and report is None

    def _reread(self, job: JobView) -> bool:
        """Whether the head turned out damaged after the members claimed, so that they must agree anew."""
        damage, plan = job.damage, job.plan
        return bool(job.damaged and damage and plan and damage.kv.mod_revision > plan.kv.mod_revision)

    def _explain(
        self,
        job: JobView,
        status: records.Status,
        members: tuple[records.Member, ...],
        allotted: list[str],
        alive: dict[str, records.WorkerRecord],
    ) -> records.Status:
        """State and reason as people should read them."""
        status = _replace(status, waits_for="")
        if status.state in records.TERMINAL:
            return status
        if job.desired == "paused":
            if members:
                return _replace(status, state="running", reason="pausing: committing first")
            return _replace(status, state="paused", reason="paused by the user")
        if members:
            return _replace(status, state="running", reason=reasons.trouble_of(members, alive))
        waits_for, reason = reasons.waiting_for(_spec(job), allotted, alive)
        return _replace(status, state="waiting", reason=reason, waits_for=waits_for)


def _replace(status: records.Status, **changes: object) -> records.Status:
    return msgspec.structs.replace(status, **changes)


def _spec(job: JobView) -> records.JobRecord:
    assert job.spec is not None
    return job.spec.value


def _willing(record: records.WorkerRecord, job: JobView) -> bool:
    return record.only in (None, job.name) and _spec(job).spec not in record.refusals


def _stopping(job: JobView, lost: dict[str, records.Cause], allotted: list[str]) -> bool:
    """Whether all members stop for good, as the job pauses, they leave or others need them, and none of them failed."""
    going = not any(member.worker in allotted for member in job.members)
    willing = all(cause == "preempted" for cause in lost.values())
    return bool(job.members) and (going or job.desired == "paused") and willing


def _reached(job: JobView) -> int:
    """The furthest step that is known of the job. Not only from claims: those of a lost lease are gone with it."""
    held = [entry.value.held for entry in job.claims.values()]
    told = [entry.value.step for entry in job.reports.values()]
    return max([job.base[0], job.progress.value.step if job.progress else 0, *held, *told])


def _assigned(view: View, worker: str) -> str | None:
    entry = view.assigned.get(worker)
    return entry.value if entry else None


def _as_read(entry: Entry[records.Plan] | Entry[records.Status] | None, key: str) -> Compare:
    return unchanged(entry.kv) if entry else absent(key)


def _counted(job: JobView, report: records.Report, lost: dict[str, records.Cause]) -> bool:
    """Whether this decision takes the report into account, so that it can be removed."""
    return report.worker in lost or job.plan is None or job.plan.value.slot_of(report.worker) is None


def _assign(view: View, allotted: dict[str, list[str]]) -> list[Txn]:
    wanted = {worker: job for job, workers in allotted.items() for worker in workers}
    txns = []
    for worker in sorted(wanted.keys() | view.assigned.keys()):
        entry, job = view.assigned.get(worker), wanted.get(worker)
        if (entry.value if entry else None) == job:
            continue
        key = keys.assigned(worker)
        compare = unchanged(entry.kv) if entry else absent(key)
        operation = Put(key, job.encode()) if job else Delete(key)
        txns.append(Txn(f"assign {worker}", (compare,), (operation,)))
    return txns
