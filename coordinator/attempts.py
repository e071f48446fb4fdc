"""Attempts: which have ended, what each is charged to, when a job has failed for it, which losses it got over. Pure.

An attempt is counted when it has ended, whoever lives to tell: by a report, or by the death of a worker that was a
member or assigned. What speaks of it (report, assignment) is removed in the transaction that counts it, so each is
counted once, also by a successor that has seen nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from . import quarantine, reasons, records

if TYPE_CHECKING:
    from .membership import Losses
    from .observed import Observed
    from .views import Entry, JobView

KEPT_RECOVERIES = 50

KEPT_DAMAGE = 50

MAX_COUNTED = 32
"""Reports, claims and assignments dealt with in one transaction: etcd takes 128 operations in one."""

CHARGED: dict[records.Cause, str] = {"died": "died", "hang": "died", "raised": "raised"}
"""Which purse an ended attempt is charged to; other causes are free."""

Alive = dict[str, records.WorkerRecord]
Lost = dict[str, records.Cause]


@dataclass(slots=True)
class Ended:
    """The attempts that one decision counts.

    Args:
        causes: why each ended, by worker.
        assignments, reports: what speaks of them, and is removed in the transaction that counts them.
    """

    causes: Lost = field(default_factory=dict)
    assignments: list[Entry[str]] = field(default_factory=list)
    reports: list[Entry[records.Report]] = field(default_factory=list)
    more: bool = False
    """There are too many for one transaction: all together are one try of a step, charged with the last of them."""


def ended(
    job: JobView, assigned: dict[str, Entry[str]], elsewhere: set[str], lost: Lost, alive: Alive, left: set[str]
) -> Ended:
    """The attempts at this job that have ended and are not counted yet.

    Args:
        assigned: assignments that no other job's transaction removes; those that this one will are taken out.
        elsewhere: members of other jobs, which count them.
        lost: members that cannot take part any more. left: workers that were leaving when they were last seen.
    """
    found = Ended()
    if not job.counts:
        found.reports = [e for w, e in job.reports.items() if w in lost or job.slot_of(w) is None]
        return found

    def count(worker: str, cause: records.Cause) -> None:
        entry = assigned.get(worker) if worker not in alive else None
        if entry is not None and len(found.assignments) == MAX_COUNTED:
            found.more = True
            return  # one of the next decisions counts it, when it is no member any more
        if entry is not None:
            found.assignments.append(assigned.pop(worker))
        if worker in job.reports:
            found.reports.append(job.reports[worker])
        found.causes[worker] = cause

    for worker, cause in lost.items():
        count(worker, cause)
    for worker, report in job.reports.items():
        if worker not in lost and job.slot_of(worker) is None:
            count(worker, report.value.cause)
    for worker, entry in list(assigned.items()):
        mine = entry.value == job.name and job.slot_of(worker) is None and worker not in elsewhere
        if mine and worker not in alive and worker not in job.reports:
            count(worker, "preempted" if worker in left else "died")
    return found


def charge(job: JobView, status: records.Status, ended: Ended) -> records.Status:
    """Count what ended, and fail the job when a purse is empty."""
    if not ended.causes:
        return status
    attempts = dict(status.attempts)
    for cause in ended.causes.values():
        attempts[cause] = attempts.get(cause, 0) + 1
    assert all(attempts.get(cause, 0) >= count for cause, count in status.attempts.items()), "attempts never shrink"
    reached = _reached(job)
    streak = dict(status.streak) if reached <= status.streak_step else {}
    for purse in set() if ended.more else {CHARGED[cause] for cause in ended.causes.values() if cause in CHARGED}:
        streak[purse] = streak.get(purse, 0) + 1
    status = replace(status, attempts=attempts, streak=streak, streak_step=max(reached, status.streak_step))
    status = quarantine.charge(job, status, ended)
    return _judge(job, status, ended)


def _judge(job: JobView, status: records.Status, ended: Ended) -> records.Status:
    retries = job.record.retries
    budget = {"died": retries.died, "raised": retries.raised}
    for worker, cause in ended.causes.items():
        purse = CHARGED.get(cause)
        spent = purse is not None and status.streak.get(purse, 0) > budget[purse]
        if not spent and cause not in records.FINAL:
            continue
        report = job.reports[worker].value if worker in job.reports else None
        vanished = reasons.VANISHED if job.slot_of(worker) is not None else reasons.VANISHED_PREPARING
        failure = records.Failure(
            cause=cause,
            step=report.step if report else _reached(job),
            worker=worker,
            message=report.message if report else vanished,
            traceback=report.traceback if report else "",
        )
        return replace(status, state="failed", reason=reasons.failed_because(failure, status), failure=failure)
    return status


def begin_recovery(
    job: JobView, status: records.Status, losses: Losses, alive: Alive, observed: Observed, now: float
) -> records.Status:
    """Begin to time how long it takes to get over a loss; a successor goes on with that."""
    if not job.counts or status.loss is not None:
        return status
    ran = job.progress is not None and job.progress.value.generation == job.generation
    if not ran and not observed.claimed(job):
        return status  # nobody had begun: there is nothing to get over
    seen = [job.progress.value.step if job.progress else 0]
    seen += [r.progress.step for r in alive.values() if r.job == job.name and r.progress]
    cause = reasons.short(reasons.lost_by(losses), 200)
    signs = [sign for worker in [*losses.ended, *losses.accused] if (sign := observed.last_sign(worker)) is not None]
    passed = round(now - min(signs, default=now), 3)
    loss = records.Loss(cause=cause, generation=job.generation, last_step=max(seen), seconds=passed)
    observed.loss_began(job.name, loss, now)
    return replace(status, loss=loss)


def finish(job: JobView, status: records.Status, observed: Observed, now: float) -> records.Status:
    """Notice the end of a recovery and the end of the job."""
    loss, latest = status.loss, job.progress.value if job.progress else None
    if loss and latest and latest.generation > loss.generation and latest.step > latest.started:
        recovery = records.Recovery(
            cause=loss.cause,
            seconds=round(now - observed.loss_began(job.name, loss, now), 3),
            steps_recomputed=max(1, loss.last_step - latest.started),
        )
        status = replace(
            status,
            loss=None,
            recoveries=(*status.recoveries, recovery)[-KEPT_RECOVERIES:],
            recovered=status.recovered + 1,
        )
    if job.damage and (found := job.damage.value.found) and not set(found) <= set(status.damage):
        status = replace(status, damage=tuple(sorted({*status.damage, *found}))[:KEPT_DAMAGE])
    if status.state in records.TERMINAL:
        return replace(status, loss=None)
    if job.base[0] >= job.record.steps:  # not the head: that one may be damaged
        return replace(status, state="done", reason="", loss=None)
    if job.desired == "cancelled":
        return replace(status, state="cancelled", reason="cancelled by the user", loss=None)
    return status


def _reached(job: JobView) -> int:
    """The furthest step that is known of the job. Not only from claims: those of a lost lease are gone with it."""
    held = [entry.value.held for entry in job.claims.values()]
    told = [entry.value.step for entry in job.reports.values()]
    return max([job.base[0], job.progress.value.step if job.progress else 0, *held, *told])
