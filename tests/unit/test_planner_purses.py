"""How ended attempts are charged, when a job has failed, and what it takes to have got over a loss."""

from __future__ import annotations

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.kv import unchanged
from easyscale.coordinator.planner import STALE_SECONDS, Planner
from pictures import SOON, SPEC, Story, status_of

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


def test_dying_here_and_there_below_the_furthest_step_is_no_progress(story: Story) -> None:
    story.job(retries={"died": 3, "raised": 0})
    for step in (7, 5, 7, 5):
        lose(story, "died", step)
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
        f"job: generation 2 is a[0:4] (b {cause})",
        "job: claims/00000001/00001 removed",
        "job: running",
        "b -> nothing",
    ]
    assert (status_of(story).attempts, status_of(story).streak) == ({cause: 1}, {})


def test_a_job_that_every_worker_refused_waits_and_says_why(story: Story) -> None:
    story.worker("a", "idle", None, refusals={SPEC: "out of memory"})
    story.worker("b", "idle", None, refusals={SPEC: "another class"})
    assert story.decide() == ["job: waiting (every worker refused this job: a: out of memory; b: another class)"]


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


# ---- deaths of those who are no members


def die_preparing(story: Story, worker: str) -> list[str]:
    """A worker is assigned, begins to prepare, and takes its machine down; a successor counts."""
    story.worker(worker, "idle", None)
    story.decide(SOON)
    story.worker(worker, "preparing")
    story.decide(SOON)
    story.gone(worker)
    story.planner = Planner()
    return story.decide(SOON)


def test_a_job_that_kills_its_workers_while_they_prepare_is_quarantined(story: Story) -> None:
    story.job(retries={"died": 1, "raised": 0})
    assert die_preparing(story, "a") == ["job: waiting (no worker is alive)", "a -> nothing"]
    assert (status_of(story).attempts, status_of(story).streak) == ({"died": 1}, {"died": 1})
    assert story.decide(SOON) == [], "counted once"
    die_preparing(story, "b")
    assert (status_of(story).state, status_of(story).attempts) == ("failed", {"died": 2})
    assert "it is quarantined" in status_of(story).reason
    assert "while it got ready" in status_of(story).reason


def test_a_death_while_preparing_is_counted_in_the_transaction_that_takes_back_the_assignment(story: Story) -> None:
    story.worker("a", "preparing")
    story.decide()
    view = story.view()
    story.gone("a")
    old = story.planner.decide(story.view(), story.now + SOON)
    assert [txn.tag for txn in old] == ["decide job"]
    assert story.apply(old[0])
    assert not story.apply(old[0])
    assert unchanged(view.assigned["a"].kv) in old[0].compares


def test_who_said_farewell_is_not_counted_by_a_successor(story: Story) -> None:
    story.running("a", "b", held=10)
    for worker in "ab":
        story.delete(keys.assigned(worker))
        story.gone(worker)
    story.planner = Planner()
    story.decide(SOON)
    assert "died" not in status_of(story).attempts


def test_a_member_that_died_is_not_counted_again_for_its_assignment(story: Story) -> None:
    story.running("a", "b", held=10)
    story.gone("b")
    for _ in range(3):
        story.planner = Planner()
        story.decide(SOON)
    assert status_of(story).attempts == {"died": 1}


def test_a_worker_whose_record_stands_still_while_it_prepares_is_a_death_too(story: Story) -> None:
    story.worker("a", "preparing")
    story.decide()
    assert story.decide(STALE_SECONDS) == ["job: waiting (no worker is alive)", "a -> nothing"]
    assert status_of(story).attempts == {"died": 1}
    story.beat("a")
    assert "a -> job" in story.decide(SOON), "it was only slow, and may try again"


def test_a_report_of_a_worker_that_is_gone_and_its_assignment_are_one_attempt(story: Story) -> None:
    story.worker("a", "preparing")
    story.decide()
    story.delete(keys.worker("a"))
    story.report("a", "memory", 0)
    story.decide(SOON)
    story.decide(SOON)
    assert status_of(story).attempts == {"memory": 1}


# ---- recoveries


def test_a_recovery_goes_on_under_a_successor(story: Story) -> None:
    story.running("a", "b", held=10)
    story.progress(15, 10)
    story.worker("a", "running", step=15)
    story.decide()
    story.gone("b")
    story.decide(2.0)
    story.planner = Planner()
    story.claims(15)
    story.progress(16, 15)
    story.beat()
    story.decide(1.0)
    (recovery,) = status_of(story).recoveries
    assert (recovery.cause, recovery.seconds) == ("b died", 2.0), "what passed without a coordinator nobody has timed"
    assert status_of(story).loss is None
    story.decide(1.0)
    assert status_of(story).recovered == 1


def test_a_recovery_lasts_from_the_last_sign_of_life_to_the_first_step_after_it(story: Story) -> None:
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
    assert (recovery.cause, recovery.seconds, recovery.steps_recomputed) == ("b died", SOON + 3.0, 1)
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


@pytest.mark.parametrize(("why", "left"), [("paused", 1), ("leaving", 2)])
def test_who_left_is_counted_once_however_long_the_others_take_to_stop(story: Story, why: str, left: int) -> None:
    """It was counted anew at every look while a pausing job's other members still committed."""
    story.running("a", "b", held=5)
    for worker in "ab":
        story.worker(worker, "running", step=5, leaving=True)
    if why == "paused":
        story.desire("paused")
    story.decide(SOON)
    story.delete(keys.worker("a"))
    story.delete(keys.claim("job", 1, 0))
    for _ in range(3):
        story.beat()
        story.decide(SOON)
    assert status_of(story).attempts == {}
    story.delete(keys.claim("job", 1, 1))
    story.worker("b", "ready", leaving=True)
    story.decide(SOON)
    assert story.look().members == ()
    assert status_of(story).attempts == {"preempted": left}
