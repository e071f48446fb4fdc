"""The life of one member in one generation: compute, exchange, apply, decide, again. A coroutine without I/O.

It yields wherever it has to wait or where messages should be let in, so the same code runs in a runner process and
under a simulator's virtual clock. Dropping it at any yield leaves the replica at a whole state `S(t)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import structlog

from ..coordinator.records import Progress
from ..errors import LaneBrokenError, UnavailableError
from . import messages
from .protocols import OverError, Parcel, Wait
from .replicas import RETRY_SECONDS, Replicas
from .session import Control, Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..coordinator.records import Footprint
    from .protocols import Commits, Lane, Replica, StepReport
    from .session import Session

log = structlog.get_logger()

FIRST_POLL_SECONDS = 0.001
LAST_POLL_SECONDS = 0.05

MEMORY_SECONDS = 1.0
"""Between two looks at what is taken of the device's memory."""


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


class Took(NamedTuple):
    """Seconds of one step: the whole, my own ESTs, and from then on until everybody's partials were there."""

    step: float
    compute: float
    exchange: float


@dataclass(slots=True)
class Generation:
    """Everything a member needs for one generation.

    Args:
        samples: samples of one step over all ESTs, for the rate. say: sends a message to the agent.
        restore: see `Replicas`. evaluate_every: steps between evaluations; 0: only at the end.
        holding: what is known of the state held.
        footprint: what the replica takes of its device's memory; None: not known.
        computes: what a step is: see `messages.Computing`.
    """

    session: Session
    replica: Replica
    lane: Lane
    commits: Commits
    say: Callable[[messages.FromRunner], None]
    clock: Callable[[], float]
    samples: int
    restore: Callable[[messages.Base, int], None]
    evaluate_every: int = 0
    holding: Holding = field(default_factory=Holding)
    footprint: Callable[[], Footprint | None] = lambda: None
    computes: Literal["step", "function"] = "step"
    _rounds: int = field(default=0, init=False)
    _memory: Footprint | None = field(default=None, init=False)
    _memory_at: float = field(default=float("-inf"), init=False)

    def run(self) -> Generator[Wait, None, messages.Idle]:
        """Run until everybody stops. Returns what to tell the agent.

        Raises:
            WrongReplicaError: this replica's bits are not those of the others, and theirs are right.
            DivergenceError: replicas differ, and nobody can tell which of them is right.
        """
        replicas = Replicas(
            self.session, self.replica, self.lane, self.commits, self.say, self.restore, self._confer, self.holding
        )
        try:
            return (yield from self._run(replicas))
        except OverError:
            pass
        except LaneBrokenError as error:
            self._broken(error)
        yield from replicas.make_good()
        return self._idle("yield")

    def _run(self, replicas: Replicas) -> Generator[Wait, None, messages.Idle]:
        session, replica = self.session, self.replica
        member = session.run.members[session.run.slot]
        rate = Rate(self.samples)
        yield from self._align()
        session.began(self.clock())
        while replica.step < session.total:
            yield Wait()
            if session.broken:
                raise OverError
            began, sent, step = self.clock(), self.lane.sent, replica.step
            self.say(messages.Computing(what=self.computes))
            contribution = replica.compute(range(member.first, member.last), replicas.watched())
            computed = self.clock()  # its losses are numbers, so a GPU is done with all that was started before them
            yield Wait(compute=True)  # what has been said meanwhile goes with this step: who must leave need not do two
            control = replicas.witness(session.control(step, self.clock(), self.commits.idle), contribution)
            sending = self.clock()
            gathered = yield from self._exchange(control, contribution)
            exchanged = self.clock()
            slots, controls = [control.slot for control, _ in gathered], [control for control, _ in gathered]
            assert slots == [*range(len(session.run.members))], f"one part per slot, in order of slots: {slots}"
            recomputed = yield from replicas.compare(controls)
            report = replica.run_local() if recomputed else replica.apply([part for _, part in gathered])
            assert replica.step == step + 1, f"a step leads from state {step} to the next, not to {replica.step}"
            self.commits.record(report)
            now = self.clock()
            decision = session.decide(replica.step, controls, now)
            took = Took(now - began, computed - began, exchanged - sending)
            if now - self._memory_at >= MEMORY_SECONDS:
                self._memory, self._memory_at = self.footprint(), now
            self._tell(report, rate.step(now), took, self.lane.sent - sent)
            if decision.commit or decision.stop:
                yield from replicas.compare_now()
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

    def _broken(self, error: LaneBrokenError) -> None:
        """The step is dropped. The lane stays open, so that the others find out by themselves who is lost."""
        generation = self.session.run.generation
        log.warning("lane.broken", generation=generation, step=self.replica.step, lost=error.lost, error=str(error))
        self.say(messages.Broken(generation=generation, lost=error.lost, why=str(error)))

    def _align(self) -> Generator[Wait, None, None]:
        """Meet the others and see that everybody holds the state to begin with."""
        run, replica = self.session.run, self.replica

        def over() -> bool:
            return self.session.superseded or self.session.broken

        yield from self._until(self.lane.meet, over)
        holders = [slot for slot, held in enumerate(run.held) if held == run.step]
        behind = [slot for slot, held in enumerate(run.held) if held != run.step]
        if not holders or run.lane != "peer":
            return  # all have loaded a commit
        from_whom = {slot: holders[number % len(holders)] for number, slot in enumerate(behind)}
        if run.slot in holders:
            mine = [slot for slot in behind if from_whom[slot] == run.slot]
            if mine:
                parcel = Parcel(replica.state(), self.commits.history)
                yield from self._until(lambda: self.lane.give(mine, parcel), over)
            return
        given: Parcel = yield from self._until(lambda: self.lane.take(from_whom[run.slot]), over)
        replica.load_state(given.state)
        assert replica.step == run.step, f"state {run.step} was to be given, not {replica.step}"
        self.holding.own = False
        self.commits.adopt(given.history)

    def _until(self, call: Callable[[], Any], over: Callable[[], bool]) -> Generator[Wait, None, Any]:
        """Call until the answer is something, which is looked at before giving up because this generation is `over`."""
        delay = FIRST_POLL_SECONDS
        waited = False
        while True:
            answer = yield from self._insist(call)
            if answer:
                return answer
            if over():
                raise OverError
            if not waited:
                self.say(messages.Waiting())
                waited = True
            yield Wait(0.0 if self.lane.waits else delay)
            delay = min(delay * 1.5, LAST_POLL_SECONDS)

    def _exchange(self, control: Control, contribution: Any) -> Generator[Wait, None, list[tuple[Control, Any]]]:
        """Send my part and wait for the others'. If a lost one had sent its part, the step is whole."""
        step = self.replica.step
        yield from self._insist(lambda: self.lane.send(step, control, contribution))
        gathered: list[tuple[Control, Any]]
        gathered = yield from self._until(lambda: self.lane.poll(step), lambda: self.session.broken)
        return gathered

    def _insist(self, call: Callable[[], Any]) -> Generator[Wait, None, Any]:
        """Retry an exchange through an outage of the store; give up only with the generation."""
        while True:
            try:
                return call()
            except UnavailableError as error:
                log.warning("lane.unavailable", step=self.replica.step, error=str(error))
                self.say(messages.Waiting())
                if self.session.broken:
                    raise OverError from error
                yield Wait(RETRY_SECONDS)

    def _confer(self, **what: Any) -> Generator[Wait, None, list[Control]]:
        """Say something to all between two steps; what everybody says, by slot."""
        self._rounds += 1
        control = Control(slot=self.session.run.slot, round=self._rounds, **what)
        return [theirs for theirs, _ in (yield from self._exchange(control, None))]

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

    def _tell(self, report: StepReport, rate: float, took: Took, sent: int) -> None:
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
                    step_seconds=round(took.step, 6),
                    compute_seconds=round(took.compute, 6),
                    exchange_seconds=round(took.exchange, 6),
                    lane=self.lane.kind,
                    sent=sent,
                    memory=self._memory,
                )
            )
        )
