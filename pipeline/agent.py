"""The worker's mind: what an agent does about its job, its runner and its claims. Pure: events in, actions out.

Guarantees: at most one claim per generation and agent; a publish is one transaction conditional on the plan, the claim
and the head; a runner is restarted only after the report of how the last one ended was counted. Holds no user code and
no clock. Leaves to others: leases (`coordinator/lease.py`), processes and sockets (`worker.py`), training (`runner.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import structlog

from ..coordinator import keys, records
from ..coordinator.kv import Compare, Delete, Put, absent, unchanged
from ..coordinator.transactions import Txn
from . import messages
from .hang import HangWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..coordinator.transactions import Outcome
    from ..coordinator.views import Entry, JobView

log = structlog.get_logger()

BEAT_SECONDS = 1.0
TERM_SECONDS = 3.0
"""From TERM to KILL."""


# ---- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a runner and send it this."""

    prepare: messages.Prepare


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the runner."""

    message: messages.ToRunner


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the runner's process group; `stacks` asks it to write its stacks to its log first."""

    kind: Literal["stacks", "term", "kill"]


@dataclass(frozen=True, slots=True)
class Write:
    """Apply a transaction and report the outcome with `on_outcome`."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class Exit:
    """All is handed over: the agent may end."""


Action = Start | Send | Signal | Write | Exit


@dataclass(slots=True)
class RunnerState:
    """What the agent knows of its runner process."""

    job: str
    spec: str
    phase: Literal["preparing", "ready", "running", "stopping"] = "preparing"
    ready: messages.Ready | None = None
    held: int = 0
    run: messages.Run | None = None
    started: int = 0
    stopped: str = ""
    told: Yielded | None = None
    pausing: bool = False
    leaving: bool = False
    committing: bool = False
    publish: messages.Publish | None = None
    damaged: messages.Damaged | None = None
    failed: messages.Failed | None = None
    progress: records.Progress | None = None
    hangs: dict[str, HangWatch] = field(default_factory=dict)
    computing: str | None = None
    hung: float = 0.0
    term_at: float | None = None


@dataclass(frozen=True, slots=True)
class Yielded:
    """The last `Yield` sent for the generation that runs."""

    generation: int = 0
    lost: frozenset[int] = frozenset()
    drop: bool = False


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
    _written: records.WorkerRecord | None = None
    _beat_at: float = float("-inf")
    _claimed: dict[str, int] = field(default_factory=dict)
    _report: tuple[str, records.Report] | None = None

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

    def on_message(self, message: messages.FromRunner, now: float) -> None:
        """The runner said something."""
        runner = self.runner
        if runner is None:
            return
        if isinstance(message, messages.Computing):
            self._computing(runner, message.what, now)
            return
        if runner.computing is not None:
            runner.hangs[runner.computing].end(now)
            runner.computing = None
        if isinstance(message, messages.Ready):
            runner.ready = message
            runner.phase = "ready"
        elif isinstance(message, messages.Stepped):
            runner.progress = message.progress
            runner.held = message.progress.step
        elif isinstance(message, messages.Idle):
            runner.phase, runner.held, runner.run = "ready", message.held, None
            runner.stopped = message.reason
            runner.told = None
            log.info("agent.runner_idle", job=runner.job, held=message.held, reason=message.reason)
        elif isinstance(message, messages.Publish):
            runner.publish = message
        elif isinstance(message, messages.Committed):
            runner.committing = False
        elif isinstance(message, messages.Damaged):
            runner.damaged = message
        elif isinstance(message, messages.Failed):
            runner.failed = message

    def _computing(self, runner: RunnerState, what: str, now: float) -> None:
        runner.computing = what
        runner.hangs.setdefault(what, HangWatch(floor=self.hang_floor)).begin(now)

    def on_exit(self, how: str) -> None:
        """The runner's process is gone. `how` names signal or status, with the last lines of its log."""
        runner, self.runner = self.runner, None
        if runner is None or (runner.phase == "stopping" and runner.failed is None):
            return
        if runner.failed is not None:
            cause, step = runner.failed.cause, runner.failed.step
            message, traceback = runner.failed.message, runner.failed.traceback
        elif self.leaving_since is not None:
            cause, step, message, traceback = "preempted", runner.held, how, ""
        else:
            cause = "hang" if runner.hung else "died"
            step, traceback = runner.held, ""
            message = f"no progress for {runner.hung:.0f} s, ended" if runner.hung else how
        generation = self._claimed.get(runner.job, 0)
        report = records.Report(
            worker=self.id, generation=generation, cause=cause, step=step, message=message, traceback=traceback
        )
        self._report = (runner.job, report)
        if cause in ("memory", "refused"):
            self._refuse(runner, message)
        log.warning("agent.attempt_ended", job=runner.job, cause=cause, step=step, message=message)

    def _refuse(self, runner: RunnerState, reason: str) -> None:
        """Not this specification on this device again: the planner passes us over for it."""
        log.error("agent.refused", job=runner.job, reason=reason)
        self.me = msgspec.structs.replace(self.me, refusals={**self.me.refusals, runner.spec: reason})

    def on_outcome(self, txn: Txn, outcome: Outcome) -> None:
        """How a transaction of ours ended. Unknown needs nothing: the next picture tells."""
        if txn.tag == "record" and outcome != "yes":
            self._written = None
        if txn.tag == "report" and outcome == "yes":
            self._report = None

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
            if self._report is None or not self.lease:
                yield Exit()
            return
        if assigned is None or job is None or job.name != assigned or job.spec is None:
            return
        spec = job.spec.value
        if job.over or job.desired != "running" or spec.spec in self.me.refusals:
            return
        if self._report is not None or self.id in job.reports or not self.lease:
            return  # the last attempt must be counted first
        self.runner = RunnerState(assigned, spec.spec)
        self._computing(self.runner, "load", now)
        yield Start(messages.Prepare(job=assigned, worker=self.id, spec=spec.spec, code=spec.code))

    def _serve(self, runner: RunnerState, assigned: str | None, job: JobView, now: float) -> Iterator[Action]:
        yield from self._publish(runner, job)
        yield from self._damage(runner, job)
        if runner.phase == "stopping":
            return
        slot = job.plan.value.slot_of(self.id) if job.plan else None
        if runner.phase == "running":
            yield from self._while_running(runner, job)
        elif runner.phase == "ready":
            yield from self._while_ready(runner, assigned, job, slot, now)
        elif runner.phase == "preparing" and (assigned != runner.job or self.leaving_since is not None or job.over):
            yield from self._stop(runner, now)

    def _while_running(self, runner: RunnerState, job: JobView) -> Iterator[Action]:
        run = runner.run
        assert run is not None
        drop = job.over or job.desired == "cancelled" or job.spec is None
        if job.generation > run.generation or drop:
            # Whoever still holds a claim on the old generation will still send its partials.
            gone = {
                s for s, m in enumerate(run.members)
                if s != run.slot and (run.generation, s) not in job.all_claims
            }  # fmt: skip
            drop = drop or not job.members
            told = Yielded(job.generation, frozenset(gone), drop)
            if told != runner.told:
                runner.told = told
                yield Send(messages.Yield(generation=job.generation, lost=tuple(sorted(gone)), drop=drop))
        if self.leaving_since is not None and not runner.leaving:
            runner.leaving = True
            yield Send(messages.Leave())
        if job.desired == "paused" and not runner.pausing:
            runner.pausing = True
            yield Send(messages.Pause())

    def _while_ready(
        self, runner: RunnerState, assigned: str | None, job: JobView, slot: int | None, now: float
    ) -> Iterator[Action]:
        mine = job.claims.get(slot) if slot is not None else None
        claimed = mine is not None and mine.value.worker == self.id
        if self.leaving_since is not None:
            yield from self._leave(runner, job, claimed, now)
            return
        if job.desired == "paused" and slot is not None and not job.over:
            yield from self._pause(runner, job, slot, claimed)
            return
        resumed = runner.stopped == "pause" and runner.started == job.generation
        if job.over or slot is None or resumed:
            # Nobody must wait for partials of mine; and a generation that stopped to pause needs a successor.
            yield from self._release(job)
        if job.over or (assigned != runner.job and slot is None):
            yield from self._stop(runner, now)
            return
        refusal = self._unlike(runner, job)
        if refusal is not None:
            self._refuse(runner, refusal)
            yield from self._stop(runner, now)
        elif job.probe is None:
            yield self._record_probe(runner, job)
        elif slot is not None and job.desired == "running":
            if claimed:
                yield from self._start(runner, job, slot)
            elif self._claimed.get(job.name, 0) < job.generation and self.lease:
                yield from self._claim(runner, job, slot)

    def _unlike(self, runner: RunnerState, job: JobView) -> str | None:
        """Why this device may not take part, or None: it must reproduce what the first worker computed."""
        if job.probe is None or runner.ready is None:
            return None
        probe, ready = job.probe.value, runner.ready
        if probe.determinism != ready.determinism:
            differ = [
                f"{name}: {ready.description.get(name)!r} here, {probe.description.get(name)!r} there"
                for name in sorted(probe.description.keys() | ready.description.keys())
                if probe.description.get(name) != ready.description.get(name)
            ]
            return f"another determinism class than {probe.worker} ({'; '.join(differ)})"
        if probe.digest != ready.probe:
            return f"computes other bits than {probe.worker} for the initial state and first gradient"
        return None

    def _record_probe(self, runner: RunnerState, job: JobView) -> Action:
        assert runner.ready is not None
        ready = runner.ready
        probe = records.Probe(
            determinism=ready.determinism, digest=ready.probe, description=ready.description, worker=self.id
        )
        key = keys.probe(job.name)
        return Write(Txn("probe", (absent(key),), (Put(key, records.encode(probe)),)))

    def _claim(self, runner: RunnerState, job: JobView, slot: int) -> Iterator[Action]:
        """Claim my slot of the current generation, letting go of older ones."""
        assert job.plan is not None
        self._claimed[job.name] = job.generation
        key = keys.claim(job.name, job.generation, slot)
        claim = records.Claim(worker=self.id, held=runner.held)
        operations: list[Put | Delete] = [Put(key, records.encode(claim), self.lease)]
        operations += [Delete(entry.kv.key) for entry in self._my_claims(job)]
        yield Write(Txn("claim", (unchanged(job.plan.kv), absent(key)), tuple(operations)))

    def _start(self, runner: RunnerState, job: JobView, slot: int) -> Iterator[Action]:
        """Everybody has claimed: begin where the newest state is, or bring it to those who need it."""
        step = job.start_step()
        assert job.plan is not None
        if step is None or runner.committing or runner.started >= job.generation:
            return  # a generation is run once: whoever stopped in it waits for the next
        base_step, manifest = job.base
        held = [job.claims[s].value.held for s in range(len(job.members))]
        base = messages.Base(step=base_step, manifest=manifest)
        if step > base_step and min(held) < step:
            if held.index(step) == slot:
                runner.committing = True
                yield Send(messages.Commit(base=base))
            return
        runner.run = messages.Run(generation=job.generation, members=job.members, slot=slot, step=step, base=base)
        runner.phase, runner.told, runner.started = "running", None, job.generation
        runner.pausing = runner.leaving = False
        yield Send(runner.run)

    def _leave(self, runner: RunnerState, job: JobView, claimed: bool, now: float) -> Iterator[Action]:
        """Told to go while idle: if the newest state is only here, commit it first."""
        if (runner.publish is not None or runner.committing) and not job.over:
            return  # a commit is on its way out
        only_here = runner.held > job.base[0] and not runner.leaving
        if only_here and claimed and not job.over and len(job.members) == 1:
            runner.leaving = runner.committing = True
            step, manifest = job.base
            yield Send(messages.Commit(base=messages.Base(step=step, manifest=manifest)))
            return
        yield from self._release(job)
        yield from self._stop(runner, now)

    def _pause(self, runner: RunnerState, job: JobView, slot: int, claimed: bool) -> Iterator[Action]:
        """Paused and not running: see that the newest state is committed before letting go."""
        if runner.committing or runner.publish is not None:
            return
        base_step, manifest = job.base
        if runner.held <= base_step:
            yield from self._release(job)
        elif not claimed:
            if self._claimed.get(job.name, 0) < job.generation and self.lease:
                yield from self._claim(runner, job, slot)
        elif slot == min(job.claims, key=lambda s: (-job.claims[s].value.held, s)):
            runner.committing = True
            yield Send(messages.Commit(base=messages.Base(step=base_step, manifest=manifest)))

    def _release(self, job: JobView) -> Iterator[Action]:
        mine = self._my_claims(job)
        if mine:
            yield Write(Txn("release", (), tuple(Delete(entry.kv.key) for entry in mine)))

    def _publish(self, runner: RunnerState, job: JobView) -> Iterator[Action]:
        """Make the runner's commit the head, if that is still ours to do."""
        publish = runner.publish
        if publish is None:
            return
        head = job.head.value if job.head else None
        base_step, base_manifest = job.base
        repairs = head is not None and base_step < publish.step == head.step  # the head is damaged
        if head is not None and (head.manifest == publish.manifest or (head.step >= publish.step and not repairs)):
            runner.publish = None
            yield Send(messages.Published(base=messages.Base(step=base_step, manifest=base_manifest)))
            return
        if publish.parent != base_manifest:
            runner.publish = None
            moved = messages.Base(step=base_step, manifest=base_manifest)
            yield Send(messages.Refused(step=publish.step, reason="the head moved", moved=moved))
            return
        slot = job.plan.value.slot_of(self.id) if job.plan else None
        claim = job.claims.get(slot) if slot is not None else None
        if claim is None or claim.value.worker != self.id:
            if slot is not None and self._claimed.get(job.name, 0) < job.generation and not job.over:
                return  # about to claim: then it can be published under the new generation
            runner.publish = None
            reason = f"fenced: this worker has no claim in generation {job.generation}"
            log.warning("agent.publish_refused", job=job.name, step=publish.step, reason=reason)
            yield Send(messages.Refused(step=publish.step, reason=reason))
            return
        assert job.plan is not None
        new = records.Head(
            step=publish.step, manifest=publish.manifest, state_digest=publish.state_digest,
            generation=job.generation, metrics=publish.metrics,
        )  # fmt: skip
        compares = (
            unchanged(job.plan.kv),
            Compare(claim.kv.key, "create", claim.kv.create_revision),
            unchanged(job.head.kv) if job.head else absent(keys.head(job.name)),
        )
        yield Write(Txn("publish", compares, (Put(keys.head(job.name), records.encode(new)),)))

    def _damage(self, runner: RunnerState, job: JobView) -> Iterator[Action]:
        found = runner.damaged
        if found is None:
            return
        runner.damaged = None
        if job.head is None or job.head.value.manifest != found.manifest:
            return
        damage = records.Damage(
            manifest=found.manifest, usable_step=found.usable.step, usable_manifest=found.usable.manifest,
            found=found.found,
        )  # fmt: skip
        log.error("agent.commit_damaged", job=job.name, found=found.found, usable=found.usable.step)
        txn = Txn("damage", (unchanged(job.head.kv),), (Put(keys.damage(job.name), records.encode(damage)),))
        yield Write(txn)

    def _stop(self, runner: RunnerState, now: float) -> Iterator[Action]:
        runner.phase = "stopping"
        runner.term_at = now + TERM_SECONDS
        yield Send(messages.Stop())

    def deadlines(self, now: float) -> list[Action]:
        """What is due by the clock alone, also while the store does not answer."""
        return list(self._deadlines(now))

    def _deadlines(self, now: float) -> Iterator[Action]:
        """End a runner that hangs, that does not stop, or that does not leave in time."""
        runner = self.runner
        if runner is None:
            return
        if runner.term_at is not None:
            if now >= runner.term_at:
                runner.term_at = now + TERM_SECONDS
                yield Signal("kill" if runner.hung or runner.phase == "stopping" else "term")
            return
        hanging = runner.hangs[runner.computing].hanging(now) if runner.computing else None
        if hanging is not None:
            runner.hung = hanging
            runner.term_at = now + TERM_SECONDS
            log.error("agent.hang", job=runner.job, seconds=round(hanging, 1), held=runner.held)
            yield Signal("stacks")
            yield Signal("term")
        elif self.leaving_since is not None and now - self.leaving_since > self.grace:
            log.warning("agent.step_dropped", job=runner.job, held=runner.held, grace=self.grace)
            runner.term_at = now + TERM_SECONDS
            yield Signal("kill")

    def _beat(self, now: float) -> Iterator[Action]:
        """Keep the worker's record true: at once when it says something new, else once a second."""
        if not self.lease:
            return
        record = self._describe()
        said = self._written
        changed = said is None or msgspec.structs.replace(record, beat=said.beat, progress=said.progress) != said
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
            generation=self._claimed.get(runner.job, 0) if runner else 0,
            leaving=self.leaving_since is not None,
            progress=runner.progress if runner else None,
        )
