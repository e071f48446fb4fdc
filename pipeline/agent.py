"""The worker's mind: what an agent does about its job, its runner and its claims. Pure: events in, actions out.

Guarantees: at most one claim per generation and agent; a runner is restarted only after the report of how the last one
ended was counted. Holds no user code and no clock. Leaves to others: leases (`coordinator/lease.py`), processes and
sockets (`worker.py`), publishing (`publishing.py`), training (`runner.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
import structlog

from ..coordinator import keys, records
from ..coordinator.kv import Delete, Put, absent
from ..coordinator.quarantine import device_of
from ..coordinator.transactions import Txn
from . import joining, messages
from .actions import Action, Exit, Send, Start, Write
from .publishing import base_of, publish, report_damage
from .runner_state import RunnerState, Yielded, fewer_ests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..coordinator.transactions import Outcome
    from ..coordinator.views import Entry, JobView

log = structlog.get_logger()

BEAT_SECONDS = 1.0

PLAN_SECONDS = 2.0
"""How long a worker that leaves waits for a plan without it before it takes the others to be leaving too."""

KEEP_SECONDS = 5.0
"""How long a state that is not committed is kept by a worker that has lost its assignment: it may get it back. Also by
a runner of an older specification, for as long it tries to commit it."""

DROP_SECONDS = 5.0
"""How long a runner may go on with a step of a job that is over before it is ended: a function may take hours."""

MAX_MESSAGE, MAX_TRACEBACK = 4_000, 16_000
"""Bytes of an exception that go into a key; values stay under `kv.MAX_VALUE`."""

MAX_REFUSAL = 1_000

KEPT_NOTES = 20
"""Jobs of which a worker's record says why it refuses them, for how many ESTs it has room, how long one takes."""

N = TypeVar("N")


@dataclass(slots=True)
class Agent:
    """One worker process's decisions.

    Args:
        me: how it describes itself; state, job and progress are filled in here.
        hang_floor: see `hang.HangWatch`.
        grace: seconds from the order to leave until the runner is ended in the middle of its step.
    """

    me: records.WorkerRecord
    hang_floor: float = 120.0
    grace: float = 25.0
    lease: int = 0
    runner: RunnerState | None = None
    leaving_since: float | None = None
    away_since: float | None = None
    _written: records.WorkerRecord | None = None
    _beat_at: float = float("-inf")
    _claimed: dict[str, int] = field(default_factory=dict)
    _report: tuple[str, records.Report] | None = None
    _parted: Literal["", "said", "yes"] = ""

    @property
    def id(self) -> str:
        """This worker's id."""
        return self.me.id

    # ---- events

    def on_lease(self, lease: int) -> None:
        """A (new) lease is held; 0: it was lost, and with it the record and all claims."""
        if lease == 0 and self.lease:
            log.warning("agent.lease_lost", worker=self.id, hint="claims are gone; what they fenced is refused")
        self.lease = lease
        self._written = None

    def on_leave(self, now: float) -> None:
        """The worker was told to go (SIGTERM)."""
        if self.leaving_since is None:
            self.leaving_since = now
            log.info("agent.leaving", worker=self.id, grace=self.grace)

    def on_away(self, why: str, now: float) -> None:
        """The device is its owner's from now on (`why`, for people), or ours again (empty)."""
        if why and self.away_since is None:
            self.away_since = now
            log.info("agent.away", worker=self.id, why=why)
        elif not why and self.away_since is not None:
            log.info("agent.back", worker=self.id, seconds=round(now - self.away_since, 1))
            self.away_since = None
        self.me = msgspec.structs.replace(self.me, away=records.cut(why, MAX_REFUSAL))

    @property
    def going_since(self) -> float | None:
        """Since when it must not have a runner: it leaves, or its device is its owner's."""
        return min((at for at in (self.leaving_since, self.away_since) if at is not None), default=None)

    def on_message(self, message: messages.FromRunner, now: float) -> None:
        """The runner said something."""
        if self.runner is None:
            return
        self.runner.hear(message, now)
        if isinstance(message, messages.Ready) and message.est_seconds is not None:
            probes = _noted(self.me.probes, self.runner.spec, message.est_seconds)
            self.me = msgspec.structs.replace(self.me, probes=probes)

    def on_reach(self, unreached: tuple[str, ...]) -> None:
        """Which of the job's other workers cannot be connected to."""
        self.me = msgspec.structs.replace(self.me, unreached=unreached)

    @property
    def met_for(self) -> str | None:
        """The job for which the runner can be met by peers, or None."""
        runner = self.runner
        return runner.job if runner is not None and runner.ready is not None and runner.ready.address else None

    def on_exit(self, how: str) -> None:
        """The runner's process is gone. `how` names signal or status, with the last lines of its log."""
        runner, self.runner = self.runner, None
        end = runner.ending(how, self.going_since is not None) if runner else None
        if runner is None or end is None:
            return
        report = records.Report(
            worker=self.id,
            generation=self._claimed.get(runner.job, 0),
            cause=end.cause,
            step=end.step,
            message=records.cut(end.message, MAX_MESSAGE),
            traceback=records.cut(end.traceback, MAX_TRACEBACK, end=True),
            device=device_of(self.me),
        )
        self._report = (runner.job, report)
        fewer = fewer_ests(runner, self.me.memory) if end.cause == "memory" else 0
        if fewer:
            log.warning("agent.fewer_ests", job=runner.job, most=fewer, reason=end.message)
            self.me = msgspec.structs.replace(self.me, rooms=_noted(self.me.rooms, runner.spec, fewer))
        elif end.cause in ("memory", "refused"):
            self._refuse(runner, end.message)
        log.warning("agent.attempt_ended", job=runner.job, cause=end.cause, step=end.step, message=end.message)

    def _refuse(self, runner: RunnerState, reason: str) -> None:
        """Not this specification on this device again: the planner passes us over for it."""
        log.error("agent.refused", job=runner.job, reason=reason)
        refusals = _noted(self.me.refusals, runner.spec, records.cut(reason, MAX_REFUSAL))
        self.me = msgspec.structs.replace(self.me, refusals=refusals)

    def on_outcome(self, txn: Txn, outcome: Outcome) -> None:
        """How a transaction of ours ended. Unknown needs nothing: the next picture tells."""
        if outcome == "gone":  # a revoked lease may be renewed happily for ever: the refused write is what counts
            self.on_lease(0)
        if txn.tag == "record" and outcome != "yes":
            self._written = None
        if txn.tag == "report" and outcome == "yes":
            self._report = None
        if txn.tag == "farewell" and outcome == "yes":
            self._parted = "yes"

    # ---- decisions

    def decide(self, assigned: str | None, job: JobView | None, now: float) -> list[Action]:
        """What to do, given which job the coordinator wants served and what the store says of the job at hand.

        Args:
            assigned: the assignment key's value. job: the picture of the runner's job, or of the assigned one.
        """
        actions = list(self._report_actions(job))
        runner = self.runner
        if runner is None:
            actions += self._begin(assigned, job, now)
        elif job is not None and job.name == runner.job:
            actions += self._serve(runner, assigned, job, now)
        actions += self.deadlines(now)
        actions += self._beat(now)
        return actions

    def wanted_job(self, assigned: str | None) -> str | None:
        """Whose keys the next picture must show."""
        if self._report is not None:
            return self._report[0]
        return self.runner.job if self.runner is not None else assigned

    def _report_actions(self, job: JobView | None) -> Iterator[Action]:
        """Say how the last attempt ended, and let go of its claim in the same transaction."""
        if self._report is None or job is None or job.name != self._report[0] or not self.lease:
            return
        name, report = self._report
        key = keys.report(name, self.id)
        if self.id in job.reports:
            self._report = None
            return
        operations: list[Put | Delete] = [Put(key, records.encode(report), self.lease)]
        operations += [Delete(entry.kv.key) for entry in self._my_claims(job)]
        yield Write(Txn("report", (absent(key),), tuple(operations)))

    def _my_claims(self, job: JobView) -> list[Entry[records.Claim]]:
        return [entry for entry in job.all_claims.values() if entry.value.worker == self.id]

    def _begin(self, assigned: str | None, job: JobView | None, now: float) -> Iterator[Action]:
        """Without a runner: start one for the assigned job, or go."""
        if self.leaving_since is not None:
            yield from self._part(now)
            return
        if self.going_since is not None or assigned is None or job is None or job.name != assigned or job.spec is None:
            return
        spec = job.spec.value
        if job.over or job.desired != "running" or spec.spec in self.me.refusals:
            return
        if self._report is not None or self.id in job.reports or not self.lease:
            return  # the last attempt must be counted first
        self.runner = RunnerState(assigned, spec.spec, self.hang_floor, spec.rewound)
        self.runner.begins("load", now)
        order = messages.Prepare(job=assigned, worker=self.id, spec=spec.spec, code=spec.code, forked=bool(spec.forked))
        yield Start(order)

    def _part(self, now: float) -> Iterator[Action]:
        """Exit, after the last words: whoever takes back its assignment has not died of its job."""
        overdue = self.leaving_since is not None and now - self.leaving_since > self.grace
        if not self.lease or overdue or self._parted == "yes":
            yield Exit()
        elif self._report is None:
            self._parted = "said"
            yield Write(self.farewell())

    def farewell(self) -> Txn:
        """The last words."""
        return Txn("farewell", (), (Delete(keys.assigned(self.id)), Delete(keys.worker(self.id))))

    def _serve(self, runner: RunnerState, assigned: str | None, job: JobView, now: float) -> Iterator[Action]:
        slot = job.slot_of(self.id)
        claim = job.claims.get(slot) if slot is not None else None
        if claim is not None and claim.value.worker == self.id:
            self._claimed[job.name] = max(job.generation, self._claimed.get(job.name, 0))
            if runner.asked < job.generation:  # a former runner's: this one does not hold what it says
                claim = None
                yield from self._release(job)
        else:
            claim = None
        rewound = _rewound(runner, job)
        changed = rewound or (job.spec is not None and job.spec.value.spec != runner.spec)
        yield from publish(
            runner, job, None if rewound else claim, may_claim=not rewound and self._may_claim(job, slot)
        )
        yield from report_damage(runner, job)
        if runner.phase == "running":
            yield from self._while_running(runner, assigned, job, changed, now)
        elif rewound and runner.phase in ("preparing", "ready"):
            yield from self._release(job)
            yield from runner.stop(now)
        elif changed and runner.phase in ("preparing", "ready"):
            yield from self._retire(runner, job, slot, claim is not None, now)
        elif runner.phase == "ready":
            yield from self._while_ready(runner, assigned, job, slot, claim is not None, now)
        elif runner.phase == "preparing" and (assigned != runner.job or self.going_since is not None or job.over):
            yield from runner.stop(now)

    def _retire(
        self, runner: RunnerState, job: JobView, slot: int | None, claimed: bool, now: float
    ) -> Iterator[Action]:
        """Of an older specification, and not running: the next runner gets the new one, and goes on from its state."""
        unsaved = runner.held > job.base[0] and now - runner.stopped_at < KEEP_SECONDS
        if slot is not None and not job.over and (unsaved or self._committing(runner)):
            yield from self._save(runner, job, slot, claimed)
            return
        yield from self._release(job)
        if not self._committing(runner):
            yield from runner.stop(now)

    def _may_claim(self, job: JobView, slot: int | None) -> bool:
        """Whether a claim can be made: it is, once per generation. One that was seen and is gone is not made again."""
        return slot is not None and self._claimed.get(job.name, 0) < job.generation and not job.over

    def _while_running(
        self, runner: RunnerState, assigned: str | None, job: JobView, changed: bool, now: float
    ) -> Iterator[Action]:
        run = runner.run
        assert run is not None
        unwanted = job.over or job.desired == "cancelled" or job.spec is None
        if job.generation > run.generation or unwanted:
            # Whoever still holds a claim on the old generation will still send its partials.
            gone = {
                s for s, m in enumerate(run.members)
                if s != run.slot and (run.generation, s) not in job.all_claims
            }  # fmt: skip
            drop = unwanted or not job.members
            told = Yielded(job.generation, frozenset(gone), drop)
            if told != runner.told:
                runner.told = told
                yield Send(messages.Yield(generation=job.generation, lost=tuple(sorted(gone)), drop=drop))
        if unwanted or _rewound(runner, job):  # what it holds is worth nothing
            if runner.dropped_at is None:
                runner.dropped_at = now
            elif now - runner.dropped_at >= DROP_SECONDS:
                yield from self._release(job)
                yield from runner.stop(now)
                return
        else:
            runner.dropped_at = None
        if (self.going_since is not None or assigned != runner.job) and not runner.leaving:
            runner.leaving = True
            yield Send(messages.Leave())
        if (job.desired == "paused" or changed) and not runner.pausing:
            runner.pausing = True
            yield Send(messages.Pause())

    def _while_ready(
        self, runner: RunnerState, assigned: str | None, job: JobView, slot: int | None, claimed: bool, now: float
    ) -> Iterator[Action]:
        if self.going_since is not None or (assigned != runner.job and slot is not None):
            yield from self._leave(runner, job, slot, claimed, now)
            return
        if job.desired == "paused" and slot is not None and not job.over:
            yield from self._pause(runner, job, slot, claimed)
            return
        # A generation that stopped needs a successor; if whoever made it stop thought better of it, none is planned.
        patience = {"pause": 0.0, "leave": PLAN_SECONDS}.get(runner.stopped)
        stopped = runner.started == job.generation and patience is not None and now - runner.stopped_at >= patience
        if job.over or slot is None or stopped:
            # Nobody must wait for partials of mine.
            yield from self._release(job)
        if job.over or (assigned != runner.job and slot is None):
            # Without a lease we were no worker, and lost the assignment too. What only we hold is worth a moment.
            unsaved = not job.over and assigned is None and runner.held > job.base[0]
            if not unsaved or now - runner.stopped_at >= KEEP_SECONDS:
                yield from runner.stop(now)
            return
        assert runner.ready is not None
        refusal = joining.unlike(runner.ready, job.probe.value) if job.probe else None
        if refusal is not None:
            self._refuse(runner, refusal)
            yield from runner.stop(now)
        elif job.probe is None:
            yield Write(joining.first_probe(job.name, self.id, runner.ready))
        elif slot is not None and job.desired == "running":
            if claimed:
                yield from self._start(runner, job, slot)
            else:
                yield from self._claim(runner, job, slot)

    def _claim(self, runner: RunnerState, job: JobView, slot: int) -> Iterator[Action]:
        """Claim my slot of the current generation, letting go of older ones."""
        if not self._may_claim(job, slot) or not self.lease:
            return
        assert self._claimed.get(job.name, 0) < job.generation, "one claim per generation and agent"
        assert runner.ready is not None
        older = tuple(Delete(entry.kv.key) for entry in self._my_claims(job))
        runner.asked = job.generation
        yield Write(joining.claim(job, slot, self.id, runner.held, runner.ready, self.lease, older))

    def _start(self, runner: RunnerState, job: JobView, slot: int) -> Iterator[Action]:
        """Everybody has claimed: begin where the newest state is, or bring it to those who need it."""
        step = job.start_step()
        if step is None or runner.committing or runner.started >= job.generation or runner.asked > job.generation:
            return  # a generation is run once: whoever stopped in it waits for the next; nor is an older one, read late
        run = joining.run(job, slot, step, base_of(job))
        if step > run.base.step and min(run.held) < step and run.lane == "store":
            if run.held.index(step) == slot:
                runner.committing = True
                yield Send(messages.Commit(base=run.base))
            return
        runner.run = run
        runner.phase, runner.told, runner.started = "running", None, job.generation
        runner.pausing = runner.leaving = False
        runner.dropped_at = None
        runner.broken = None
        yield Send(runner.run)

    def _leave(
        self, runner: RunnerState, job: JobView, slot: int | None, claimed: bool, now: float
    ) -> Iterator[Action]:
        """Told to go, or wanted elsewhere, and not running: see that the newest state is not lost, then let go."""
        if slot is not None and not job.over and (runner.held > job.base[0] or self._committing(runner)):
            # Having stopped together, the others carry the state on: the next plan, without us, is on its way.
            # If it does not come, they are leaving as well.
            fresh = runner.started == job.generation and now - runner.stopped_at < PLAN_SECONDS
            if not fresh:
                yield from self._save(runner, job, slot, claimed)
            return
        yield from self._release(job)
        yield from runner.stop(now)

    def _pause(self, runner: RunnerState, job: JobView, slot: int, claimed: bool) -> Iterator[Action]:
        """Paused and not running: see that the newest state is committed before letting go."""
        if runner.held > job.base[0] or self._committing(runner):
            yield from self._save(runner, job, slot, claimed)
        else:
            yield from self._release(job)

    def _committing(self, runner: RunnerState) -> bool:
        return runner.committing or runner.publish is not None

    def _save(self, runner: RunnerState, job: JobView, slot: int, claimed: bool) -> Iterator[Action]:
        """Bring a state that is only in memory to the store: the first of those who hold the newest commits it."""
        if not claimed:  # first: what has been written already is published under it, too
            yield from self._claim(runner, job, slot)
        elif not self._committing(runner) and slot == min(job.claims, key=lambda s: (-job.claims[s].value.held, s)):
            runner.committing = True
            yield Send(messages.Commit(base=base_of(job)))

    def _release(self, job: JobView) -> Iterator[Action]:
        mine = self._my_claims(job)
        if mine:
            yield Write(Txn("release", (), tuple(Delete(entry.kv.key) for entry in mine)))

    def deadlines(self, now: float) -> list[Action]:
        """What is due by the clock alone, also while the store does not answer."""
        if self.runner is None:
            return []
        overdue = False
        if self.going_since is not None:
            latest = self.going_since + self.grace
            overdue = now > latest or self.runner.outlasts(latest)
        return list(self.runner.deadlines(now, overdue))

    def _beat(self, now: float) -> Iterator[Action]:
        """Keep the worker's record true: at once when it says something new, else once a second."""
        if not self.lease or self._parted:
            return
        record = self._describe()
        said = self._written
        changed = said is None or _news(record) != _news(said)
        if not changed and now - self._beat_at < BEAT_SECONDS:
            return
        record = msgspec.structs.replace(record, beat=self.me.beat + 1)
        self.me, self._written, self._beat_at = record, record, now
        operations: list[Put | Delete] = [Put(keys.worker(self.id), records.encode(record), self.lease)]
        run = self.runner.run if self.runner else None
        if run is not None and run.slot == 0 and record.progress is not None and record.job is not None:
            operations.append(Put(keys.progress(record.job), records.encode(record.progress)))
        yield Write(Txn("record", (), tuple(operations)))

    def _describe(self) -> records.WorkerRecord:
        runner = self.runner
        state: Literal["idle", "preparing", "ready", "running"] = "idle"
        if runner is not None:
            state = "preparing" if runner.phase == "stopping" else runner.phase
        return msgspec.structs.replace(
            self.me,
            state=state,
            job=runner.job if runner else None,
            address=runner.ready.address if runner and runner.ready else "",
            generation=self._claimed.get(runner.job, 0) if runner else 0,
            leaving=self.leaving_since is not None,
            broken=runner.broken if runner else None,
            trouble=records.cut(runner.trouble, MAX_REFUSAL) if runner else "",
            progress=runner.progress if runner else None,
        )


def _rewound(runner: RunnerState, job: JobView) -> bool:
    """Whether what a runner holds was given up."""
    return job.spec is not None and job.spec.value.rewound != runner.rewound


def _noted(notes: dict[str, N], spec: str, value: N) -> dict[str, N]:
    """The same with one by this specification, as the newest of those that are kept."""
    others = [note for note in notes.items() if note[0] != spec]
    return dict([*others, (spec, value)][-KEPT_NOTES:])


def _news(record: records.WorkerRecord) -> tuple[records.WorkerRecord, int]:
    """What is worth saying at once: everything but the beat and the steps within a generation."""
    generation = record.progress.generation if record.progress else 0
    return msgspec.structs.replace(record, beat=0, progress=None), generation
