"""The coordinator's decisions as stories: what the store shows, and what is decided from it, line by line.

`Story.decide` applies every transaction to the picture that it was decided from, so each is known to hold there.
"""

from __future__ import annotations

from typing import Any

import pytest
from easyscale.coordinator import keys, views
from easyscale.coordinator.kv import Compare, Put, unchanged
from easyscale.coordinator.planner import CLAIM_SECONDS, SETTLE_SECONDS, STALE_SECONDS, Planner
from pictures import SPEC, Story

SOON = 0.5
"""Seconds: shorter than any patience."""


@pytest.fixture
def story() -> Story:
    """A job of 4 ESTs that nobody serves yet."""
    story = Story()
    story.job()
    return story


def status_of(story: Story, name: str = "job") -> Any:
    entry = story.look(name).status
    assert entry is not None
    return entry.value


# ---- growing


def test_a_job_without_workers_waits_and_says_what_for(story: Story) -> None:
    assert story.decide() == ["job: waiting (no worker is alive; start one with `easyscale worker`)"]
    assert story.decide(60.0) == []


def test_the_first_workers_are_assigned_and_join_in_one_generation(story: Story) -> None:
    story.worker("a", "idle", None)
    story.worker("b", "idle", None)
    assert story.decide() == ["job: waiting (workers are getting ready (a is idle, b is idle))", "a -> job", "b -> job"]
    story.worker("a", "ready")
    story.worker("b", "preparing")
    assert story.decide(SOON) == ["job: waiting (workers are getting ready (a is ready, b is preparing))"]
    story.worker("b", "ready")
    assert story.decide(SOON) == ["job: generation 1 is a[0:2] b[2:4] (a joins; b joins)", "job: running"]
    assert story.decide(SOON) == []


def test_a_worker_that_prepares_for_long_is_not_waited_for(story: Story) -> None:
    story.worker("a", "ready")
    story.worker("b", "preparing")
    story.decide()
    story.beat()
    assert story.decide(SETTLE_SECONDS + SOON) == ["job: generation 1 is a[0:4] (a joins)", "job: running"]


def test_nobody_is_waited_for_once_every_est_has_a_worker(story: Story) -> None:
    story.job(ests=2, max_workers=3)
    for worker in "ab":
        story.worker(worker, "ready")
    story.worker("c", "preparing")
    assert "job: generation 1 is a[0:1] b[1:2] (a joins; b joins)" in story.decide()


def test_a_newcomer_is_assigned_and_joins_when_it_is_ready(story: Story) -> None:
    story.running("a", held=10)
    story.worker("b", "idle", None)
    assert story.decide(SOON) == ["b -> job"]
    story.worker("b", "preparing")
    assert story.decide(SOON) == [], "preparing is off the critical path"
    story.worker("b", "ready")
    assert story.decide(SOON) == ["job: generation 2 is a[0:2] b[2:4] (b joins)"]


def test_those_who_stay_keep_their_order(story: Story) -> None:
    story.running("c", "b")
    story.worker("a", "ready")
    story.put(keys.assigned("a"), "job")
    assert story.decide() == ["job: generation 2 is c[0:2] b[2:3] a[3:4] (a joins)"]


def test_more_workers_than_ests_are_not_used(story: Story) -> None:
    story.job(ests=2)
    for worker in "abc":
        story.worker(worker, "idle", None)
    assert [line for line in story.decide() if "->" in line] == ["a -> job", "b -> job"]


# ---- shrinking and losing


def test_a_worker_whose_lease_ended_is_charged_and_replaced_in_one_transaction(story: Story) -> None:
    story.running("a", "b", held=10)
    story.gone("b")
    txns = story.planner.decide(story.view(), story.now)
    assert [txn.tag for txn in txns] == ["decide job", "assign b"]
    assert {operation.key for operation in txns[0].operations} == {keys.plan("job"), keys.status("job")}
    assert story.decide(SOON) == [
        "job: generation 2 is a[0:4] (b: died)",
        "job: running",
        "b -> nothing",
    ]
    assert status_of(story).attempts == {"died": 1}
    assert status_of(story).streak == {"died": 1}


@pytest.mark.xfail(strict=True, reason="BUG: with a lease the claims go, start_step() is None, progress is not seen")
def test_deaths_with_steps_in_between_are_not_deaths_without_progress(story: Story) -> None:
    """A lease that ends takes its claim along; what the survivors have reached counts all the same."""
    story.job(retries={"died": 2, "raised": 0}, steps=1000)
    story.running("s", "w0", held=0)
    for round_ in range(4):
        reached = 10 * (round_ + 1)
        story.worker("s", "running", step=reached)
        story.progress(reached, reached - 10)
        story.gone(f"w{round_}")
        story.decide(SOON)
        newcomer = f"w{round_ + 1}"
        story.worker(newcomer, "ready")
        story.put(keys.assigned(newcomer), "job")
        story.decide(SOON)
        story.claims(*[reached] * len(story.look().members))
    assert status_of(story).state == "running", status_of(story).reason


def test_a_reported_loss_does_not_wait_for_the_lease(story: Story) -> None:
    story.running("a", "b", held=10)
    story.report("b", "died", 10)
    story.worker("b", "idle", None)
    assert story.decide(SOON) == [
        "job: reports/b removed",
        "job: generation 2 is a[0:4] (b: died)",
        "job: claims/00000001/00001 removed",
        "job: running",
    ]
    assert status_of(story).attempts == {"died": 1}
    story.worker("b", "ready")
    assert story.decide(SOON) == ["job: generation 3 is a[0:2] b[2:4] (b joins)"]


def test_a_record_that_stands_still_is_a_death_whatever_the_lease_says(story: Story) -> None:
    story.running("a", "b", held=10)
    story.beat("a")
    assert story.decide(STALE_SECONDS - 1.0) == []
    story.beat("a")
    assert story.decide(1.0 + SOON) == [
        "job: generation 2 is a[0:4] (b: died)",
        "job: claims/00000001/00001 removed",
        "job: running",
        "b -> nothing",
    ]
    story.beat("b")
    assert "b -> job" in story.decide(SOON), "a sign of life makes it a worker again"


def test_losing_all_leaves_the_job_waiting_for_workers(story: Story) -> None:
    story.running("a", held=10)
    story.gone("a")
    assert story.decide(SOON) == [
        "job: generation 2 is nobody (a: died)",
        "job: waiting (no worker is alive; start one with `easyscale worker`)",
        "a -> nothing",
    ]
    assert story.decide(60.0) == [], "it is counted once"


def test_a_leaving_worker_is_left_out_of_the_next_generation_without_charge(story: Story) -> None:
    story.running("a", "b", held=10)
    story.worker("b", "running", step=12, leaving=True)
    assert story.decide(SOON) == ["job: generation 2 is a[0:4] (b leaves)", "b -> nothing"]
    assert status_of(story).attempts == {}


def test_the_last_one_leaving_keeps_its_generation_until_it_has_let_go(story: Story) -> None:
    story.running("a", held=10)
    story.worker("a", "running", step=12, leaving=True)
    story.decide(SOON)
    assert story.look().generation == 1, "it commits under this generation"
    story.head(13)
    story.worker("a", "ready", step=13, leaving=True)
    assert story.decide(SOON) == []
    story.delete(keys.claim("job", 1, 0))
    assert "job: generation 2 is nobody (a: preempted)" in story.decide(SOON)
    assert status_of(story).attempts == {"preempted": 1}
    assert status_of(story).streak == {}
    assert status_of(story).state == "waiting"


def test_a_member_that_let_go_or_lost_its_lease_is_no_failure(story: Story) -> None:
    story.running("a", "b", held=10)
    story.delete(keys.claim("job", 1, 1))
    assert story.decide(SOON)[0] == "job: generation 2 is a[0:4] (b: preempted)"
    assert status_of(story).streak == {}
    assert story.decide(SOON) == ["job: generation 3 is a[0:2] b[2:4] (b joins)"], "it is welcome at once"


# ---- claiming


def test_a_member_that_does_not_claim_is_passed_over_for_a_while(story: Story) -> None:
    story.worker("a", "ready")
    story.worker("b", "ready")
    story.decide()
    story.claim(0)
    assert story.decide(SOON) == []
    story.beat()
    assert story.decide(CLAIM_SECONDS - 1.0) == []
    story.beat()
    assert story.decide(1.0 + SOON)[0] == "job: generation 2 is a[0:4] (b: hang)"
    assert status_of(story).streak == {"died": 1}, "a hang is charged like a death"
    story.claims()
    story.beat()
    assert story.decide(CLAIM_SECONDS - 1.0) == []
    story.beat()
    assert story.decide(1.0 + SOON) == ["job: generation 3 is a[0:2] b[2:4] (b joins)"]


def test_a_member_that_is_in_the_middle_of_an_older_generations_step_is_not_taken_for_hanging(story: Story) -> None:
    story.running("a", held=10)
    story.worker("b", "ready")
    story.put(keys.assigned("b"), "job")
    story.decide()
    assert story.look().generation == 2
    story.claim(1)
    for _ in range(5):
        story.beat()
        assert story.decide(CLAIM_SECONDS) == []


def test_a_member_that_claimed_is_watched_by_its_agent_not_by_us(story: Story) -> None:
    story.running("a", "b")
    for _ in range(5):
        story.beat()
        assert story.decide(CLAIM_SECONDS) == []


# ---- purses


def lose(story: Story, cause: str, held: int) -> None:
    """One generation of one worker, which holds `held` and ends by `cause`."""
    if not story.look().members:
        story.worker("a", "ready")
        story.decide(SOON)
    story.claims(held)
    story.report("a", cause, held)
    story.worker("a", "idle", None)
    story.decide(SOON)


def test_deaths_without_progress_end_the_job_when_the_purse_is_empty(story: Story) -> None:
    story.job(retries={"died": 2, "raised": 0})
    lose(story, "died", 7)
    lose(story, "hang", 7)
    assert (status_of(story).state, status_of(story).streak) == ("waiting", {"died": 2})
    lose(story, "died", 7)
    found = status_of(story)
    assert found.state == "failed"
    assert found.reason == "step 7 ended 3 attempts without progress; it is quarantined. Last: boom"
    assert found.failure.cause == "died"
    assert (found.failure.worker, found.failure.step) == ("a", 7)
    assert found.attempts == {"died": 2, "hang": 1}
    assert story.look().members == ()


def test_progress_refills_the_purse(story: Story) -> None:
    story.job(retries={"died": 1, "raised": 0})
    for step in (7, 8, 9, 10):
        lose(story, "died", step)
        assert status_of(story).streak == {"died": 1}
    assert status_of(story).state == "waiting"
    assert status_of(story).attempts == {"died": 4}


def test_falling_back_to_an_older_commit_is_no_progress(story: Story) -> None:
    story.job(retries={"died": 1, "raised": 0})
    lose(story, "died", 7)
    lose(story, "died", 5)
    assert status_of(story).state == "failed"


def test_user_code_that_raises_fails_the_job_with_its_traceback(story: Story) -> None:
    lose(story, "raised", 3)
    found = status_of(story)
    assert found.state == "failed"
    assert found.reason == "the user's code raised at step 3: boom"
    assert found.failure.traceback == "Traceback: boom"
    assert story.look().reports == {}


def test_a_retry_budget_for_exceptions_is_one_for_the_whole_generation(story: Story) -> None:
    story.job(retries={"died": 0, "raised": 1})
    story.running("a", "b", "c")
    for worker in "abc":
        story.report(worker, "raised", 3)
        story.worker(worker, "idle", None)
    story.decide(SOON)
    assert status_of(story).state == "waiting", "three workers met one exception"
    assert status_of(story).attempts == {"raised": 3}
    lose(story, "raised", 0)
    assert status_of(story).state == "failed"


def test_divergence_ends_the_job_at_once(story: Story) -> None:
    story.job(retries={"died": 9, "raised": 9})
    lose(story, "diverged", 5)
    assert status_of(story).state == "failed"
    assert status_of(story).reason == "step 5 was computed twice with different results: boom"


@pytest.mark.parametrize("cause", ["memory", "refused"])
def test_a_refusal_hands_the_work_back_and_the_refuser_is_passed_over(story: Story, cause: str) -> None:
    story.running("a", "b")
    story.report("b", cause)
    story.worker("b", "idle", None, refusals={SPEC: "out of memory at step 0"})
    assert story.decide(SOON) == [
        "job: reports/b removed",
        f"job: generation 2 is a[0:4] (b: {cause})",
        "job: claims/00000001/00001 removed",
        "job: running",
        "b -> nothing",
    ]
    assert (status_of(story).attempts, status_of(story).streak) == ({cause: 1}, {})


def test_a_job_that_every_worker_refused_waits_and_says_why(story: Story) -> None:
    story.worker("a", "idle", None, refusals={SPEC: "out of memory"})
    story.worker("b", "idle", None, refusals={SPEC: "another class"})
    assert story.decide() == ["job: waiting (every worker refused this job: a: out of memory; b: another class)"]


@pytest.mark.xfail(strict=True, reason="BUG: _allot gives min_workers to a job that no worker is willing to run")
def test_a_job_that_nobody_can_run_does_not_keep_workers_from_the_next(story: Story) -> None:
    story.worker("a", "idle", None, refusals={SPEC: "out of memory"})
    story.job("small", spec="6" * 64)
    assert "a -> small" in story.decide()


def test_a_report_of_somebody_who_is_no_member_is_counted_too(story: Story) -> None:
    story.worker("a", "idle")
    story.put(keys.assigned("a"), "job")
    story.report("a", "raised", 0)
    assert story.decide() == ["job: reports/a removed", "job: failed (the user's code raised at step 0: boom)"]
    assert story.decide(SOON) == ["a -> nothing"]


# ---- recoveries


def test_a_recovery_lasts_from_noticing_the_loss_to_the_first_step_after_it(story: Story) -> None:
    story.running("a", "b", held=10)
    story.progress(15, 10)
    story.worker("a", "running", step=15)
    story.gone("b")
    story.decide(SOON)
    assert status_of(story).recoveries == (), "nothing has been got over yet"
    story.claims(15)
    story.progress(15, 15)
    story.beat()
    story.decide(2.0)
    assert status_of(story).recoveries == ()
    story.progress(16, 15)
    story.decide(1.0)
    (recovery,) = status_of(story).recoveries
    assert (recovery.cause, recovery.seconds, recovery.steps_recomputed) == ("b died", 3.0, 1)
    assert status_of(story).recovered == 1


def test_steps_that_only_the_lost_one_held_are_counted_as_recomputed(story: Story) -> None:
    story.running("a", held=10)
    story.progress(17, 10)
    story.head(12)
    story.worker("a", "running", step=17)
    story.gone("a")
    story.decide(SOON)
    story.worker("b", "ready")
    story.decide(SOON)
    story.claims()
    story.progress(13, 12)
    story.decide(SOON)
    assert [r.steps_recomputed for r in status_of(story).recoveries] == [5]


def test_a_loss_before_anybody_had_begun_is_no_recovery(story: Story) -> None:
    story.worker("a", "ready")
    story.decide()
    story.gone("a")
    story.decide(SOON)
    story.worker("b", "ready")
    story.decide(SOON)
    story.claims()
    story.progress(1, 0)
    story.decide(SOON)
    assert status_of(story).recoveries == ()


def test_leaving_is_no_loss_to_be_got_over(story: Story) -> None:
    story.running("a", "b", held=10)
    story.progress(12, 10)
    story.delete(keys.claim("job", 1, 1))
    story.decide(SOON)
    story.claims(12)
    story.progress(14, 12)
    story.decide(SOON)
    assert status_of(story).recoveries == ()


# ---- the user's wishes and the end


def test_a_job_is_done_when_its_last_step_is_the_head(story: Story) -> None:
    story.running("a", "b", held=90)
    story.head(99)
    assert story.decide(SOON) == []
    story.head(100)
    assert story.decide(SOON) == ["job: generation 2 is nobody (a leaves; b leaves)", "job: done"]
    assert story.decide(SOON) == ["a -> nothing", "b -> nothing"], "its workers are free"


def test_pausing_waits_until_the_members_have_committed_and_let_go(story: Story) -> None:
    story.running("a", "b", held=10)
    story.desire("paused")
    assert story.decide(SOON) == ["job: running (pausing: committing first)"]
    for worker in "ab":
        story.worker(worker, "ready", step=13)
    assert story.decide(SOON) == [], "they hold claims still"
    for slot in (0, 1):
        story.delete(keys.claim("job", 1, slot))
    assert [line for line in story.decide(SOON) if "generation" in line] == [], "and state 13 is not committed"
    story.head(13)
    lines = story.decide(SOON)
    assert lines[:2] == ["job: generation 2 is nobody (a leaves; b leaves)", "job: paused (paused by the user)"]
    assert story.decide(60.0) == []


def test_pausing_does_not_wait_for_ever_for_a_commit_that_does_not_come(story: Story) -> None:
    story.running("a", held=10)
    story.desire("paused")
    story.decide()
    story.worker("a", "ready", step=13)
    story.delete(keys.claim("job", 1, 0))
    story.decide(SOON)
    story.beat()
    story.decide(CLAIM_SECONDS + SOON)
    assert status_of(story).state == "paused"


def test_a_paused_jobs_workers_go_to_others_and_come_back_when_it_is_resumed(story: Story) -> None:
    story.worker("a", "idle", None)
    story.desire("paused")
    assert story.decide() == ["job: paused (paused by the user)"]
    story.job("other", spec="6" * 64)
    assert "a -> other" in story.decide(SOON)
    story.delete(keys.spec("other"))
    story.desire("running")
    assert "a -> job" in story.decide(SOON)
    story.worker("a", "ready")
    assert "job: generation 1 is a[0:4] (a joins)" in story.decide(SOON)


def test_a_member_that_dies_while_pausing_does_not_hold_up_the_pause(story: Story) -> None:
    story.running("a", "b", held=10)
    story.desire("paused")
    story.decide()
    story.gone("a")
    story.gone("b")
    story.decide(SOON)
    story.decide(SOON)
    assert status_of(story).state == "paused"
    assert story.look().members == ()


def test_cancelling_ends_the_generation_at_once_and_counts_nothing(story: Story) -> None:
    story.running("a", held=10)
    story.desire("cancelled")
    story.report("a", "raised", 12)
    lines = story.decide(SOON)
    assert "job: generation 2 is nobody (a: raised)" in lines
    assert "job: cancelled (cancelled by the user)" in lines
    assert status_of(story).attempts == {}
    assert status_of(story).failure is None
    story.decide(SOON)
    assert story.look().reports == {}
    assert story.view().assigned == {}


def test_a_head_at_the_last_step_counts_more_than_a_wish_to_cancel(story: Story) -> None:
    story.running("a", held=99)
    story.head(100)
    story.desire("cancelled")
    story.decide(SOON)
    assert status_of(story).state == "done"


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_what_is_over_stays_over_whoever_comes(story: Story, state: Any) -> None:
    story.status(state=state, reason="it is over")
    story.worker("a", "ready")
    story.decide()
    story.decide(60.0)
    assert status_of(story).state == state
    assert story.look().plan is None
    assert story.view().assigned == {}


# ---- damage


def test_a_head_found_damaged_makes_the_members_agree_anew_once(story: Story) -> None:
    story.running("a", "b", held=10)
    story.head(12)
    story.damage("m12", 8)
    assert story.decide(SOON) == ["job: generation 2 is a[0:2] b[2:4] (commit damaged: agree anew)", "job: running"]
    assert status_of(story).damage == ("m12 is bad",)
    story.claims(10, 10)
    assert story.decide(SOON) == []


def test_damage_of_an_older_commit_changes_nothing(story: Story) -> None:
    story.running("a", held=10)
    story.head(12)
    story.damage("m8", 4)
    story.decide(SOON)
    assert story.look().generation == 1


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


def test_who_gets_no_worker_says_what_it_needs(story: Story) -> None:
    story.job(min_workers=2)
    story.worker("a", "ready")
    story.decide()
    assert status_of(story).reason == "needs 2 free worker(s); 1 alive are busy with other jobs or leaving"


def test_a_job_is_not_run_by_fewer_than_it_needs(story: Story) -> None:
    story.job(min_workers=2)
    story.running("a", "b", held=10)
    story.gone("b")
    assert story.decide(SOON)[0] == "job: generation 2 is nobody (b: died)"
    story.worker("c", "idle", None)
    story.worker("a", "ready")
    story.decide(SOON)
    assert story.look().members == ()
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
    import random

    rng = random.Random(seed)
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
                leaving=rng.random() < 0.15, refusals=refusals,
            )  # fmt: skip
        if rng.random() < 0.5:
            story.put(keys.assigned(worker), rng.choice(names))
    return story


SEEDS = range(80)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_picture_the_rules_hold(seed: int) -> None:
    story = crowd(seed)
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
        for worker, job_name in assigned(story).items():
            record = after.workers.get(worker)
            assert record is not None, "only the living are assigned"
            assert after.jobs[job_name].spec is not None
        story.beat()


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
    assert set(txn.compares) == {unchanged(job.plan.kv), unchanged(job.status.kv), unchanged(job.reports["b"].kv)}
    story.plan(7, "a")
    assert not story.apply(txn), "a plan made meanwhile is not overwritten"


def test_a_first_decision_depends_on_there_being_no_plan_and_no_status(story: Story) -> None:
    (txn,) = story.planner.decide(story.view(), 0.0)
    assert txn.compares == (Compare(keys.plan("job"), "mod", 0), Compare(keys.status("job"), "mod", 0))


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
