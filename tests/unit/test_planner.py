"""The coordinator's decisions as stories: what the store shows, and what is decided from it, line by line.

`Story.decide` applies every transaction to the picture that it was decided from, so each is known to hold there.
"""

from __future__ import annotations

from typing import Any

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.planner import CLAIM_SECONDS, SETTLE_SECONDS, STALE_SECONDS, Planner
from pictures import SOON, Story, status_of

# ---- growing


def test_a_job_without_workers_waits_and_says_what_for(story: Story) -> None:
    assert story.decide() == ["job: waiting (no worker is alive)"]
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
    assert [txn.tag for txn in txns] == ["decide job"]
    touched = {operation.key for operation in txns[0].operations}
    assert touched == {keys.plan("job"), keys.past("job", 1), keys.status("job"), keys.assigned("b")}
    assert story.decide(SOON) == [
        "job: generation 2 is a[0:4] (b died)",
        "job: running",
        "b -> nothing",
    ]
    assert status_of(story).attempts == {"died": 1}
    assert status_of(story).streak == {"died": 1}


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
        "job: generation 2 is a[0:4] (b died)",
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
        "job: generation 2 is a[0:4] (b died)",
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
        "job: generation 2 is nobody (a died)",
        "job: waiting (no worker is alive)",
        "a -> nothing",
    ]
    assert story.decide(60.0) == [], "it is counted once"


def test_a_leaving_worker_is_left_out_of_the_next_generation_without_charge(story: Story) -> None:
    story.running("a", "b", held=10)
    story.worker("b", "running", step=12, generation=1, leaving=True)
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
    assert "job: generation 2 is nobody (a preempted)" in story.decide(SOON)
    assert status_of(story).attempts == {"preempted": 1}
    assert status_of(story).streak == {}
    assert status_of(story).state == "waiting"


def test_a_member_that_let_go_or_lost_its_lease_is_no_failure(story: Story) -> None:
    story.running("a", "b", held=10)
    story.delete(keys.claim("job", 1, 1))
    assert story.decide(SOON)[0] == "job: generation 2 is a[0:4] (b preempted)"
    assert status_of(story).streak == {}
    assert story.decide(SOON) == [], "it is in the middle of a step of the old generation"
    story.worker("b", "ready")
    assert story.decide(SOON) == ["job: generation 3 is a[0:2] b[2:4] (b joins)"]


# ---- claiming


def test_a_successor_sees_who_let_go_without_having_seen_its_claim(story: Story) -> None:
    """Paused and resumed while nobody coordinated: the members were taken for hanging, and charged for it."""
    story.running("a", "b", held=10)
    for slot, worker in enumerate("ab"):
        story.delete(keys.claim("job", 1, slot))
        story.worker(worker, "ready", generation=1)
    story.planner = Planner()
    story.decide(SOON)
    assert status_of(story).attempts == {"preempted": 2}


def test_a_member_that_does_not_claim_is_passed_over_for_a_while(story: Story) -> None:
    story.worker("a", "ready")
    story.worker("b", "ready")
    story.decide()
    story.claim(0)
    assert story.decide(SOON) == []
    story.beat()
    assert story.decide(CLAIM_SECONDS - 1.0) == []
    story.beat()
    assert story.decide(1.0 + SOON)[0] == "job: generation 2 is a[0:4] (b hang)"
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


def test_who_leaves_with_the_newest_state_brings_it_to_the_store_first(story: Story) -> None:
    """A plan without it would fence its commit off, and steps that nobody was lost for would be made again."""
    story.running("a", "b", held=5)
    story.worker("a", "ready", step=7, leaving=True)
    story.worker("b", "ready", step=5)
    assert [line for line in story.decide(SOON) if "generation" in line] == []
    story.head(7)
    assert "job: generation 2 is b[0:4] (a leaves)" in story.decide(SOON)


def test_who_leaves_in_the_middle_of_a_step_while_newcomers_join_is_waited_for(story: Story) -> None:
    story.running("a", held=5)
    story.worker("a", "running", step=7, generation=1)
    story.plan(2, "a", "b")
    story.worker("a", "running", step=7, generation=1, leaving=True)
    story.worker("b", "ready")
    assert [line for line in story.decide(SOON) if "generation" in line] == []
    story.head(7)
    assert [line for line in story.decide(SOON) if "generation" in line] == [], "it is making a step that is not told"
    story.worker("a", "ready", step=7, generation=1, leaving=True)
    assert "job: generation 3 is b[0:4] (a leaves)" in story.decide(SOON)


def test_who_leaves_while_it_gives_its_state_to_newcomers_is_waited_for(story: Story) -> None:
    """Peers that have met run the generation, but only one of them held its state, which nobody had committed."""
    story.running("a", held=10)
    story.plan(2, "a", "b", lane="peer")
    story.claims(10, 0)
    story.worker("b", "running", generation=2)
    story.put(keys.assigned("b"), "job")
    story.worker("a", "running", step=None, generation=2, leaving=True)
    assert story.decide(SOON) == ["a -> nothing"]
    story.worker("b", "running", step=11, generation=2)
    assert story.decide(SOON)[0] == "job: generation 3 is b[0:4] (a leaves)"


def test_who_does_not_manage_to_hand_over_is_not_waited_for(story: Story) -> None:
    story.running("a", "b", held=5)
    story.worker("a", "ready", step=7, leaving=True)
    story.worker("b", "ready", step=5)
    story.decide(SOON)
    story.beat()
    assert "job: generation 2 is b[0:4] (a leaves)" in story.decide(CLAIM_SECONDS)


def test_members_that_are_all_wanted_elsewhere_commit_before_their_generation_ends(story: Story) -> None:
    story.job("job", desired="paused")
    story.decide()
    story.job("low")
    story.running("a", held=5, name="low")
    story.job("job", desired="running", priority=9)
    lines = story.decide(SOON)
    assert "a -> job" in lines
    assert [line for line in lines if "low: generation" in line] == []
    story.worker("a", "ready", "low", step=7)
    story.head(7, name="low")
    story.delete(keys.claim("low", 1, 0))
    assert "low: generation 2 is nobody (a preempted)" in story.decide(SOON)


# ---- the user's wishes and the end


def test_a_job_whose_last_commit_is_damaged_is_not_done(story: Story) -> None:
    story.running("a", held=90)
    story.head(100)
    story.damage("m100", 90)
    assert "job: done" not in story.decide()


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
    assert "job: generation 2 is nobody (a raised)" in lines
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
    assert story.decide(SOON) == [
        "job: generation 2 is a[0:2] b[2:4] (agree anew: a commit is damaged)",
        "job: running",
    ]
    assert status_of(story).damage == ("m12 is bad",)
    story.claims(10, 10)
    assert story.decide(SOON) == []


def test_damage_of_an_older_commit_changes_nothing(story: Story) -> None:
    story.running("a", held=10)
    story.head(12)
    story.damage("m8", 4)
    story.decide(SOON)
    assert story.look().generation == 1
