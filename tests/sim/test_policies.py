"""Workers that a policy deals out, among all faults: jobs take them from each other, and every one comes to its end.

The policy has no reason for what it does, so that workers go to and fro far more often than they should.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import tally
from easyscale.coordinator import coordinator
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.scheduling.jobs import devices

from sim import scenario

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.jobs import Job
    from easyscale.coordinator.scheduling.policy import Plan

SEEDS = 60
CHUNK = 20
LASTS = 10
"""Decisions for which a job is the favourite, in the mean: there are about two in a second."""


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
