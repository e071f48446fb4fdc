"""Workers that a policy deals out, among all faults: jobs take them from each other, and every one comes to its end.

The policy has no reason for what it does, so that workers go to and fro far more often than they should. Ours has its
reasons, and goes on having them where another leader with another clock takes over.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import tally
from easyscale.coordinator import coordinator, keys
from easyscale.coordinator.dealer import Dealer
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.scheduling.jobs import devices
from easyscale.coordinator.scheduling.market import Market

from sim import scenario
from sim.world import World, small_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.jobs import Job
    from easyscale.coordinator.scheduling.policy import Plan, Policy

    from sim.actors import RunnerProcess
    from sim.world import SimJob

SEEDS = 60
CHUNK = 20
LASTS = 10
"""Decisions for which a job is the favourite, in the mean: there are about two in a second."""

HOUR = 3600.0
PATIENCE = HOUR / 2
"""Seconds for which a job waits until it has its turn."""


class Whims:
    """One job has all that it can use, then another; what is left is for the others. `taken`: who has lost all."""

    name, rigid, at_once, every = "whims", False, False, 0.0

    def __init__(self, seed: int, taken: list[str]) -> None:
        self._random = Random(seed)
        self._taken = taken
        self._favourite = ""

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        if jobs and self._random.random() < 1 / LASTS:
            self._favourite = self._random.choice(jobs).name
        free, plan = dict(capacity), {}
        for job in sorted(jobs, key=lambda job: (job.name != self._favourite, job.name)):
            for kind in sorted(free):
                given = devices({kind: min(free[kind], job.shape.most)})
                if job.name not in plan and job.seconds(given) < float("inf"):
                    plan[job.name] = given
                    free[kind] -= given[0][1]
        self._taken += [job.name for job in jobs if job.given and job.name not in plan]
        return plan


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds_{first}")
def test_jobs_that_take_workers_from_each_other_all_come_to_their_ends(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    seed = first
    monkeypatch.setattr(coordinator, "Planner", lambda: Planner(policy=Whims(seed, taken)))
    monkeypatch.setattr(scenario, "TWO_JOBS", 1.0)
    monkeypatch.setattr(scenario, "all_serve", lambda world, job: True)  # some make no step faster
    for seed in range(first, first + CHUNK):
        outcome = scenario.simulate(seed)
        tally.add("seed", "simulated")
        if outcome.violation:
            pytest.fail(outcome.explain(), pytrace=False)
    assert len(taken) > 2 * CHUNK, "that jobs lose all their workers to others"


class Steady(World):
    """A cluster in which nothing goes wrong, and every EST of a step takes its time, so that speeds can be learned."""

    def story_of(self, job: SimJob, step: int, runner: RunnerProcess) -> None:
        run = runner.run
        assert run is not None
        member = run.members[run.slot]
        self.hub.sleep((member.last - member.first) * 0.2 * self.rng.uniform(0.95, 1.05))


def around_a_takeover(seed: int, ahead: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Generations of three jobs, of which the first waits, when the leader dies, and when another has led for a while.

    Args:
        ahead: seconds that the clock of the other one is ahead.
    """
    monkeypatch.setattr(coordinator, "Planner", lambda: Planner(policy=Market(patience=PATIENCE)))
    world = Steady(seed)
    with world.installed():
        jobs = [
            world.submit(small_spec("eldest", ests=8, steps=100_000, min_workers=5)),
            world.submit(small_spec("large", ests=4, steps=4000, commit_every=20)),
            world.submit(small_spec("small", ests=3, steps=3000, commit_every=20)),
        ]
        leaders = [world.add_coordinator(2 * HOUR)]
        for _ in range(5):
            world.add_worker(lane="auto")
        world.run(10.0)
        leaders.append(world.add_coordinator(2 * HOUR + ahead))
        world.run(60.0)

        def leads() -> str:
            found = world.kv.inner.get(keys.LEADER)
            return found.value.decode() if found else ""

        def generations() -> list[int]:
            return [world.view(job).generation for job in jobs]

        before, (first, second) = generations(), leaders
        assert leads() == first.id
        first.process.kill()
        world.run(80.0)
        assert leads() == second.id
        assert not world.judge.violation, world.judge.violation
        return before, generations()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["fast", "slow"])
@pytest.mark.parametrize("seed", range(3))
def test_a_successor_whose_clock_is_an_hour_off_leaves_all_as_it_is(
    seed: int, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = around_a_takeover(seed, ahead, monkeypatch)
    assert before == after, "who has workers keeps them"
    assert before[0] == 0, "it waits, and its turn has not come"
    assert min(before[1:]) > 0


def test_one_that_went_by_its_predecessors_clock_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, float] = {}
    fresh = Dealer.__init__

    def remembering(self: Dealer, policy: Policy) -> None:
        fresh(self, policy)
        self._seen = seen  # as if the store kept since when a job waits, by whose clock ever

    monkeypatch.setattr(Dealer, "__init__", remembering)
    before, after = around_a_takeover(0, HOUR, monkeypatch)
    assert before != after
    assert after[0] > 0, "it takes its turn an hour too early"
