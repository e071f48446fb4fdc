"""Broken exchanges between peers: who is accused is out at once, is counted once, and comes back if it lives."""

from __future__ import annotations

from typing import Any

import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.breaks import APART_SECONDS, CONFIRM_SECONDS
from easyscale.coordinator.membership import LANE_SECONDS
from easyscale.coordinator.planner import Planner
from pictures import SOON, Story, status_of


@pytest.fixture
def story(story: Story) -> Story:
    """Three workers that reach each other run the job."""
    story.running("a", "b", "c", held=10)
    for worker in "abc":
        says(story, worker, state="running")
    story.progress(15, 10)
    assert story.decide(SOON) == []
    return story


def says(story: Story, worker: str, lost: str | None = None, state: str = "ready", step: int = 15, **more: Any) -> None:
    """How a worker describes itself; `lost`: its exchange broke with these."""
    generation = story.look().generation
    broken = records.Broken(generation=generation, lost=tuple(lost), why="closed") if lost is not None else None
    story.worker(worker, state, step=step, address=f"{worker}:1", broken=broken, **more)


def lane(story: Story) -> str:
    plan = story.look().plan
    assert plan is not None
    return plan.value.lane


def members(story: Story) -> str:
    return "".join(m.worker for m in story.look().members)


def claimed(story: Story, *held: int) -> None:
    """The members of the plan have claimed and run."""
    story.claims(*held)
    for worker in members(story):
        says(story, worker, state="running", step=max(held))


def test_an_accused_member_is_out_at_once_and_its_claim_with_it(story: Story) -> None:
    says(story, "a", lost="c")
    assert story.decide() == [
        "job: generation 2 is a[0:2] b[2:4] (c lost by a)",
        "job: claims/00000001/00002 removed",
        "job: running",
    ]


def test_it_is_counted_once_when_its_lease_ends(story: Story) -> None:
    says(story, "a", lost="c")
    says(story, "b", lost="c")
    story.decide()
    assert (status_of(story).attempts, story.view().assigned.keys()) == ({}, set("abc"))
    claimed(story, 15, 15)
    story.decide(SOON)
    story.gone("c")
    story.decide(SOON)
    story.decide(SOON)
    assert status_of(story).attempts == {"died": 1}
    assert story.view().assigned.keys() == set("ab")


def test_it_is_counted_once_when_its_agent_reports(story: Story) -> None:
    says(story, "a", lost="c")
    story.decide()
    story.worker("c", "idle")
    story.report("c", "raised", step=15)
    story.job(retries=records.Retry(raised=3))
    story.decide(SOON)
    story.decide(SOON)
    assert status_of(story).attempts == {"raised": 1}


def test_a_report_that_is_there_already_counts_and_not_the_accusation(story: Story) -> None:
    says(story, "a", lost="c")
    story.worker("c", "idle")
    story.report("c", "died", step=15)
    assert story.decide()[1] == "job: generation 2 is a[0:2] b[2:4] (c died)"
    story.decide(SOON)
    assert status_of(story).attempts == {"died": 1}


def test_two_that_accuse_each_other_both_live_and_use_the_store_for_a_while(story: Story) -> None:
    says(story, "a", lost="c")
    says(story, "c", lost="a")
    assert story.decide()[0] == "job: generation 2 is a[0:2] b[2:3] c[3:4] (the exchange between peers broke: closed)"
    assert lane(story) == "store"
    assert status_of(story).attempts == {}
    claimed(story, 15, 15, 15)
    story.decide(APART_SECONDS - LANE_SECONDS)
    story.beat()
    story.decide(1.0)
    assert (story.look().generation, lane(story)) == (2, "store")
    story.beat()
    story.decide(LANE_SECONDS)
    story.beat()
    lines = story.decide(LANE_SECONDS)
    assert lines == ["job: generation 3 is a[0:2] b[2:3] c[3:4] (the members reach each other now)"]
    assert lane(story) == "peer"


def test_a_connection_that_breaks_again_keeps_them_apart_for_longer(story: Story) -> None:
    for seconds in (APART_SECONDS, 2 * APART_SECONDS):
        says(story, "a", lost="c")
        says(story, "c", lost="a")
        story.decide()
        assert lane(story) == "store"
        claimed(story, 15, 15, 15)
        waited = 0.0
        while lane(story) == "store":
            story.beat()
            story.decide(1.0)
            waited += 1.0
        assert seconds <= waited <= seconds + LANE_SECONDS + 2.0
        claimed(story, 15, 15, 15)


def test_a_break_with_nobody_to_blame_gives_a_new_generation_through_the_store(story: Story) -> None:
    says(story, "b", lost="")
    assert story.decide()[0] == "job: generation 2 is a[0:2] b[2:3] c[3:4] (the exchange between peers broke: closed)"
    assert lane(story) == "store", "it may have been any of b's connections"
    claimed(story, 15, 15, 15)
    assert story.decide(SOON) == []


def test_what_members_say_of_a_generation_that_is_over_does_not_count(story: Story) -> None:
    says(story, "a", lost="c")
    says(story, "b", lost="a")
    story.decide()
    assert members(story) == "ab", "b has something to tell itself, and so has a: both live"
    assert story.decide(SOON) == [], "what they said of generation 1 is over"
    claimed(story, 15, 15)
    broken = records.Broken(generation=1, lost=("a",), why="closed")
    story.worker("b", "running", step=15, address="b:1", broken=broken)
    assert story.decide(SOON) == []


def test_a_falsely_accused_one_comes_back_as_soon_as_it_shows_that_it_lives(story: Story) -> None:
    says(story, "a", lost="c")
    story.decide()
    claimed(story, 15, 15)
    assert story.decide(SOON) == [], "its record says that it runs, as it would if it were dead"
    says(story, "c", state="running")
    assert story.decide(SOON) == []
    says(story, "c")
    assert story.decide(SOON)[0] == "job: generation 3 is a[0:2] b[2:3] c[3:4] (c joins)"
    assert lane(story) == "store", "its connection broke, and nobody knows why"
    assert status_of(story).attempts == {}


def test_a_record_that_says_ready_proves_nothing_until_it_changes(story: Story) -> None:
    """It died between its claim and its first step."""
    says(story, "c")
    says(story, "a", lost="c")
    story.decide()
    claimed(story, 15, 15)
    for _ in range(5):
        story.beat("a", "b")
        assert story.decide(SOON) == []
    story.beat("c")
    assert story.decide(SOON)[0] == "job: generation 3 is a[0:2] b[2:3] c[3:4] (c joins)"


def test_a_break_that_is_explained_keeps_nobody_apart(story: Story) -> None:
    says(story, "a", lost="c")
    story.decide()
    claimed(story, 15, 15)
    story.worker("c", "idle")
    story.report("c", "died", step=15)
    story.decide(SOON)
    story.worker("c", "ready", address="c:2")
    story.decide(SOON)
    assert (members(story), lane(story)) == ("abc", "peer")


@pytest.mark.parametrize("alive", [True, False])
def test_who_alone_holds_the_newest_state_is_given_the_time_to_show_that_it_lives(alive: bool) -> None:
    """A newcomer that could not connect accused the one that had trained so far, and began from the head without it."""
    story = Story()
    story.job()
    story.running("a", held=10)
    says(story, "a", state="running", step=29)
    story.plan(2, "a", "b")
    story.worker("b", "running", address="b:1")
    story.put(keys.assigned("b"), "job")
    story.claims(29, 0)
    story.worker("b", "ready", address="b:1", broken=records.Broken(generation=2, lost=("a",), why="closed"))
    assert story.decide() == []
    if alive:
        says(story, "a", state="ready", step=29)
        assert story.decide(SOON)[0].startswith("job: generation 3 is a[0:2] b[2:4]")
        assert lane(story) == "store"
    else:
        story.beat("b")
        story.decide(SOON)
        assert (members(story), story.look().generation) == ("ab", 2)
        story.beat("b")
        assert story.decide(CONFIRM_SECONDS)[0] == "job: generation 3 is b[0:4] (a lost by b)"


def test_who_alone_holds_the_newest_state_is_in_the_next_generation_if_another_death_makes_one_before_it_is_known() -> (
    None
):
    """The same, and another newcomer died: from the head again, and without the one that held what followed."""
    story = Story()
    story.job()
    story.running("a", held=10)
    says(story, "a", state="running", step=29)
    story.plan(2, "a", "b", "c")
    for worker in "bc":
        story.worker(worker, "running", address=f"{worker}:1")
        story.put(keys.assigned(worker), "job")
    story.claims(29, 0, 0)
    story.worker("b", "ready", address="b:1", broken=records.Broken(generation=2, lost=("a",), why="closed"))
    story.report("c", "died")
    assert any(line.startswith("job: generation 3 is a[0:2] b[2:4] (c died") for line in story.decide())


def test_two_are_lost_at_once(story: Story) -> None:
    says(story, "b", lost="ac")
    assert story.decide()[0] == "job: generation 2 is b[0:4] (a lost by b; c lost by b)"


def test_who_is_accused_when_its_record_is_gone_already_is_counted_as_dead(story: Story) -> None:
    """The coordinator crashed: it wanted to know the revision of a record that was not there."""
    story.gone("c")
    says(story, "a", lost="c")
    assert story.decide()[0] == "job: generation 2 is a[0:2] b[2:4] (c died)"
    assert status_of(story).attempts == {"died": 1}


def test_who_is_accused_by_one_that_is_gone_itself_is_not_lost(story: Story) -> None:
    says(story, "a", lost="c")
    story.gone("a")
    assert story.decide()[0] == "job: generation 2 is b[0:2] c[2:4] (a died)"


def test_an_accusation_ends_a_pause_for_which_it_could_not_be_committed(story: Story) -> None:
    story.desire("paused")
    story.decide(SOON)
    says(story, "a", lost="c")
    says(story, "b", lost="c")
    story.decide()
    assert members(story) == "ab", "they claim anew: who holds the newest state commits it"


def test_members_that_all_leave_when_one_dies_commit_in_a_generation_of_their_own(story: Story) -> None:
    """A plan without anybody would have made them drop what they alone hold."""
    for worker in "abc":
        says(story, worker, state="running", leaving=True)
    story.decide(SOON)
    says(story, "a", lost="c", leaving=True)
    says(story, "b", lost="c", leaving=True)
    story.decide()
    assert members(story) == "ab"
    says(story, "a", leaving=True)
    says(story, "b", leaving=True)
    assert story.decide(SOON) == [], "they are given the time"
    story.claims(15, 15)
    story.decide(SOON)
    story.head(15)
    for slot in (0, 1):
        story.delete(keys.claim("job", 2, slot))
    story.decide(SOON)
    assert members(story) == ""


def test_a_recovery_from_an_accusation_is_timed_from_the_last_sign_of_life(story: Story) -> None:
    story.now += 0.7
    says(story, "a", lost="c")
    story.decide()
    claimed(story, 15, 15)
    story.progress(16, 15)
    story.decide(1.0)
    (recovery,) = status_of(story).recoveries
    assert (recovery.cause, recovery.seconds, recovery.steps_recomputed) == ("c lost by a", 1.7, 1)
    story.gone("c")
    story.decide(1.0)
    assert status_of(story).recovered == 1, "one loss, one recovery"
    assert status_of(story).attempts == {"died": 1}


def test_a_successor_does_not_take_an_accused_one_back_that_is_dead(story: Story) -> None:
    says(story, "a", lost="c")
    story.decide()
    claimed(story, 15, 15)
    story.planner = Planner()
    for _ in range(3):
        story.beat("a", "b")
        assert story.decide(SOON) == []


def test_who_insists_on_peers_waits_with_a_reason_when_there_are_none(story: Story) -> None:
    story.job("other", spec="7" * 64, ests=2, min_workers=2)
    story.worker("d", "ready", "other", only="other", lane="peer", address="d:1")
    story.worker("e", "ready", "other", only="other", lane="store")
    story.decide()
    assert story.look("other").members == ()
    assert status_of(story, "other").reason == (
        "workers that can serve it together are fewer than 2: d insists on exchanging with peers (--lane peer), but "
        "e uses the object store only (--lane store)"
    )
    story.job("other", spec="7" * 64, ests=2)
    story.decide(SOON)
    assert [m.worker for m in story.look("other").members] == ["d"]
    assert "d insists on exchanging with peers" in status_of(story, "other").reason
