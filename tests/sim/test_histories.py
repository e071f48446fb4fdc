"""Scripted membership histories: up to five changes over two to four workers, on peers, the store or both in turn.

The judge compares every state with that of the undisturbed run. Stores and coordinator are as they should be, so at
most the broken step is made again while somebody lives who holds it, and in the end all who can serve do. Hypothesis
writes the scripts, and shrinks one that fails to the shortest that still does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import tally
from easyscale.coordinator.breaks import Breaks
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sim import misfortunes
from sim.scenario import all_serve, calm, departure, peace
from sim.world import World, small_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.actors import SimWorker


class Change(NamedTuple):
    """What happens `after` seconds to worker number `who` of those that live."""

    what: str
    after: float
    who: int = 0


CHANGES = st.builds(
    Change,
    what=st.sampled_from(["join", "TERM", "KILL", "KILL of the runner", "STOP", "break"]),
    after=st.sampled_from([0.0, 0.02, 0.3, 1.0, 3.0]),
    who=st.integers(0, 3),
)
PEERS = st.lists(st.just("auto"), min_size=2, max_size=4)
MIXED = st.lists(st.sampled_from(["auto", "store"]), min_size=2, max_size=4)


def befall(world: World, change: Change) -> None:
    """A change of the script."""
    living = world.living()
    worker: SimWorker | None = living[change.who % len(living)] if living else None
    if worker is None or change.what == "join":
        world.add_worker()
    elif change.what == "break":
        misfortunes.connection_breaks(world)
    elif change.what == "TERM":
        world.fault("SIGTERM of an agent", worker.process.name)
        worker.leave()
    elif change.what == "KILL":
        world.fault("SIGKILL of agent and runner", worker.process.name)
        worker.process.kill()
    elif worker.runner is not None:
        runner = worker.runner
        if change.what == "STOP":
            world.fault("SIGSTOP of a runner", runner.name)
            runner.disturbed = True
            runner.process.stop(2.5)
        else:
            world.fault("SIGKILL of a runner", runner.name)
            runner.process.kill()


def play(seed: int, lanes: Sequence[str], script: Sequence[Change], steps: int = 40) -> World:
    """Live through a script."""
    world = World(seed)
    world.lanes = "mixed" if "store" in lanes else "peer"
    with world.installed():
        world.losses = True
        job = world.submit(small_spec("job", ests=4, steps=steps, commit_every=7))
        world.add_coordinator()
        for lane in lanes:
            world.add_worker(lane=lane)
        world.run(20.0, lambda: all_serve(world, job) and world.judge.reached.get("job", 0) > 0)
        for change in script:
            world.run(change.after, world.all_over)
            befall(world, change)
        if not world.living():
            world.add_worker()
        calm(world)
        peace(world)
        departure(world)
        for kind, count in world.injected.items():
            tally.add("fault", kind, count)
        assert not world.judge.violation, "\n".join([*list(world.lines())[-80:], world.judge.violation])
        assert world.view(job).state == "done"
    return world


USUAL = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@USUAL
@given(seed=st.integers(0, 1000), lanes=PEERS | PEERS | MIXED, script=st.lists(CHANGES, min_size=1, max_size=5))
def test_up_to_five_changes_of_membership_never_show_in_the_bits(
    seed: int, lanes: list[str], script: list[Change]
) -> None:
    play(seed, lanes, script)


def test_a_killed_leader_costs_one_step_and_no_lease() -> None:
    """Fault 17: seen by its peers at once, though its lease has ten seconds to go."""
    world = play(1, ["auto"] * 3, [Change("KILL", 1.0, 0)])
    generations = [line for line in world.lines() if "lost by" in line]
    assert len(generations) == 1
    assert max(world.judge.again.values()) <= 1
    status = world.view(world.jobs["job"]).status
    assert status is not None
    (recovery,) = status.value.recoveries
    assert recovery.steps_recomputed == 1
    assert recovery.seconds < world.worker_ttl, "virtual seconds"


def test_two_groups_that_have_lost_each_other_do_not_both_publish() -> None:
    """Fault 18: a connection breaks between two that live; the judge sees to it that one generation publishes."""
    world = play(2, ["auto"] * 2, [Change("break", 1.0)])
    assert world.injected["connection between two that live breaks"] == 1


def test_one_that_is_believed_dead_for_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: whoever was accused once stays out."""
    monkeypatch.setattr(
        Breaks, "cleared", lambda self, job, record, revision: (job.name, record.id) not in self._accused
    )
    with pytest.raises(AssertionError, match="serve nobody"):
        play(0, ["auto"] * 3, [Change("break", 0.3)], steps=200)
