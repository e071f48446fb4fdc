"""One generation as seen by one member: what it tells the others at each step and when everybody stops. Pure.

All members get the same control records for a step, so all of them come to the same decision about it. That is how a
boundary is agreed on without another protocol: whoever wants to stop says so with its partials, and everybody stops
after that step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from . import messages

if TYPE_CHECKING:
    from collections.abc import Iterable


DEFAULT_COMMIT_SECONDS = 10.0


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a member adds to its partials of a step, or says between two steps.

    Args:
        leaving: it must go after this step.
        pausing: it has been told that the job pauses.
        next_generation: the newest generation it has heard of.
        commit: the state after this step is to be committed (said by slot 0 only).
        round: 0 with partials; else counts, upward in a generation, what members say to each other without any.
        sums: of the state before the step, where states are compared: see `storage.sums.state_sums`.
        exact: the same by name, once those differ: see `storage.sums.exact_sums`.
        given: the state held is not of its own making: see `Holding`.
        base: the newest commit (said by slot 0 only, with `sums`): where everybody recomputes from.
        blamed: whom the recomputation speaks against: see `integrity.judge`.
        sample: of my partials and losses: whoever recomputes them can see whether they were right.
        gradient: sums of the gradient of the EST of mine that is audited; `audit`: of the one that I audit.
    """

    slot: int
    leaving: bool = False
    pausing: bool = False
    next_generation: int = 0
    commit: bool = False
    round: int = 0
    sums: bytes = b""
    exact: dict[str, str] = {}
    given: bool = False
    base: messages.Base | None = None
    blamed: tuple[int, ...] = ()
    sample: bytes = b""
    gradient: bytes = b""
    audit: bytes = b""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What all members do after a step.

    Args:
        commit: take a snapshot; slot 0 publishes it, everybody uploads a share.
        stop: why the generation ends here, or None.
        final: slot 0 publishes before it stops: nobody will carry this state on.
    """

    commit: bool
    stop: Literal["done", "yield", "leave", "pause"] | None
    final: bool


@dataclass(slots=True)
class Holding:
    """What a member knows of the state it holds, from one generation to the next.

    Args:
        own: it was made here from states that others had as well. If not (another member has given it, it was loaded
            or recomputed alone), its holder is not to blame for it, until all have compared.
    """

    own: bool = True


@dataclass(slots=True)
class Session:
    """A member's wishes, and the common decisions.

    Args:
        run: the membership. total: step at which the job is done.
        commit_every: steps between commits, or None to go by `commit_seconds`.
        check_every, audit_every: steps between comparisons of states, and between audits; 0: none.
    """

    run: messages.Run
    total: int
    commit_every: int | None = None
    commit_seconds: float | None = None
    check_every: int = 0
    audit_every: int = 0
    leaving: bool = False
    pausing: bool = False
    next_generation: int = 0
    lost: frozenset[int] = frozenset()
    drop: bool = False
    _last_commit: float = field(default=0.0)

    def began(self, now: float) -> None:
        """The generation starts to run."""
        self._last_commit = now

    def hear(self, message: messages.ToRunner) -> None:
        """Take in what the agent says."""
        if isinstance(message, messages.Leave):
            self.leaving = True
        elif isinstance(message, messages.Pause):
            self.pausing = True
        elif isinstance(message, messages.Yield):
            self.next_generation = max(self.next_generation, message.generation)
            self.lost |= frozenset(message.lost)
            self.drop = self.drop or message.drop

    @property
    def broken(self) -> bool:
        """Whether the step under way cannot be finished in this generation."""
        return self.drop or bool(self.lost)

    @property
    def superseded(self) -> bool:
        """Whether a newer generation is known, so that nothing can be published under this one any more."""
        return self.drop or self.next_generation > self.run.generation

    def control(self, step: int, now: float, committer_idle: bool) -> Control:
        """My record for the step that leads from state `step` to `step + 1`."""
        return Control(
            slot=self.run.slot,
            leaving=self.leaving,
            pausing=self.pausing,
            next_generation=self.next_generation,
            commit=self.run.slot == 0 and committer_idle and self._due(step + 1, now),
        )

    @property
    def alone(self) -> bool:
        """Whether there is nobody to compare with."""
        return len(self.run.members) == 1

    def checks(self, step: int) -> bool:
        """Whether states are compared in the step that leads on from state `step`: also in a generation's first."""
        if self.alone:
            return False
        if self.audited(self.run.slot, step) is not None:
            return True  # a gradient from another state would speak against the right one as well
        return step == self.run.step or bool(self.check_every and step % self.check_every == 0)

    def audited(self, slot: int, step: int) -> int | None:
        """The EST of a member that another one computes as well in this step, or None."""
        if self.alone or not self.audit_every or step % self.audit_every:
            return None
        member = self.run.members[slot]
        return member.first + step // self.audit_every % (member.last - member.first)

    def audits(self, slot: int) -> int:
        """Whose EST a member audits."""
        return (slot + 1) % len(self.run.members)

    def _due(self, step: int, now: float) -> bool:
        if self.commit_every is not None:
            return step % self.commit_every == 0
        seconds = self.commit_seconds or DEFAULT_COMMIT_SECONDS
        return now - self._last_commit >= seconds

    def decide(self, step: int, controls: Iterable[Control], now: float) -> Decision:
        """What follows from everybody's records once state `step` (the one after the step) is reached."""
        everybody = list(controls)
        assert len(everybody) == len(self.run.members), f"one record per member, not {len(everybody)}"
        pausing = any(control.pausing for control in everybody)
        leaving = [control.leaving for control in everybody]
        newer = any(control.next_generation > self.run.generation for control in everybody)
        commit = any(control.commit for control in everybody)
        if commit:
            self._last_commit = now
        if step >= self.total:
            return Decision(commit=True, stop="done", final=True)
        if pausing:
            return Decision(commit=True, stop="pause", final=True)
        if any(leaving):
            return Decision(commit=commit or all(leaving), stop="leave", final=all(leaving))
        return Decision(commit=commit, stop="yield" if newer else None, final=False)
