"""The policies that others have: queues in which a job gets all devices that it has ESTs, of one kind, or none.

`fifo` lets the next in turn hold up all others; `backfill` lets others go first where the next in turn is not later for
it, which is proved on any queue; `srtf` stops the longer job for the shorter.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.scheduling.policies import named
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.scheduling_toys import World, for_policy, free, from_seed, job, snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from easyscale.coordinator.scheduling.jobs import Job
    from easyscale.coordinator.scheduling.policy import Plan

ONE = {"gpu": 1.0}


def plan(name: str, capacity: Mapping[str, int], *jobs: Job) -> dict[str, int]:
    """Devices by job, where all are of one kind."""
    return {one: count for one, ((_, count),) in named(name).plan(capacity, jobs, 0.0).items()}


# ---- in turn


def test_fifo_keeps_all_waiting_behind_the_next_in_turn() -> None:
    first, big, small = job("first", ONE, 3), job("big", ONE, 4, arrived=1.0), job("small", ONE, 1, arrived=2.0)
    assert plan("fifo", {"gpu": 4}, first, big, small) == {"first": 3}
    assert plan("fifo", {"gpu": 4}, big, small) == {"big": 4}
    assert plan("fifo", {"gpu": 5}, big, small) == {"big": 4, "small": 1}


def test_fifo_does_not_wait_for_a_job_that_no_cluster_of_this_size_could_run() -> None:
    assert plan("fifo", {"gpu": 4}, job("huge", ONE, 5), job("small", ONE, 1, arrived=1.0)) == {"small": 1}
    assert plan("backfill", {"gpu": 4}, job("huge", ONE, 5), job("small", ONE, 4, arrived=1.0)) == {"small": 4}


@pytest.mark.parametrize("name", ["fifo", "backfill"])
def test_priority_goes_before_arrival_but_stops_nobody(name: str) -> None:
    early, urgent = job("early", ONE, 4), job("urgent", ONE, 4, arrived=9.0, priority=1)
    assert plan(name, {"gpu": 4}, early, urgent) == {"urgent": 4}
    running = job("early", ONE, 4, given=(("gpu", 4),))
    assert plan(name, {"gpu": 4}, running, urgent) == {"early": 4}


@pytest.mark.parametrize("name", ["fifo", "backfill", "paper"])
def test_what_is_left_after_a_reclaim_is_kept_by_those_that_go_first(name: str) -> None:
    held = (("gpu", 2),)
    late = job("late", ONE, 2, arrived=5.0, given=held, least=2)
    early, urgent = job("early", ONE, 2, given=held, least=2), job("urgent", ONE, 2, 1e6, arrived=9.0, priority=1)
    assert plan(name, {"gpu": 2}, late, early) == {"early": 2}
    running = job("urgent", ONE, 2, arrived=9.0, priority=1, given=held, least=2)
    assert plan(name, {"gpu": 2}, late, early, running) == {"urgent": 2}
    assert plan(name, {"gpu": 2}, early, urgent) == {"early": 2}


def test_each_takes_the_kind_that_is_fastest_for_it() -> None:
    either = {"old": 4.0, "new": 1.0}
    assert named("fifo").plan({"old": 2, "new": 2}, [job("a", either, 2), job("b", either, 2, arrived=1.0)], 0.0) == {
        "a": (("new", 2),),
        "b": (("old", 2),),
    }


# ---- backfill


def test_who_is_done_before_the_next_in_turn_can_start_goes_first() -> None:
    """`running` is done after 100 s; then `next` needs all four devices."""
    running = job("running", ONE, 3, 100.0, given=(("gpu", 3),))
    turn, fill = job("next", ONE, 4, 100.0, arrived=1.0), job("fill", ONE, 1, 100.0, arrived=2.0)
    assert plan("backfill", {"gpu": 4}, running, turn, fill) == {"running": 3, "fill": 1}
    long = job("fill", ONE, 1, 101.0, arrived=2.0)
    assert plan("backfill", {"gpu": 4}, running, turn, long) == {"running": 3}
    assert plan("backfill", {"gpu": 5}, running, turn, long) == {"running": 3, "fill": 1}, "on the fifth, however long"


def test_one_that_starts_now_is_counted_upon_like_one_that_runs() -> None:
    starts, turn = job("starts", ONE, 3, 100.0), job("next", ONE, 4, 100.0, arrived=1.0)
    fill, long = job("fill", ONE, 1, 100.0, arrived=2.0), job("fill", ONE, 1, 101.0, arrived=2.0)
    assert plan("backfill", {"gpu": 4}, starts, turn, fill) == {"starts": 3, "fill": 1}
    assert plan("backfill", {"gpu": 4}, starts, turn, long) == {"starts": 3}, "it would hold up the next in turn"


def test_what_is_left_over_when_the_next_in_turn_starts_is_given_away_once() -> None:
    running, turn = job("running", ONE, 3, 100.0, given=(("gpu", 3),)), job("next", ONE, 4, 100.0, arrived=1.0)
    long = [job(f"long{i}", ONE, 1, 1e6, arrived=2.0 + i) for i in range(2)]
    assert plan("backfill", {"gpu": 5}, running, turn, *long) == {"running": 3, "long0": 1}


def test_devices_of_a_kind_that_the_next_in_turn_does_not_wait_for_are_free_for_all() -> None:
    running = job("running", {"new": 1.0}, 2, 100.0, given=(("new", 2),))
    turn = job("next", {"new": 1.0, "old": 50.0}, 2, 100.0, arrived=1.0)
    long = job("long", {"new": 1.0, "old": 1.0}, 1, 1e6, arrived=2.0)
    found = named("backfill").plan({"new": 2, "old": 1}, [running, turn, long], 0.0)
    assert found == {"running": (("new", 2),), "long": (("old", 1),)}


def _done(one: Job, capacity: Mapping[str, int], taken: Plan, jobs: Mapping[str, Job]) -> float:
    """When a job is done at the earliest, if these run to their ends and nobody else starts."""
    best = float("inf")
    for kind, there in capacity.items():
        given = ((kind, one.shape.ests),)
        if there < one.shape.ests or one.seconds(given) == float("inf"):
            continue
        ends = sorted((jobs[name].seconds(has), has[0][1]) for name, has in taken.items() if has[0][0] == kind)
        left, at = free(capacity, taken)[kind], 0.0
        while left < one.shape.ests:
            at, count = ends.pop(0)
            left += count
        best = min(best, at + one.seconds(given))
    return best


def test_nobody_that_goes_first_makes_the_next_in_turn_later() -> None:
    """On 400 clusters, on which some jobs run already: it is as early with those that go first as without."""
    went_first = 0
    for seed in range(400):
        capacity, some = from_seed(seed, fewest=6, most=14)
        running = named("srtf").plan(capacity, some[: seed % 6], 0.0)
        jobs = {one.name: replace(one, given=running.get(one.name, ())) for one in some}
        found = named("backfill").plan(capacity, list(jobs.values()), 0.0)
        order = sorted(jobs.values(), key=lambda one: (-one.priority, one.arrived, one.name))
        turn = [i for i, one in enumerate(order) if one.name not in found and _done(one, capacity, {}, jobs) < 1e300]
        if not turn:
            continue
        before = {one.name for one in order[: turn[0]]} | set(running)
        without = {name: has for name, has in found.items() if name in before}
        went_first += without != found
        assert _done(order[turn[0]], capacity, found, jobs) == _done(order[turn[0]], capacity, without, jobs), seed
    assert went_first > 20


def test_backfill_runs_jobs_that_fifo_keeps_waiting_and_ends_nobody_later_who_was_next() -> None:
    """The same queues on one kind, to their ends. Each time that a job becomes the next in turn, it is told when."""
    earlier = 0
    for seed in range(20):
        rng = Random(seed)
        jobs = [job(f"j{i:02}", ONE, rng.randint(1, 8), float(rng.randint(10, 1000))) for i in range(16)]
        ends = {}
        for name in ("fifo", "backfill"):
            world, promised = World(named(name), {"gpu": 8}), {}
            world.submit(*jobs)
            while world.jobs:
                found = world.plan()
                turn = next((one for one in world.jobs.values() if one.name not in found), None)
                if turn is not None:
                    promised.setdefault(turn.name, world.now + _done(turn, world.capacity, found, world.jobs))
                world.step()
            assert all(world.ended[one] <= at + 1e-6 for one, at in promised.items())
            ends[name] = sum(world.ended.values()) / len(jobs)
        earlier += ends["backfill"] < ends["fifo"]
    assert earlier >= 18, "else it would be of no use"


# ---- shortest first


def test_srtf_stops_the_longer_for_the_shorter_and_goes_on_with_it_afterwards() -> None:
    world = World(named("srtf"), {"gpu": 4})
    world.submit(job("long", ONE, 4, 1000.0))
    assert set(world.plan()) == {"long"}
    world.step(100.0)
    world.submit(job("longer", ONE, 4, 901.0), job("short", ONE, 4, 10.0))
    assert set(world.plan()) == {"short"}
    world.step()
    assert set(world.plan()) == {"long"}, "it has 900 s left, one less than the other"
    world.step()
    assert world.now == pytest.approx(1010.0)


def test_srtf_leaves_a_job_where_it_is_while_it_may_stay() -> None:
    either = {"old": 2.0, "new": 1.0}
    running = job("running", either, 2, given=(("old", 2),))
    assert named("srtf").plan({"old": 2, "new": 2}, [running], 0.0) == {"running": (("old", 2),)}
    assert named("srtf").plan({"old": 1, "new": 2}, [running], 0.0) == {"running": (("new", 2),)}


@given(snapshot=snapshots(), data=st.data())
@settings(max_examples=60)
def test_srtf_lets_no_job_wait_for_a_longer_one(
    snapshot: tuple[dict[str, int], list[Job]], data: st.DataObject
) -> None:
    """Whoever waits could not run in what those before it leave."""
    capacity, any_jobs = snapshot
    jobs = for_policy(any_jobs, rigid=True)
    found = named("srtf").plan(capacity, jobs, 0.0)

    def left(one: Job) -> float:
        return min((one.seconds(((kind, one.shape.ests),)) for kind, there in capacity.items()
                    if there >= one.shape.ests), default=float("inf"))  # fmt: skip

    for one in jobs:
        if one.name in found or left(one) == float("inf"):
            continue
        before = {other.name for other in jobs if (-other.priority, left(other)) <= (-one.priority, left(one))}
        rest = free(capacity, {name: has for name, has in found.items() if name in before})
        assert not any(
            one.seconds(((kind, one.shape.ests),)) < float("inf") and there >= one.shape.ests
            for kind, there in rest.items()
        )
