"""Which job gets which workers; and the rules that hold whatever the picture shows."""

from __future__ import annotations

import random

import pytest
from easyscale.coordinator import keys, records, room, views
from easyscale.coordinator.kv import Compare, Put, unchanged
from easyscale.coordinator.planner import Planner
from pictures import SOON, Story, status_of

# ---- between jobs


def assigned(story: Story) -> dict[str, str]:
    return {worker: entry.value for worker, entry in story.view().assigned.items()}


def test_jobs_of_higher_priority_and_then_older_ones_come_first(story: Story) -> None:
    story.job("later", spec="6" * 64)
    story.job("urgent", spec="7" * 64, priority=5)
    story.worker("a", "idle", None)
    story.decide()
    assert assigned(story) == {"a": "urgent"}
    story.worker("b", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a": "urgent", "b": "job"}
    story.worker("c", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a": "urgent", "b": "job", "c": "later"}
    assert status_of(story, "job").reason == "workers are getting ready (b is idle)"
    assert status_of(story, "job").waits_for == "ready"


def test_who_gets_no_worker_says_what_it_needs(story: Story) -> None:
    story.job(min_workers=2)
    story.worker("a", "ready")
    story.decide()
    assert status_of(story).reason == "needs 2 worker(s), and 1 of the 1 here would serve it"
    assert status_of(story).waits_for == "more"


def test_a_job_is_not_run_by_fewer_than_it_needs(story: Story) -> None:
    story.job(min_workers=2)
    story.running("a", "b", held=10)
    story.gone("b")
    assert story.decide(SOON)[0] == "job: generation 2 is a[0:4] (b died)", "it commits what only it holds"
    story.worker("c", "idle", None)
    story.worker("a", "ready")
    story.decide(SOON)
    assert story.look().members == (), "not a step is run by one"
    story.worker("c", "ready")
    story.decide(SOON)
    assert [m.worker for m in story.look().members] == ["a", "c"]


def test_a_worker_goes_over_to_a_new_job_only_after_it_has_left_the_old_one(story: Story) -> None:
    story.running("a", "b", held=10)
    story.job("urgent", spec="7" * 64, priority=5)
    lines = story.decide(SOON)
    assert "b -> urgent" in lines
    assert "job: generation 2 is a[0:4] (b leaves)" in lines
    story.worker("b", "ready", "job")
    story.decide(SOON)
    assert story.look("urgent").members == (), "it serves the old job still"
    story.worker("b", "ready", "urgent")
    story.decide(SOON)
    assert [m.worker for m in story.look("urgent").members] == ["b"]


def test_max_workers_is_kept(story: Story) -> None:
    story.job(max_workers=2)
    for worker in "abc":
        story.worker(worker, "idle", None)
    story.decide()
    assert assigned(story) == {"a": "job", "b": "job"}


# ---- what holds in every story


def crowd(seed: int) -> Story:
    """A busy picture: jobs of all sorts, members, claims, reports and workers in all states."""
    rng, memories = random.Random(seed), random.Random(seed)
    story = Story()
    names = [f"j{i}" for i in range(rng.randint(1, 5))]
    workers = [f"w{i}" for i in range(rng.randint(0, 8))]
    free = list(workers)
    for i, name in enumerate(names):
        least = rng.randint(1, 3)
        story.job(
            name, rng.choice(["running", "running", "paused", "cancelled"]), spec=f"{i}" * 64,
            ests=rng.randint(least, 6), min_workers=least, priority=rng.randint(0, 2),
        )  # fmt: skip
        rng.shuffle(free)
        mine, free = free[: rng.randint(0, 3)], free[rng.randint(0, 3) :]
        if rng.random() < 0.7:
            story.plan(rng.randint(1, 9), *sorted(mine), name=name)
            for slot in range(len(story.look(name).members)):
                if rng.random() < 0.7:
                    story.claim(slot, rng.randint(0, 9), name=name)
        if seed % 2:
            rate = records.Rate(1.0, 0.0, memory=100, est_bytes=50)
            story.put(keys.rates(name), records.Rates(spec=f"{i}" * 64, kinds={"cpu": rate}))
        if rng.random() < 0.3:
            story.head(rng.choice([3, 100]), name=name)
        if rng.random() < 0.3:
            story.status(name, state=rng.choice(["waiting", "running", "failed", "done"]))
        if mine and rng.random() < 0.4:
            story.report(mine[0], rng.choice(["died", "raised", "memory"]), 2, name)
    for worker in workers:
        if rng.random() < 0.9:
            refusals = {"0" * 64: "too small"} if rng.random() < 0.2 else {}
            story.worker(
                worker, rng.choice(["idle", "preparing", "ready", "running"]), rng.choice([*names, None]),
                leaving=rng.random() < 0.15, refusals=refusals, memory=memories.choice([1, 160, 280, 400, 10_000]),
            )  # fmt: skip
        if rng.random() < 0.5:
            story.put(keys.assigned(worker), rng.choice(names))
    return story


SEEDS = range(80)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_picture_the_rules_hold(seed: int) -> None:
    story = crowd(seed)
    assigned_at_first = assigned(story).keys()
    for _ in range(4):
        before = story.view()
        story.decide(4.0)  # which asserts that every transaction applies
        after = story.view()
        for name, job in after.jobs.items():
            old = before.jobs[name]
            assert job.generation - old.generation in (0, 1)
            assert (job.generation > old.generation) == (job.plan is not None and job.plan != old.plan)
            spec = job.spec.value if job.spec else None
            assert spec is not None
            members = [m.worker for m in job.members]
            if job.generation > old.generation and members:
                assert len(members) == len(set(members))
                assert spec.min_workers <= len(members) <= spec.ests
                assert [est for m in job.members for est in range(m.first, m.last)] == list(range(spec.ests))
                assert all(before.workers[w].value.job == name for w in members), "who does not serve it cannot join"
                assert not any(spec.spec in before.workers[w].value.refusals for w in members)
                assert not any(before.workers[w].value.leaving for w in members)
                if job.rates and seed % 2:
                    rate = job.rates.value.kinds["cpu"]
                    rooms = {w: room.room(rate, before.workers[w].value.memory) for w in members}
                    assert all(m.last - m.first <= rooms[m.worker] for m in job.members), "as far as memory allows"
        for worker, job_name in assigned(story).items():
            assert worker in after.workers or worker in assigned_at_first, "only the living are assigned"
            assert after.jobs[job_name].spec is not None
        story.beat()
    assert assigned(story).keys() <= story.view().workers.keys(), "what the dead were assigned is taken back"


@pytest.mark.parametrize("seed", range(0, 80, 8))
def test_equal_pictures_give_equal_decisions_in_whatever_order_they_are_read(seed: int) -> None:
    view = crowd(seed).view()
    turned = views.View(
        dict(reversed(view.workers.items())), dict(reversed(view.assigned.items())), dict(reversed(view.jobs.items()))
    )
    assert Planner().decide(view, 5.0) == Planner().decide(view, 5.0) == Planner().decide(turned, 5.0)


@pytest.mark.parametrize("seed", range(0, 80, 8))
def test_a_successor_that_has_seen_nothing_takes_back_nothing(seed: int) -> None:
    """Once the one has come to rest, another who reads the same picture finds nothing to undo."""
    story = crowd(seed)
    for _ in range(6):
        story.decide(SOON)
    generations = {name: job.generation for name, job in story.view().jobs.items()}
    if story.decide(SOON):
        pytest.fail("the crowd did not come to rest")
    story.planner = Planner()
    story.decide(SOON)
    assert {name: job.generation for name, job in story.view().jobs.items()} == generations


def test_a_decision_depends_on_the_plan_the_status_and_the_reports_it_was_made_from(story: Story) -> None:
    story.running("a", "b", held=10)
    story.report("b", "died", 10)
    view = story.view()
    (txn, *_) = story.planner.decide(view, story.now + SOON)
    job = view.jobs["job"]
    assert job.plan is not None
    assert job.status is not None
    assert set(txn.compares) >= {unchanged(job.plan.kv), unchanged(job.status.kv), unchanged(job.reports["b"].kv)}
    story.plan(7, "a")
    assert not story.apply(txn), "a plan made meanwhile is not overwritten"


def test_a_wish_that_changes_meanwhile_is_not_overruled(story: Story) -> None:
    """Cancel, then retry at once: the user is told yes, and the job must not end as cancelled all the same."""
    story.running("a", held=10)
    story.desire("cancelled")
    (txn, *_) = story.planner.decide(story.view(), story.now + SOON)
    story.desire("running")
    story.apply(txn)
    assert status_of(story).state == "running"


def test_a_first_decision_depends_on_there_being_no_plan_and_no_status(story: Story) -> None:
    (txn,) = story.planner.decide(story.view(), 0.0)
    assert set(txn.compares) >= {Compare(keys.plan("job"), "mod", 0), Compare(keys.status("job"), "mod", 0)}


def test_a_job_whose_record_cannot_be_read_is_left_alone(story: Story) -> None:
    story.decide()
    story.job("sick", spec="6" * 64)
    story.kv.txn((), (Put(keys.spec("sick"), b"{"),))
    assert story.decide(SOON) == []


def test_an_assignment_to_a_job_that_is_gone_is_taken_back() -> None:
    story = Story()
    story.worker("a", "idle", None)
    story.put(keys.assigned("a"), "nosuch")
    assert story.decide() == ["a -> nothing"]


@pytest.mark.parametrize("assigned_to", [None, "other"])
def test_an_assignment_is_not_changed_for_a_worker_that_has_gone_meanwhile(
    story: Story, assigned_to: str | None
) -> None:
    """Taken back or given to another job, its attempt would be forgotten."""
    story.worker("a", "preparing")
    story.decide()
    if assigned_to is None:
        story.desire("paused")
    else:
        story.job("other", spec="6" * 64, priority=5)
    (change,) = [txn for txn in story.planner.decide(story.view(), story.now) if txn.tag == "assign a"]
    story.gone("a")
    assert not story.apply(change)


def test_a_worker_that_has_gone_meanwhile_is_not_assigned(story: Story) -> None:
    story.worker("a", "idle", None)
    (change,) = [txn for txn in story.planner.decide(story.view(), story.now) if txn.tag == "assign a"]
    story.gone("a")
    assert not story.apply(change)
