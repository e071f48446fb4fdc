"""The coordinator's mind: from a picture of the store to the transactions that should follow. No I/O, no clock.

Guarantees: one transaction per job and decision, conditional on everything it was decided from; generations only go
up; a job without workers waits and says for what. Leaves to others: leadership (`coordinator.py`), which job gets which
worker (`allotment.py`), who is a member (`membership.py`), how ended attempts are counted (`attempts.py`), claims
(`pipeline/agent.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from . import attempts, keys, past, probes, reasons, records
from .allotment import allot, assign
from .attempts import MAX_COUNTED
from .breaks import Breaks
from .dealer import Dealer
from .kv import Compare, Delete, Put, absent, unchanged
from .membership import Losses, Membership
from .observed import Observed
from .throughput import Throughput
from .transactions import Txn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .attempts import Alive
    from .scheduling.policy import Policy
    from .split import Pace
    from .views import Entry, JobView, View

STALE_SECONDS = 15.0
"""A worker whose record has not changed for this long is taken for gone, whatever its lease says."""

CLAIM_SECONDS = 10.0
"""A member that has not claimed its slot this long after the plan was made is passed over."""

SETTLE_SECONDS = 3.0
"""How long growth waits for other workers that are still preparing, so that they join in one generation."""


class Planner:
    """Decides for all jobs; remembers only what it has observed, so a successor can start with nothing.

    Args:
        stale, claim_patience, settle: seconds; see the constants.
        speeds: whether ranges follow the speed of workers. If not, they are even, and all who can serve do: for
            measurements of membership changes.
        policy: says which devices each job should have; None: workers are dealt out evenly.
    """

    def __init__(
        self,
        stale: float = STALE_SECONDS,
        claim_patience: float = CLAIM_SECONDS,
        settle: float = SETTLE_SECONDS,
        *,
        speeds: bool = True,
        policy: Policy | None = None,
    ) -> None:
        self._dealer = Dealer(policy) if policy is not None else None
        self._speeds = speeds
        self._observed = Observed(stale)
        self._breaks = Breaks()
        self._throughput = Throughput()
        self._membership = Membership(self._observed, self._breaks, claim_patience, settle, speeds)

    def decide(self, view: View, now: float) -> list[Txn]:
        """The transactions that this picture calls for."""
        alive = self._observed.alive(view, now)
        self._breaks.hear(view, alive, now)
        jobs = sorted(
            (job for job in view.jobs.values() if job.spec is not None),
            key=lambda job: (-job.record.priority, job.spec.kv.create_revision if job.spec else 0),
        )
        allotted = allot(view, jobs, alive, self._dealer, now)
        assigned = dict(view.assigned)
        txns = [txn for job in jobs for txn in self._decide_job(job, view, assigned, allotted[job.name], alive, now)]
        self._throughput.forget(view.jobs)
        self._membership.forget(view.jobs)
        training = [job for job in jobs if self._speeds and job.members and not job.over]
        txns += [txn for job in training for txn in self._learn(job, alive, now)]
        return txns + assign(view, allotted, alive)

    def _learn(self, job: JobView, alive: Alive, now: float) -> list[Txn]:
        hints = probes.factors(job, [member.worker for member in job.members if member.worker in alive], alive)
        return self._throughput.learn(job, alive, now, hints)

    def _decide_job(
        self, job: JobView, view: View, assigned: dict[str, Entry[str]], allotted: list[str], alive: Alive, now: float
    ) -> list[Txn]:
        more = len(job.reports) > MAX_COUNTED
        if more:  # the rest is for the next decisions
            job = replace(job, reports=dict(sorted(job.reports.items())[:MAX_COUNTED]))
        status = before = job.status.value if job.status else records.Status()
        losses = self._membership.losses(job, view, alive, now)
        hold = self._membership.hold(job, losses, allotted, alive, now)
        if hold:
            losses = Losses()  # their generation goes on: they are counted when it ends, and only then
        elsewhere = {m.worker for other in view.jobs.values() if other.name != job.name for m in other.members}
        ended = attempts.ended(job, assigned, elsewhere, losses.ended, alive, self._observed.left)
        ended.more |= more
        if not losses.gently:
            status = attempts.begin_recovery(job, before, losses, alive, self._observed, now)
        status = attempts.charge(job, status, ended)
        status = attempts.finish(job, status, self._observed, now)
        members = None if hold else self._membership.next(job, view, allotted, alive, losses, now)
        if status.state in records.TERMINAL:
            members = () if job.members else None
        status = self._explain(job, status, members if members is not None else job.members, allotted, alive, now)
        operations: list[Put | Delete] = [Delete(entry.kv.key) for entry in ended.reports]
        if members is not None:
            lane = self._membership.lane(members, alive, now)
            paces = self._membership.paces(job, members, alive)
            operations += _new_generation(job, members, lane, losses, paces) + past.ended(job, alive)
        if job.status is None or status != before:
            operations.append(Put(keys.status(job.name), records.encode(status)))
        operations += [Delete(entry.kv.key) for entry in ended.assignments]
        if not operations:
            return []
        compares = [_as_read(job.plan, keys.plan(job.name)), _as_read(job.status, keys.status(job.name))]
        compares.append(unchanged(job.wish) if job.wish else absent(keys.desired(job.name)))
        compares += [unchanged(entry.kv) for entry in job.reports.values()]
        compares += [unchanged(entry.kv) for entry in ended.assignments]
        return [Txn(f"decide {job.name}", tuple(compares), tuple(operations))]

    def _explain(
        self,
        job: JobView,
        status: records.Status,
        members: tuple[records.Member, ...],
        allotted: list[str],
        alive: Alive,
        now: float,
    ) -> records.Status:
        """State and reason as people should read them."""
        status = msgspec.structs.replace(status, waits_for="")
        if status.state in records.TERMINAL:
            return status
        if job.desired == "paused":
            if members:
                return msgspec.structs.replace(status, state="running", reason="pausing: committing first")
            return msgspec.structs.replace(status, state="paused", reason="paused by the user")
        left_out = self._membership.left_out(job, members, allotted, alive, now)
        if members:
            reason = reasons.trouble_of(members, alive, left_out, status.quarantined)
            return msgspec.structs.replace(status, state="running", reason=reason)
        policy = self._dealer.policy.name if self._dealer is not None else ""
        memory = self._membership.lacking(job, allotted, alive)
        waits_for, reason = reasons.waiting_for(job, allotted, alive, left_out, status.quarantined, policy, memory)
        return msgspec.structs.replace(status, state="waiting", reason=reason, waits_for=waits_for)


def _new_generation(
    job: JobView, members: tuple[records.Member, ...], lane: records.LaneKind, losses: Losses, paces: Mapping[str, Pace]
) -> list[Put | Delete]:
    """The plan, and the claims that end with the old one."""
    bounds = [0, *(member.last for member in members)]
    assert all(m.first == before < m.last for m, before in zip(members, bounds, strict=False)), "ranges are contiguous"
    assert not members or bounds[-1] == job.record.ests, "a plan covers all ESTs exactly"
    assert len({member.worker for member in members}) == len(members), "a worker has one slot"
    plan = records.Plan(
        generation=job.generation + 1,
        lane=lane,
        members=members,
        cause=reasons.cause_of_change(job, members, lane, losses, paces),
    )
    # A lost member's claim may outlive it (an election restarts leases): its peers must not wait for it.
    gone = [slot for slot, m in enumerate(job.members) if m.worker in losses and slot in job.claims]
    removals = [Delete(keys.claim(job.name, job.generation, slot)) for slot in gone]
    if len(gone) > MAX_COUNTED:  # all of them, then: it costs the survivors one step
        removals = [Delete(keys.generation_claims(job.name, job.generation), prefix=True)]
    return [Put(keys.plan(job.name), records.encode(plan)), *removals]


def _as_read(entry: Entry[records.Plan] | Entry[records.Status] | None, key: str) -> Compare:
    return unchanged(entry.kv) if entry else absent(key)
