"""Membership of one job: who of its members is lost, whether its generation must go on, who is in the next one. Pure.

A generation ends only when what its members alone hold is safe, or when one of them is lost; growth waits a moment, so
that those who are still preparing join in one generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import ranges

if TYPE_CHECKING:
    from . import records
    from .attempts import Alive, Lost
    from .observed import Observed
    from .views import JobView, View


@dataclass(slots=True)
class Membership:
    """Decides for one job at a time.

    Args:
        observed: what the planner has seen.
        claim_patience, settle: seconds; see the constants of `planner.py`.
    """

    observed: Observed
    claim_patience: float
    settle: float

    def lost(self, job: JobView, view: View, alive: Alive, now: float) -> Lost:
        """Members of the current generation that cannot take part any more, and why."""
        lost: Lost = {}
        claims, claimed = job.claims, self.observed.claimed(job)
        age = self.observed.since(f"plan {job.name}", job.generation, now)
        for slot, member in enumerate(job.members):
            worker = member.worker
            report, record = job.reports.get(worker), alive.get(worker)
            if report is not None:
                lost[worker] = report.value.cause
            elif record is None:
                # who leaves takes back its own assignment
                went = worker in self.observed.left or (worker not in view.workers and worker not in view.assigned)
                lost[worker] = "preempted" if went else "died"
            elif slot in claims or job.desired == "paused":
                continue
            elif slot in claimed or (record.job == job.name and record.generation == job.generation):
                lost[worker] = "preempted"  # it says that it had a claim: it let go, or lost its lease and is back
            elif age > self.claim_patience and record.state != "running":
                # one that still runs an older generation is in the middle of a step: its agent watches it
                lost[worker] = "hang"
                self.observed.pass_over(job.name, worker, now)
        return lost

    def hold(self, job: JobView, lost: Lost, allotted: list[str], alive: Alive, now: float) -> bool:
        """Whether the generation must not end yet: members commit under it what only they hold."""
        if not job.members or any(cause != "preempted" for cause in lost.values()):
            return False
        if _stopping(job, lost, allotted):
            return not self._let_go(job, alive, now)
        staying = [m.worker for m in job.members if m.worker in allotted and m.worker not in lost]
        return self._hands_over(job, staying, alive, now)

    def next(
        self,
        job: JobView,
        over: bool,
        allotted: list[str],
        alive: Alive,
        lost: Lost,
        hold: bool,
        now: float,
    ) -> tuple[records.Member, ...] | None:
        """The members of the next generation, or None to leave things as they are. `over`: there need be none."""
        if over:
            return () if job.members else None
        if hold:
            return None
        if _stopping(job, lost, allotted):
            return ()
        candidates = [w for w in allotted if w not in lost and self._can_serve(job, alive[w], now)]
        spec = job.record
        staying = [m.worker for m in job.members if m.worker in candidates]
        newcomers = [w for w in candidates if w not in staying]
        workers = (staying + newcomers)[: spec.ests]
        if len(workers) < spec.min_workers:
            workers = []
        members = ranges.even(spec.ests, workers)
        if members == job.members and not lost and not _reread(job):
            return None
        if not job.members and not members:
            return None
        shrinking = bool(lost) or len(staying) < len(job.members)
        pending = [w for w in allotted if alive[w].state in ("idle", "preparing") and w not in lost]
        if not shrinking and pending and len(workers) < spec.ests:
            grown = self.observed.since(f"growth {job.name}", (job.generation, bool(newcomers)), now)
            if grown < self.settle:
                return None
        return members

    def _hands_over(self, job: JobView, staying: list[str], alive: Alive, now: float) -> bool:
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
        waited = self.observed.since(f"hand-over {job.name}", (job.generation, safe), now) if late else 0.0
        return late and waited < self.claim_patience

    def _let_go(self, job: JobView, alive: Alive, now: float) -> bool:
        """Whether members that all stop, because the job pauses or because they leave, are done."""
        here = [alive[m.worker] for m in job.members if m.worker in alive]
        if job.claims or any(record.state == "running" for record in here):
            return False
        unsaved = any(record.progress and record.progress.step > job.base[0] for record in here)
        waited = self.observed.since(f"pause {job.name}", (job.generation, job.base, unsaved), now)
        return not unsaved or waited > self.claim_patience

    def _can_serve(self, job: JobView, record: records.WorkerRecord, now: float) -> bool:
        if self.observed.passed_over(job.name, record.id, self.claim_patience, now):
            return False
        report = job.reports.get(record.id)
        return record.job == job.name and record.state in ("ready", "running") and report is None


def _stopping(job: JobView, lost: Lost, allotted: list[str]) -> bool:
    """Whether all members stop for good, as the job pauses, they leave or others need them, and none of them failed."""
    going = not any(member.worker in allotted for member in job.members)
    willing = all(cause == "preempted" for cause in lost.values())
    return bool(job.members) and (going or job.desired == "paused") and willing


def _reread(job: JobView) -> bool:
    """Whether the head turned out damaged after the members claimed, so that they must agree anew."""
    damage, plan = job.damage, job.plan
    return bool(job.damaged and damage and plan and damage.kv.mod_revision > plan.kv.mod_revision)
