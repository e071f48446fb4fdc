"""The life of one member in one generation: compute, exchange, apply, decide, again. A coroutine without I/O.

It yields wherever it has to wait or where messages should be let in, so the same code runs in a runner process and
under a simulator's virtual clock. Dropping it at any yield leaves the replica at a whole state `S(t)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from ..coordinator.records import Progress
from ..errors import LaneBrokenError, UnavailableError
from . import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .session import Control, Decision, Session

log = structlog.get_logger()

FIRST_POLL_SECONDS = 0.001
LAST_POLL_SECONDS = 0.05
RETRY_SECONDS = 0.5


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

    def compute(self, ests: range) -> Any:
        """My part of a step; leaves the state as it is."""
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

    def send(self, step: int, control: Control, contribution: Any) -> None:
        """Make my part of a step available to the others."""
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
        evaluate_every: steps between evaluations; 0: only at the end.
    """

    session: Session
    replica: Replica
    lane: Lane
    commits: Commits
    say: Callable[[messages.FromRunner], None]
    clock: Callable[[], float]
    samples: int
    evaluate_every: int = 0

    def run(self) -> Generator[Wait, None, messages.Idle]:
        """Run until everybody stops. Returns what to tell the agent."""
        session, replica = self.session, self.replica
        member = session.run.members[session.run.slot]
        ests = range(member.first, member.last)
        rate = Rate(self.samples)
        try:
            aligned = yield from self._align()
        except LaneBrokenError as error:
            return self._broken(error)
        if not aligned:
            return self._idle("yield")
        session.began(self.clock())
        decision: Decision | None = None
        while replica.step < session.total:
            yield Wait()
            if session.broken:
                return self._idle("yield")
            began, sent = self.clock(), self.lane.sent
            self.say(messages.Computing())
            contribution = replica.compute(ests)
            yield Wait(compute=True)
            try:
                gathered = yield from self._exchange(contribution)
            except LaneBrokenError as error:
                return self._broken(error)
            if gathered is None:
                return self._idle("yield")
            slots, before = [control.slot for control, _ in gathered], replica.step
            assert slots == [*range(len(session.run.members))], f"one part per slot, in order of slots: {slots}"
            report = replica.apply([part for _, part in gathered])
            assert replica.step == before + 1, f"a step leads from state {before} to the next, not to {replica.step}"
            self.commits.record(report)
            now = self.clock()
            decision = session.decide(replica.step, [control for control, _ in gathered], now)
            self._tell(report, rate.step(now), now - began, self.lane.sent - sent)
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

    def _align(self) -> Generator[Wait, None, bool]:
        """Meet the others and see that everybody holds the state to begin with; False if the generation is over."""
        run, replica = self.session.run, self.replica
        if not (yield from self._until(self.lane.meet)):
            return False
        holders = [slot for slot, held in enumerate(run.held) if held == run.step]
        behind = [slot for slot, held in enumerate(run.held) if held != run.step]
        if not holders or run.lane != "peer":
            return True  # all have loaded a commit
        from_whom = {slot: holders[number % len(holders)] for number, slot in enumerate(behind)}
        if run.slot in holders:
            mine = [slot for slot in behind if from_whom[slot] == run.slot]
            parcel = Parcel(replica.state(), self.commits.history)
            return not mine or bool((yield from self._until(lambda: self.lane.give(mine, parcel))))
        given: Parcel | None = yield from self._until(lambda: self.lane.take(from_whom[run.slot]))
        if given is None:
            return False
        replica.load_state(given.state)
        assert replica.step == run.step, f"state {run.step} was to be given, not {replica.step}"
        self.commits.adopt(given.history)
        return True

    def _until(self, call: Callable[[], Any]) -> Generator[Wait, None, Any]:
        """Call until the answer is something; None when the generation is over before that."""
        delay = FIRST_POLL_SECONDS
        waited = False
        while True:
            answer = yield from self._insist(call)
            if answer or self.session.superseded or self.session.broken:
                return answer
            if not waited:
                self.say(messages.Waiting())
                waited = True
            yield Wait(0.0 if self.lane.waits else delay)
            delay = min(delay * 1.5, LAST_POLL_SECONDS)

    def _exchange(self, contribution: Any) -> Generator[Wait, None, list[tuple[Control, Any]] | None]:
        """Send my part and wait for the others'. None when they will not come."""
        session, step = self.session, self.replica.step
        control = session.control(step, self.clock(), self.commits.idle)
        yield from self._insist(lambda: self.lane.send(step, control, contribution))
        waited = False
        delay = FIRST_POLL_SECONDS
        while True:
            gathered: list[tuple[Control, Any]] | None
            gathered = yield from self._insist(lambda: self.lane.poll(step))
            # Looked before giving up: if the lost one had sent its part, the step is whole and nothing is lost.
            if gathered is not None or session.broken:
                return gathered
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
                    return None
                yield Wait(RETRY_SECONDS)

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
