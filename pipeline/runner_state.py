"""What an agent knows of its runner, kept from what the runner says and from how it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import structlog

from ..coordinator import records
from . import actions, messages
from .hang import HangWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

TERM_SECONDS = 3.0
"""From TERM to KILL."""

MAX_WHY = 500
"""Bytes of why an exchange broke that go into the worker's record."""

STACKS_SECONDS = 0.5
"""What a process gets to write its stacks, before TERM ends it."""


HELPS = 0.01
"""The part of a device's memory that fewer ESTs must set free for them to be tried after it ran out."""


@dataclass(frozen=True, slots=True)
class Yielded:
    """The last `Yield` sent for the generation that runs."""

    generation: int = 0
    lost: frozenset[int] = frozenset()
    drop: bool = False


@dataclass(slots=True)
class RunnerState:
    """One runner process as its agent sees it.

    Args:
        job, spec: name and specification digest of the job it serves.
        hang_floor: see `HangWatch`.
        rewound: how often the job's head had gone back when it was started.
        phase: `preparing` (imports, builds), `ready` (holds a state), `running` a generation, `stopping`.
        held: step of the state it holds.
        asked: the newest generation that was claimed for it.
        run: the generation it runs; started: the newest one it was ever given.
        stopped, stopped_at: why and when the last one ended.
        broken: how the exchange of the newest generation broke.
        told: the last `Yield` sent. pausing, leaving: it was told so. committing: it was asked for a commit.
        dropped_at: since when nothing that it does is wanted any more.
        publish, damaged: what it said and the store does not show yet. trouble: why its commits fail just now.
        hung: seconds without progress after which it was ended. term_at: when the next signal is due.
    """

    job: str
    spec: str
    hang_floor: float
    rewound: int = 0
    phase: Literal["preparing", "ready", "running", "stopping"] = "preparing"
    ready: messages.Ready | None = None
    held: int = 0
    asked: int = 0
    run: messages.Run | None = None
    started: int = 0
    stopped: str = ""
    stopped_at: float = 0.0
    broken: records.Broken | None = None
    told: Yielded | None = None
    dropped_at: float | None = None
    pausing: bool = False
    leaving: bool = False
    committing: bool = False
    publish: messages.Publish | None = None
    damaged: messages.Damaged | None = None
    failed: messages.Failed | None = None
    trouble: str = ""
    progress: records.Progress | None = None
    hung: float = 0.0
    term_at: float | None = None
    _asked: bool = False
    _hangs: dict[str, HangWatch] = field(default_factory=dict)
    _computing: str | None = None
    _step_began: float | None = None

    def begins(self, what: str, now: float) -> None:
        """A computation of some kind begins; kinds have deadlines of their own."""
        self._computing = what
        self._hangs.setdefault(what, HangWatch(floor=self.hang_floor)).begin(now)

    def hear(self, message: messages.FromRunner, now: float) -> None:
        """Take in what the runner says."""
        if isinstance(message, messages.Computing) and message.what != "function":
            self.begins(message.what, now)
            self._step_began = now if message.what == "step" else None
            return
        # From the thread that commits: no sign of life of the one that computes.
        if isinstance(message, messages.Publish):
            self.publish, self.trouble = message, ""
            return
        if isinstance(message, messages.Trouble):
            self.trouble = message.what
            return
        if self._computing is not None:
            self._hangs[self._computing].end(now)
            self._computing = None
        if isinstance(message, messages.Ready):
            self.ready = message
            self._enter("ready")
        elif isinstance(message, messages.Stepped):
            self.progress = message.progress
            self.held = message.progress.step
            self._step_began = None
        elif isinstance(message, messages.Broken):
            self._break(message)
        elif isinstance(message, messages.Idle):
            self.held, self.run, self.told = message.held, None, None
            self.stopped, self.stopped_at = message.reason, now
            self._enter("ready")
            log.info("agent.runner_idle", job=self.job, held=message.held, reason=message.reason)
        elif isinstance(message, messages.Committed):
            self.committing = False
        elif isinstance(message, messages.Damaged):
            self.damaged = message
        elif isinstance(message, messages.Failed):
            self.failed = message

    def _break(self, message: messages.Broken) -> None:
        """The exchange broke. Slots are those of the generation that ran: from now on it is spoken of by ids."""
        run = self.run
        if run is None or run.generation != message.generation:
            return
        lost = tuple(run.members[slot].worker for slot in message.lost if slot != run.slot)
        self.broken = records.Broken(generation=run.generation, lost=lost, why=records.cut(message.why, MAX_WHY))
        log.warning("agent.lane_broken", job=self.job, generation=run.generation, lost=lost, why=message.why)

    def _enter(self, phase: Literal["ready"]) -> None:
        if self.phase != "stopping":  # what it said before it heard of it
            self.phase = phase

    def ending(self, how: str, leaving: bool) -> messages.Failed | None:
        """How its end is to be counted; None for one that was told to stop.

        Args:
            how: signal or status of the process, with the last lines of its log.
            leaving: the worker was told to go.
        """
        if self.failed is not None:
            return self.failed
        if self.phase == "stopping":
            return None
        if leaving:
            return messages.Failed(cause="preempted", step=self.held, message=how)
        if self.hung:
            text = f"no progress for {self.hung:.0f} s; the runner was ended, its stacks are in its log"
            return messages.Failed(cause="hang", step=self.held, message=text)
        return messages.Failed(cause="died", step=self.held, message=how)

    def stop(self, now: float) -> Iterator[actions.Action]:
        """Tell it to exit; signals follow if it does not. One that prepares does not listen yet, and holds nothing."""
        self.term_at = now if self.phase == "preparing" else now + TERM_SECONDS
        self.phase = "stopping"
        yield actions.Send(messages.Stop())

    def outlasts(self, deadline: float) -> bool:
        """Whether the step under way, if it takes as long as the last one, ends after this time, and may be dropped.

        Not where there are no others: nobody else holds the state that it began with, and it may be quicker this time.
        """
        run, last = self.run, self.progress
        if run is None or len(run.members) == 1 or last is None or last.generation != run.generation:
            return False
        return self._step_began is not None and self._step_began + last.step_seconds > deadline

    def deadlines(self, now: float, overdue: bool) -> Iterator[actions.Action]:
        """End it when it hangs or does not stop, or when the worker should be gone (`overdue`)."""
        if self.term_at is not None:
            if now >= self.term_at:
                first, self._asked = not self._asked, True
                self.term_at = now + TERM_SECONDS
                yield actions.Signal("term" if self.hung and first else "kill")
            return
        hanging = self._hangs[self._computing].hanging(now) if self._computing else None
        if hanging is not None:
            self.hung = hanging
            self.term_at = now + STACKS_SECONDS
            log.error("agent.hang", job=self.job, seconds=round(hanging, 1), held=self.held)
            yield actions.Signal("stacks")
        elif overdue:
            log.warning("agent.step_dropped", job=self.job, held=self.held)
            self.term_at = now + TERM_SECONDS
            yield actions.Signal("kill")


def fewer_ests(runner: RunnerState, memory: int) -> int:
    """With how many ESTs a runner that ran out of memory is worth another try: half of them; 0: it is not.

    It is not if it had one only, or if what ESTs take of the device's `memory` is not known, or is so little that
    something else took it all.
    """
    run, told = runner.run, (runner.progress.memory if runner.progress else None)
    if told is None and runner.ready is not None:
        told = runner.ready.memory
    if run is None or told is None:
        return 0
    mine = run.members[run.slot]
    fewer = (mine.last - mine.first) // 2
    freed = (mine.last - mine.first - fewer) * told.est
    return fewer if freed >= HELPS * memory else 0
