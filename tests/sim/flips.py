"""Bits that flip in a replica, and what must come of each: the judge's knowledge of silent corruption.

A flip is *open* until the replicas are compared; then it is *found*, and its holder blamed. While it is open, nobody
may see it in a commit. It may be *lost* only where the promise ends (`docs/concepts.md`): no state made without its
holder is there any more to compare with. Once a living member of the next generation has seen the difference it is
*known*, and must be gone from all states that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from . import misfortunes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from easyscale.pipeline import messages

    from .actors import RunnerProcess
    from .world import SimJob, World

KINDS = ("state", "state", "state", "average", "average", "moment", "context", "partial")
"""`moment` and `context` flip where states are compared, `partial` where it is audited: else nobody can see them."""


@dataclass
class Flip:
    """One flipped bit.

    Args:
        step: the first at which a comparison must show it.
        others: workers that hold states of their own making, to compare with.
        aware: workers that know that states differ.
    """

    runner: RunnerProcess
    kind: str
    step: int
    generation: int
    others: set[str]
    fate: Literal["open", "known", "found", "gone", "lost"] = "open"
    aware: set[str] = field(default_factory=set)


class Flips:
    """Those of one job.

    Args:
        rng: of their own, so that seeds without flips stay what they were.
    """

    def __init__(self, world: World, job: SimJob, rng: random.Random) -> None:
        self.world, self.job, self.rng = world, job, rng
        self.all: list[Flip] = []
        self.upset = False
        """Somebody knew of a difference that was not settled: steps are computed again from a commit."""
        self._kind = rng.choice(KINDS)
        self._from = rng.randrange(1, job.steps)
        self._left = rng.choice([1, 1, 2])

    @property
    def newest(self) -> Flip | None:
        return self.all[-1] if self.all else None

    @property
    def excused(self) -> bool:
        """Whether wrong states may be committed: what was flipped had spread when there was nobody to compare with."""
        return any(flip.fate == "lost" for flip in self.all)

    def due(self, kind: str, runner: RunnerProcess, step: int, watch: int | None = None) -> bool:
        """Whether a bit flips here and now."""
        run = runner.run
        if kind != self._kind or run is None or len(run.members) < 2 or step < self._from or self._left == 0:
            return False
        if runner.replaying or (self.newest is not None and self.newest.fate in ("open", "known")) or self.excused:
            return False
        if (kind in ("moment", "context") and not self._compared(run, step)) or self.rng.random() < 0.6:
            return False
        self._left -= 1
        # Of those that run this generation with a state of their own: who was given one has nothing to compare.
        others = {m.worker for slot, m in enumerate(run.members) if slot != run.slot and run.held[slot] == run.step}
        if step > run.step:
            others |= {m.worker for slot, m in enumerate(run.members) if slot != run.slot}
        self.all.append(Flip(runner, kind, step + (kind == "average"), run.generation, others))
        self._kind, self._from = self.rng.choice(KINDS), step + 1
        self.world.fault(f"bit flips: {kind}", f"{runner.name} at step {step}")
        if self.rng.random() < 0.5:
            self._later(1.0, self._upset)
        return True

    # ---- what the judge hears

    def started(self, run: messages.Run) -> None:
        """A generation begins: with whose states?"""
        flip = self.newest
        if flip is None or flip.fate != "open" or run.generation <= flip.generation:
            return
        members = {m.worker for m in run.members}
        holders = {m.worker for m, held in zip(run.members, run.held, strict=True) if held == run.step}
        if flip.aware & members:
            self._ends(flip, "known")
            self.upset = True
        elif flip.kind == "partial" or not holders:
            self._ends(flip, "gone")  # the step was dropped; or all load a commit
        elif flip.runner.process.alive and flip.runner.agent.name in holders and flip.others & holders:
            flip.others &= holders
            if self.rng.random() < 0.5:
                self._later(1.0, self._strike)
        else:
            self._ends(flip, "lost")

    def said(self, runner: RunnerProcess, message: messages.Computing) -> None:
        """Somebody computes."""
        if message.what == "replay":
            runner.replaying = True
            flip = self.newest
            if flip is not None:
                if not flip.aware and self.rng.random() < 0.6:
                    self._later(self.rng.choice([0.03, 0.1, 3.0]), self._strike)
                flip.aware.add(runner.agent.name)

    def stepped(self, run: messages.Run, step: int) -> None:
        """A member has made the step that led to this state, and was told of no difference."""
        flip = self.newest
        if flip is not None and flip.fate == "open" and self._compared(run, step - 1):
            self.world.judge.check(
                step - 1 < flip.step or run.generation < flip.generation,
                f"states were compared at step {step - 1}, and the {flip.kind} of {flip.runner.name} was not seen",
            )

    def _compared(self, run: messages.Run, step: int) -> bool:
        """Whether that is due in the step that leads on from this state."""
        every = [every for every in (self.job.spec.check_every, self.job.spec.audit_every) if every]
        return len(run.members) > 1 and (step == run.step or any(step % steps == 0 for steps in every))

    def died(self, runner: RunnerProcess) -> None:
        """And what it knew and held with it."""
        for flip in self.all:
            flip.others.discard(runner.agent.name)
            flip.aware.discard(runner.agent.name)

    def told_to_commit(self) -> None:
        """What one member holds is committed without the others."""
        if self.newest is not None and self.newest.fate == "open":
            self._ends(self.newest, "lost")

    def blamed(self, runner: RunnerProcess) -> bool:
        """Whether a member that is said to be in the wrong is."""
        for flip in self.all:
            if flip.runner is runner:
                self._ends(flip, "found")
                return True
        return False

    def settled(self, runner: RunnerProcess, wrong: tuple[int, ...]) -> None:
        """The right state is known. Who was wrong must be, if all had compared before in this generation."""
        flip = self.newest
        if flip is None or runner.run is None:
            return
        same = flip.generation == runner.run.generation and flip.step > runner.run.step
        self.world.judge.check(
            wrong or not same, f"{flip.kind} of {flip.runner.name} was flipped, and nobody is said to be in the wrong"
        )
        if flip.fate == "open" and not wrong:
            self._ends(flip, "gone")

    def _later(self, within: float, call: Callable[[], None]) -> None:
        self.world.hub.at(self.world.hub.now + self.rng.uniform(0.0, within), call)

    def _upset(self) -> None:
        """Before the next comparison one of the others is lost, or a connection, and somebody comes."""
        world = self.world
        if world.quiet:
            return
        others = [w.runner for w in world.living() if w.runner not in (None, self.all[-1].runner)]
        misfortunes.join(world)
        if len(others) > 1 and self.rng.random() < 0.7:
            victim = self.rng.choice(others)
            assert victim is not None
            self._later(2.0, partial(self._kill, victim))
        else:
            self._later(2.0, partial(misfortunes.connection_breaks, world))

    def _kill(self, runner: RunnerProcess) -> None:
        if runner.process.alive and not self.world.quiet:
            self.world.fault("SIGKILL of a runner", runner.name)
            runner.process.kill()

    def _strike(self) -> None:
        """Something happens while the members find out who is right."""
        world = self.world
        if world.quiet:
            return
        self.world.injected["a misfortune while replicas are compared"] += 1
        if len(world.living()) > 1 and self.rng.random() < 0.25:
            self._kill(self.all[-1].runner)
            return
        kinds = [misfortunes.join, misfortunes.connection_breaks, misfortunes.connection_breaks, misfortunes.leave]
        if len(world.living()) > 1:
            kinds += [misfortunes.kill_runner, misfortunes.kill_leader, misfortunes.stop_runner]
        if not world.losses:
            kinds += [misfortunes.store_down, misfortunes.kill_machine]
        self.rng.choice(kinds)(world)

    def _ends(self, flip: Flip, fate: Literal["known", "found", "gone", "lost"]) -> None:
        if flip.fate in ("found", fate):
            return
        flip.fate = fate
        self.world.note(f"the flip of {flip.runner.name} is {fate}")
        self.world.injected[f"a flipped bit is {fate}"] += 1
