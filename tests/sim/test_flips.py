"""Scripts in which a bit flips and members are lost at the worst moment, which seeds hardly ever hit. The judge sees to
it that nothing wrong is committed and nobody innocent blamed; each script finds the mistake that it was written for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from easyscale.pipeline import integrity, messages, replicas, runner

from sim.flips import Flips
from sim.scenario import all_serve, peace
from sim.world import World, small_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.actors import RunnerProcess
    from sim.world import SimJob

STEPS = 40
SEEDS = range(1, 6)


class Script(Flips):
    """One flip of slot 0's state, from the moment on that `flips_now` is set, and what a script adds."""

    def __init__(self, world: World, job: SimJob) -> None:
        super().__init__(world, job, random.Random(0))
        self.flips_now, self.on_difference = False, lambda runner: None

    def due(self, kind: str, runner: RunnerProcess, step: int, watch: int | None = None) -> bool:
        if not self.flips_now or self.all or runner.run is None or runner.run.slot != 0:
            return False
        self._kind, self._from, self._left, self.rng = "state", 0, 1, _Always()
        return super().due(kind, runner, step, watch)

    def said(self, runner: RunnerProcess, message: messages.Computing) -> None:
        if message.what == "replay" and self.all and runner is not self.all[0].runner:
            self.on_difference(runner)
        if self.all:
            self.all[0].aware |= {runner.agent.name} if message.what == "replay" else set()
        runner.replaying |= message.what == "replay"


class _Always(random.Random):
    """Flips, and adds no misfortune."""

    def random(self) -> float:
        return 0.99


def play(seed: int, lane: Any, workers: int, check_every: int, script: Callable[[World, Script], None]) -> Script:
    """A job that runs on so many workers, then what the script wants, then peace."""
    world = World(seed)
    world.lanes = "store" if lane == "store" else "peer"
    with world.installed():
        job = world.submit(small_spec("job", ests=4, steps=STEPS, commit_every=7))
        job.spec = msgspec.structs.replace(job.spec, check_every=check_every, audit_every=0)
        job.flips = flips = Script(world, job)
        world.add_coordinator()
        for _ in range(workers):
            world.add_worker(lane=lane)
        world.run(20.0, lambda: all_serve(world, job) and world.judge.reached.get("job", 0) > 3)
        script(world, flips)
        world.run(30.0, world.all_over)
        peace(world)
        assert not world.judge.violation, "\n".join([*list(world.lines())[-120:], world.judge.violation])
        assert world.view(job).state == "done"
    return flips


def lost_when_all_but_it_know(world: World, flips: Script) -> None:
    """Who flipped dies when the other has seen the difference and has not begun to recompute."""
    flips.flips_now = True

    def kill(_: RunnerProcess) -> None:
        culprit = flips.all[0].runner
        world.hub.at(world.hub.now, culprit.process.kill)

    flips.on_difference = kill


def another_is_lost_when_one_joins(world: World, flips: Script) -> None:
    """A bit flips, and before anything is compared the last member dies while a newcomer waits for a state."""
    flips.flips_now = True
    newcomer, last = world.add_worker(lane=world.workers[0].lane), world.workers[2].runner
    assert last is not None

    def planned() -> None:
        if newcomer.process.name in {m.worker for m in world.view(flips.job).members}:
            last.process.kill()

    world.on_plan = lambda: world.hub.at(world.hub.now, planned)
    world.run(20.0, lambda: not last.process.alive)


def and_again_when_it_has_been_given_one(world: World, flips: Script) -> None:
    """The same, and the exchange breaks once more before the first comparison."""
    another_is_lost_when_one_joins(world, flips)
    began = world.view(flips.job).generation

    def strike(lane: Any, what: str) -> None:
        if what == "has sent its part" and lane.run.generation > began and lane.slot == 2 and lane.run.held[2] == 0:
            world.at_lane = lambda lane, what: None
            for mine, other in ((lane, lane.group[1]), (lane.group[1], lane)):
                mine.lose(other.slot)

    world.at_lane = strike


def trust_in_commits_of_the_doubted_step(patch: Callable[..., None]) -> None:
    real = runner.Runner._restore
    patch(runner.Runner, "_restore", lambda self, base, doubted: real(self, base, doubted + 1))


def no_recomputation_without_a_verdict(patch: Callable[..., None]) -> None:
    patch(replicas.Replicas, "make_good", lambda self: iter(()))


def blame_for_what_was_given(patch: Callable[..., None]) -> None:
    real = integrity.judge
    patch(integrity, "judge", lambda before, after, blamed, given: real(before, after, blamed))


SCRIPTS = [
    ("auto", 2, 10, lost_when_all_but_it_know, no_recomputation_without_a_verdict),
    ("store", 3, 0, another_is_lost_when_one_joins, trust_in_commits_of_the_doubted_step),
    ("auto", 3, 0, and_again_when_it_has_been_given_one, blame_for_what_was_given),
]


@pytest.mark.parametrize(
    ("lane", "workers", "check_every", "script", "plant"), SCRIPTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_flip_at_the_worst_moment_is_gone_and_blames_nobody_else(
    lane: str,
    workers: int,
    check_every: int,
    script: Callable[..., None],
    plant: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = [play(seed, lane, workers, check_every, script) for seed in SEEDS]
    assert [len(flips.all) for flips in every] == [1] * len(SEEDS)
    plant(monkeypatch.setattr)
    with pytest.raises(AssertionError, match=r"wrong state was committed|for no reason of the story's: corrupt"):
        _ = [play(seed, lane, workers, check_every, script) for seed in SEEDS]
