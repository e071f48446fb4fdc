"""The life of one member in one generation: compute, exchange, apply, decide, again. A coroutine without I/O.

It yields wherever it has to wait or where messages should be let in, so the same code runs in a runner process and
under a simulator's virtual clock. Dropping it at any yield leaves the replica at a whole state `S(t)`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import structlog

from ..coordinator.records import Progress
from ..errors import DivergenceError, LaneBrokenError, UnavailableError, WrongReplicaError, listed
from ..storage import sums
from . import integrity, messages
from .session import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .session import Session

log = structlog.get_logger()

FIRST_POLL_SECONDS = 0.001
LAST_POLL_SECONDS = 0.05
RETRY_SECONDS = 0.5

KEPT_SAMPLES = 2000
"""Steps of which everybody's samples of partials are remembered, to tell later who has sent wrong ones."""

ADVICE = (
    "if it happens again on other devices, the code computes something else each time (the clock, unseeded random "
    "numbers, threads of its own); `easyscale retry` goes on from the newest commit"
)


class _OverError(Exception):
    """This generation is over for us: the state held is whole, and its next members carry on."""


class Wait(NamedTuple):
    """A point where time may pass. `compute` marks the work of a step, for a simulator that has to charge it."""

    seconds: float = 0.0
    compute: bool = False


class StepReport(Protocol):
    """What a replica says about a step; `engine.StepReport` has more."""

    @property
    def loss(self) -> float:
        """Mean over all ESTs."""
        ...

    @property
    def lr(self) -> Sequence[float]:
        """Learning rates the step was made with, by parameter group."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch the step belongs to."""
        ...


class Replica(Protocol):
    """What holds `S(t)` and can move it on. `engine.Engine` is the real one."""

    @property
    def step(self) -> int:
        """t of the state held."""
        ...

    def state(self) -> Any:
        """The state held, as a tree; it may be read until the next `apply`."""
        ...

    def load_state(self, tree: Any) -> None:
        """Hold this state instead."""
        ...

    def compute(self, ests: range, watch: int | None = None) -> Any:
        """My part of a step; leaves the state as it is. `watched` in it are the gradient's sums of EST `watch`."""
        ...

    def gradient_sums(self, est: int) -> bytes:
        """Sums of what anybody's EST contributes to this step; leaves the state as it is."""
        ...

    @property
    def gradient_names(self) -> Sequence[str]:
        """Of what these are the sums."""
        ...

    def sums(self) -> bytes:
        """Sums of the state held: equal if the states are, and hardly ever otherwise."""
        ...

    def exact_sums(self) -> dict[str, str]:
        """The same by name, slow, and different only if the states are."""
        ...

    def run_local(self) -> StepReport:
        """A whole step, all ESTs, without the others."""
        ...

    def apply(self, contributions: Sequence[Any]) -> StepReport:
        """Everybody's parts: the state becomes the next one."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics of the state held."""
        ...


class Lane(Protocol):
    """How partials travel between the members of one generation. Never visible in the bits.

    All methods may raise `UnavailableError` (try again) and `LaneBrokenError` (this generation is over).
    """

    @property
    def kind(self) -> str:
        """`local`, `peer` or `store`."""
        ...

    @property
    def waits(self) -> bool:
        """Whether calls wait for what is not there yet, so that nobody needs to in between."""
        ...

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        ...

    @property
    def ran_out(self) -> bool:
        """Whether it broke only because nothing came for too long."""
        ...

    def part(self) -> None:
        """The generation ended by common decision: that I go now is no break."""
        ...

    def close(self, *, finished: bool) -> None:
        """Let go of everything. Afterwards nobody reads or writes what was sent or given.

        Args:
            finished: the others need nothing of mine any more.
        """
        ...

    def meet(self) -> bool:
        """Whether all members are here; call again until they are. May wait for some milliseconds."""
        ...

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """Hand the state held to these members; call again until it is done, and leave the state as it is till then."""
        ...

    def take(self, slot: int) -> Parcel | None:
        """The state that this member gives me, or None while it is on its way."""
        ...

    def send(self, step: int, control: Control, contribution: Any | None) -> None:
        """Make my part of a step available to the others; None: only the control record, between two steps.

        All members agree on which it is. A `control.round` other than 0 says that it is between steps.
        """
        ...

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """All members' parts in slot order, or None while some are missing. May wait for some milliseconds.

        A lane may have done sums on the way: together the parts have what `Replica.apply` needs.
        """
        ...


class Parcel(NamedTuple):
    """What a member that is behind needs to carry on.

    Args:
        state: tree of `S(t)`. history: step -> JSON line, since the newest commits: see `Committer.history`.
    """

    state: Any
    history: dict[int, bytes]


class Commits(Protocol):
    """Where commits are made, in the background."""

    @property
    def history(self) -> dict[int, bytes]:
        """What is remembered of the steps since the newest commits."""
        ...

    def adopt(self, history: dict[int, bytes]) -> None:
        """Another member's state was loaded: its history is ours."""
        ...

    @property
    def base(self) -> messages.Base:
        """The newest commit that is known to be the head."""
        ...

    @property
    def idle(self) -> bool:
        """Whether a new snapshot can be taken."""
        ...

    def record(self, report: Any) -> None:
        """Remember a step for the history that goes with the next commit."""
        ...

    def begin(self, metrics: dict[str, float], *, publish: bool, share: tuple[int, int]) -> None:
        """Take a snapshot of the state held; upload a share of it; publish it if asked."""
        ...

    def settled(self, step: int) -> bool:
        """Whether a commit of at least this step is the head, or we have been fenced off."""
        ...


@dataclass(slots=True)
class Rate:
    """Samples per second over the last couple of seconds."""

    samples: int
    window: float = 2.0
    _since: float = 0.0
    _steps: int = 0
    value: float = 0.0

    def step(self, now: float) -> float:
        """Count a step."""
        if self._steps == 0 and self._since == 0.0:
            self._since = now
            return self.value
        self._steps += 1
        elapsed = now - self._since
        if elapsed > 0 and (self.value == 0.0 or elapsed >= self.window):
            self.value = self._steps * self.samples / elapsed
            if elapsed >= self.window:
                self._since, self._steps = now, 0
        return self.value


@dataclass(slots=True)
class Generation:
    """Everything a member needs for one generation.

    Args:
        samples: samples of one step over all ESTs, for the rate. say: sends a message to the agent.
        restore: makes the replica hold the state of a commit (or the initial one). evaluate_every: steps between
            evaluations; 0: only at the end.
    """

    session: Session
    replica: Replica
    lane: Lane
    commits: Commits
    say: Callable[[messages.FromRunner], None]
    clock: Callable[[], float]
    samples: int
    restore: Callable[[messages.Base], None]
    evaluate_every: int = 0
    _rounds: int = field(default=0, init=False)
    _samples: deque[tuple[int, list[bytes]]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES), init=False)

    def run(self) -> Generator[Wait, None, messages.Idle]:
        """Run until everybody stops. Returns what to tell the agent.

        Raises:
            WrongReplicaError: this replica's bits are not those of the others, and theirs are right.
            DivergenceError: replicas differ, and nobody can tell which of them is right.
        """
        try:
            return (yield from self._run())
        except _OverError:
            return self._idle("yield")
        except LaneBrokenError as error:
            return self._broken(error)

    def _run(self) -> Generator[Wait, None, messages.Idle]:
        session, replica = self.session, self.replica
        member = session.run.members[session.run.slot]
        rate = Rate(self.samples)
        yield from self._align()
        session.began(self.clock())
        while replica.step < session.total:
            yield Wait()
            if session.broken:
                raise _OverError
            began, sent, step = self.clock(), self.lane.sent, replica.step
            self.say(messages.Computing())
            watch = session.audited(session.run.slot, step)
            contribution = replica.compute(range(member.first, member.last), watch)
            control = self._control(contribution)
            yield Wait(compute=True)
            gathered = yield from self._exchange(control, contribution)
            slots, controls = [control.slot for control, _ in gathered], [control for control, _ in gathered]
            assert slots == [*range(len(session.run.members))], f"one part per slot, in order of slots: {slots}"
            self._samples.append((step, [control.sample for control in controls]))
            recomputed = yield from self._settle(controls)
            yield from self._settle_audit(controls)
            report = replica.run_local() if recomputed else replica.apply([part for _, part in gathered])
            assert replica.step == step + 1, f"a step leads from state {step} to the next, not to {replica.step}"
            self.commits.record(report)
            now = self.clock()
            decision = session.decide(replica.step, controls, now)
            self._tell(report, rate.step(now), now - began, self.lane.sent - sent)
            if (decision.commit or decision.stop) and not session.alone:  # before anybody else relies on this state
                yield from self._settle((yield from self._confer(sums=replica.sums())))
            if decision.stop is not None:
                self.lane.part()
            if decision.stop == "done":
                break
            metrics = self._evaluate() if self._due() else {}
            if decision.commit and (decision.final or self.commits.idle):
                yield from self._commit(metrics, final=decision.final)
            if decision.stop is not None:
                return self._idle(decision.stop)
        yield from self._commit(self._evaluate() if session.run.slot == 0 else {}, final=True)
        return self._idle("done")

    def _idle(self, reason: Any) -> messages.Idle:
        return messages.Idle(generation=self.session.run.generation, held=self.replica.step, reason=reason)

    def _broken(self, error: LaneBrokenError) -> messages.Idle:
        """The step is dropped. The lane stays open, so that the others find out by themselves who is lost."""
        generation = self.session.run.generation
        log.warning("lane.broken", generation=generation, step=self.replica.step, lost=error.lost, error=str(error))
        self.say(messages.Broken(generation=generation, lost=error.lost, why=str(error)))
        return self._idle("yield")

    def _align(self) -> Generator[Wait, None, None]:
        """Meet the others and see that everybody holds the state to begin with."""
        run, replica = self.session.run, self.replica
        yield from self._until(self.lane.meet)
        holders = [slot for slot, held in enumerate(run.held) if held == run.step]
        behind = [slot for slot, held in enumerate(run.held) if held != run.step]
        if not holders or run.lane != "peer":
            return  # all have loaded a commit
        from_whom = {slot: holders[number % len(holders)] for number, slot in enumerate(behind)}
        if run.slot in holders:
            mine = [slot for slot in behind if from_whom[slot] == run.slot]
            if mine:
                parcel = Parcel(replica.state(), self.commits.history)
                yield from self._until(lambda: self.lane.give(mine, parcel))
            return
        given: Parcel = yield from self._until(lambda: self.lane.take(from_whom[run.slot]))
        replica.load_state(given.state)
        assert replica.step == run.step, f"state {run.step} was to be given, not {replica.step}"
        self.commits.adopt(given.history)

    def _until(self, call: Callable[[], Any]) -> Generator[Wait, None, Any]:
        """Call until the answer is something."""
        delay = FIRST_POLL_SECONDS
        waited = False
        while True:
            answer = yield from self._insist(call)
            if answer:
                return answer
            if self.session.superseded or self.session.broken:
                raise _OverError
            if not waited:
                self.say(messages.Waiting())
                waited = True
            yield Wait(0.0 if self.lane.waits else delay)
            delay = min(delay * 1.5, LAST_POLL_SECONDS)

    def _control(self, contribution: Any) -> Control:
        """My record for the step at hand."""
        session, replica = self.session, self.replica
        slot, step = session.run.slot, replica.step
        control = session.control(step, self.clock(), self.commits.idle)
        sums = replica.sums() if session.checks(step) else b""
        theirs = session.audited(session.audits(slot), step)
        audit = b"" if theirs is None else replica.gradient_sums(theirs)
        return msgspec.structs.replace(
            control, sums=sums, sample=contribution.sample, gradient=contribution.watched, audit=audit
        )

    def _exchange(self, control: Control, contribution: Any) -> Generator[Wait, None, list[tuple[Control, Any]]]:
        """Send my part and wait for the others'."""
        session, step = self.session, self.replica.step
        yield from self._insist(lambda: self.lane.send(step, control, contribution))
        waited = False
        delay = FIRST_POLL_SECONDS
        while True:
            gathered: list[tuple[Control, Any]] | None
            gathered = yield from self._insist(lambda: self.lane.poll(step))
            # Looked before giving up: if the lost one had sent its part, the step is whole and nothing is lost.
            if gathered is not None:
                return gathered
            if session.broken:
                raise _OverError
            if not waited:
                self.say(messages.Waiting())
                waited = True
            yield Wait(0.0 if self.lane.waits else delay)
            delay = min(delay * 1.5, LAST_POLL_SECONDS)

    def _insist(self, call: Callable[[], Any]) -> Generator[Wait, None, Any]:
        """Retry an exchange through an outage of the store; give up only with the generation."""
        while True:
            try:
                return call()
            except UnavailableError as error:
                log.warning("lane.unavailable", step=self.replica.step, error=str(error))
                self.say(messages.Waiting())
                if self.session.broken:
                    raise _OverError from error
                yield Wait(RETRY_SECONDS)

    # ---- comparing

    def _confer(self, **what: Any) -> Generator[Wait, None, list[Control]]:
        """Say something to all between two steps; what everybody says, by slot."""
        self._rounds += 1
        control = Control(slot=self.session.run.slot, round=self._rounds, **what)
        return [theirs for theirs, _ in (yield from self._exchange(control, None))]

    def _settle(self, controls: Sequence[Control]) -> Generator[Wait, None, bool]:
        """See that all replicas hold the same state; if they do not, all recompute it, and the right ones go on.

        Returns:
            Whether the state was recomputed, so that what was made of the old one is worthless.

        Raises:
            WrongReplicaError, DivergenceError: see `run`.
        """
        if len({control.sums for control in controls}) == 1:
            return False
        run, step = self.session.run, self.replica.step
        self.say(messages.Computing(what="replay"))
        mine = {} if step == run.step and run.held and run.held[run.slot] != step else self.replica.exact_sums()
        controls = yield from self._confer(exact=mine, base=self.commits.base if run.slot == 0 else None)
        before = [control.exact for control in controls]
        found = integrity.differing(before)
        if not found:
            log.info("replicas.alike", step=step)  # they only look different, or one was given its state by another
            return False
        base = controls[0].base
        assert base is not None, "slot 0 says where to begin"
        log.error("replicas.differ", generation=run.generation, step=step, differing=found[:8], base=base.step)
        blamed = yield from self._replay(base, step)
        mine = self.replica.exact_sums()
        controls = yield from self._confer(exact=mine, blamed=blamed)
        after = [control.exact for control in controls]
        verdict = integrity.judge(before, after, [control.blamed for control in controls])
        if verdict.right is None or verdict.wrong:
            self.lane.part()  # everybody knows: that some go now is no break
        what = f"the states of {len(controls)} workers differ"
        if verdict.right is None:
            raise DivergenceError(
                f"{what} in {listed(verdict.differing)}, and differ again after each has recomputed them from commit "
                f"{base.step}: nobody can tell which is right\n  {ADVICE}"
            )
        if run.slot in verdict.wrong:
            was = before[run.slot] if mine == verdict.right else mine
            raise WrongReplicaError(integrity.evidence(step, what, verdict.differing, was, verdict.right))
        if verdict.wrong:
            log.error("replicas.settled", step=step, wrong=verdict.wrong)
            raise _OverError
        log.error("replicas.settled", step=step, wrong=(), hint="recomputed; who was wrong cannot be told")
        return True

    def _replay(self, base: messages.Base, until: int) -> Generator[Wait, None, tuple[int, ...]]:
        """Compute all ESTs from a commit to this step again; which slots' partials were the first to be others.

        The state that is held is in doubt, so it is given up first: whenever this ends, what is held then is right.
        """
        self.say(messages.Computing(what="replay"))
        self.restore(base)
        members, samples = self.session.run.members, dict(self._samples)
        blamed: tuple[int, ...] = ()
        while self.replica.step < until:
            yield Wait(compute=True)
            if self.session.broken:
                raise _OverError
            self.say(messages.Computing(what="replay"))
            were = samples.get(self.replica.step)
            parts = [self.replica.compute(range(member.first, member.last)) for member in members]
            if were is not None and not blamed:
                pairs = enumerate(zip(were, parts, strict=True))
                blamed = tuple(slot for slot, (sample, part) in pairs if sample != part.sample)
            self.replica.apply(parts)
        return blamed

    def _settle_audit(self, controls: Sequence[Control]) -> Generator[Wait, None, None]:
        """See that who audited an EST got the gradient that its owner got; if not, all compute it again, and vote.

        Raises:
            WrongReplicaError, DivergenceError: see `run`.
        """
        session, step = self.session, self.replica.step
        owners = [session.audits(control.slot) for control in controls]
        pairs = [(auditor.slot, owner) for auditor, owner in zip(controls, owners, strict=True)]
        doubtful = [(a, o) for a, o in pairs if controls[a].audit != controls[o].gradient]
        if not doubtful:
            return
        auditor, owner = doubtful[0]
        est = session.audited(owner, step)
        assert est is not None, "who has sums of a gradient was asked for them"
        log.error("audit.differs", step=step, est=est, owner=owner, auditor=auditor)
        self.say(messages.Computing(what="replay"))
        fresh = yield from self._confer(audit=self.replica.gradient_sums(est))
        said = [(owner, controls[owner].gradient), (auditor, controls[auditor].audit)]
        said += [(control.slot, control.audit) for control in fresh]
        right, wrong = integrity.vote([integrity.Opinion(*opinion) for opinion in said])
        self.lane.part()
        names = self.replica.gradient_names
        found = sums.differing([theirs for _, theirs in said], names)
        what = f"the gradient of EST {est} was computed with different results"
        if right is None:
            raise DivergenceError(
                f"{what} in {listed(found)}, and again when all computed it anew: nobody can tell which is right\n"
                f"  {ADVICE}"
            )
        if session.run.slot in wrong:
            mine = next(theirs for slot, theirs in said if slot == session.run.slot and theirs != right)
            opinions = [sums.named(theirs, names) for theirs in (mine, right)]
            raise WrongReplicaError(integrity.evidence(step, what, found, *opinions))
        log.error("audit.settled", step=step, est=est, wrong=wrong)
        raise _OverError

    def _due(self) -> bool:
        every = self.evaluate_every
        return bool(every) and self.session.run.slot == 0 and self.replica.step % every == 0

    def _evaluate(self) -> dict[str, float]:
        self.say(messages.Computing(what="evaluation"))
        return self.replica.evaluate()

    def _commit(self, metrics: dict[str, float], *, final: bool) -> Generator[Wait, None, None]:
        """Begin a commit; on a final one slot 0 stays until it is published or refused."""
        run, step = self.session.run, self.replica.step
        share = (run.slot, len(run.members))
        if not final:
            self.commits.begin(metrics, publish=run.slot == 0, share=share)
            return
        self.say(messages.Waiting())
        begun = False
        while not (self.commits.settled(step) or self.session.superseded):
            if self.commits.idle:
                if begun and run.slot != 0:
                    return
                self.commits.begin(metrics, publish=run.slot == 0, share=share)
                begun = True
            yield Wait(LAST_POLL_SECONDS / 5)

    def _tell(self, report: StepReport, rate: float, seconds: float, sent: int) -> None:
        run = self.session.run
        self.say(
            messages.Stepped(
                progress=Progress(
                    step=self.replica.step,
                    started=run.step,
                    generation=run.generation,
                    epoch=report.epoch,
                    loss=report.loss,
                    lr=report.lr[0] if report.lr else None,
                    samples_per_second=round(rate, 2),
                    step_seconds=round(seconds, 6),
                    lane=self.lane.kind,
                    sent=sent,
                )
            )
        )
