"""What every policy promises, on any cluster and whatever the jobs are and have: plans that can be carried out.

The snapshots hold jobs that some or all kinds cannot run, for want of memory or of speed that was never measured, jobs
that take many devices or none, and jobs that have more than is left after an owner took devices back.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.scheduling.jobs import total
from easyscale.coordinator.scheduling.policies import POLICIES, named
from easyscale.errors import UserError
from easyscale.pipeline.cli_services import Between
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.scheduling_toys import NOW, faults, for_policy, from_seed, job, snapshots

if TYPE_CHECKING:
    from easyscale.coordinator.scheduling.jobs import Job

EACH = pytest.mark.parametrize("name", POLICIES)


@given(snapshot=snapshots())
@settings(max_examples=120)
def test_a_plan_can_be_carried_out(snapshot: tuple[dict[str, int], list[Job]]) -> None:
    capacity, jobs = snapshot
    for name in POLICIES:
        policy = named(name)
        of_policy = for_policy(jobs, rigid=policy.rigid)
        plan = policy.plan(capacity, of_policy, NOW)
        assert faults(capacity, of_policy, plan) == [], name
        if policy.rigid:
            ests = {one.name: one.shape.ests for one in jobs}
            assert all(len(has) == 1 and total(has) == ests[job] for job, has in plan.items()), name


@given(snapshot=snapshots(), data=st.data())
@settings(max_examples=60)
def test_the_order_in_which_devices_and_jobs_are_told_does_not_matter(
    snapshot: tuple[dict[str, int], list[Job]], data: st.DataObject
) -> None:
    capacity, jobs = snapshot
    turned = dict(data.draw(st.permutations(list(capacity.items()))))
    order = data.draw(st.permutations(range(len(jobs))))
    for name in POLICIES:
        policy = named(name)
        of_policy = for_policy(jobs, rigid=policy.rigid)
        plan = policy.plan(capacity, of_policy, NOW)
        assert policy.plan(turned, [of_policy[i] for i in order], NOW) == plan, name
        assert named(name).plan(capacity, of_policy, NOW) == plan, f"{name} remembers; who takes over would not"


def test_the_coordinator_offers_exactly_those_that_let_jobs_shrink_and_grow() -> None:
    elastic = [name for name in POLICIES if not named(name).rigid]
    assert sorted(Between) == sorted(["even", *elastic]), "the command names them itself, not to import numpy"


@EACH
def test_without_devices_or_without_jobs_the_plan_is_empty(name: str) -> None:
    waiting, running = job("w", {"v100": 1.0}), job("r", {"v100": 1.0}, given=(("v100", 4),))
    policy = named(name)
    assert policy.plan({"v100": 4}, [], NOW) == {}
    for nothing in ({}, {"v100": 0}, {"v100": 0, "k80": 0}):
        assert policy.plan(nothing, [waiting, running], NOW) == {}, "whatever a job has: it was taken away"
    assert policy.plan({"k80": 9}, [waiting, running], NOW) == {}, "and of another kind are no use to it"
    assert policy.plan({"v100": 4}, [job("nowhere", {}), waiting], NOW) == {"w": (("v100", 4),)} or not policy.rigid


@EACH
def test_a_big_cluster_is_planned_for(name: str) -> None:
    """300 jobs on 3,000 devices of 6 kinds. Twice: the second time most jobs have something."""
    rng, policy = Random(1), named(name)
    kinds = [f"gpu{i}" for i in range(6)]
    capacity = dict.fromkeys(kinds, 500)
    jobs = []
    for i in range(300):
        est = {kind: rng.uniform(0.1, 1.0) for kind in rng.sample(kinds, rng.randint(1, 6))}
        jobs.append(job(f"j{i}", est, rng.choice((1, 8, 32, 64)), rng.uniform(100, 1e5), mixes=i % 3 > 0, arrived=i))
    for _ in range(2):
        plan = policy.plan(capacity, jobs, NOW)
        assert faults(capacity, jobs, plan) == []
        assert len(plan) > 80
        jobs = [replace(one, given=plan.get(one.name, ())) for one in jobs]


def test_seeded_jobs_are_planned_for_too() -> None:
    """The jobs on which other tests compare figures are like all others."""
    for seed in range(20):
        capacity, jobs = from_seed(seed)
        for name in POLICIES:
            assert faults(capacity, jobs, named(name).plan(capacity, jobs, NOW)) == []


def test_a_policy_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(UserError, match="'lottery'"):
        named("lottery")
