"""How an agent leaves, pauses, ends a runner that hangs, and reports how an attempt ended."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any, Literal

import pytest
from desk import FLOOR, GRACE, READY, Desk, sent
from easyscale.coordinator import keys, ranges, records
from easyscale.errors import AddressError, CorruptError, UnavailableError
from easyscale.pipeline import messages
from easyscale.pipeline.actions import Exit, Signal, Start
from easyscale.pipeline.agent import DROP_SECONDS, PLAN_SECONDS
from easyscale.pipeline.endings import describe
from easyscale.pipeline.runner_state import STACKS_SECONDS, TERM_SECONDS
from easyscale.pipeline.session import Session
from pictures import SPEC

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- leaving


def test_leaving_idle_is_an_exit(desk: Desk) -> None:
    desk.hold_lease()
    desk.assign("job")
    desk.act()
    assert "me" in desk.view().workers
    desk.agent.on_leave(0.0)
    assert desk.wrote(desk.act()) == ["farewell"]
    assert desk.act() == [Exit()]
    assert desk.view().workers == {}, "a sign of life after the farewell would be the last one"
    assert desk.view().assigned == {}, "nobody takes it for dead in its job"


def test_a_farewell_is_said_again_until_it_is_known_to_be_heard(desk: Desk) -> None:
    desk.hold_lease()
    desk.act()
    desk.agent.on_leave(0.0)
    for outcome in ("no", "unknown"):
        desk.outcome = outcome
        assert desk.wrote(desk.act(0.3)) == ["farewell"]
    assert desk.act(GRACE)[0] == Exit(), "but nobody stays for it"


def test_leaving_while_running_finishes_the_step_and_releases(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_leave(desk.now)
    assert sent(desk.act()) == [messages.Leave()]
    assert desk.view().workers["me"].value.leaving
    assert desk.act() == [], "once"
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    desk.plan(2, "b")
    actions = desk.act()
    assert desk.wrote(actions) == ["release"]
    assert sent(actions) == [messages.Stop()]
    assert desk.mine() == {}
    desk.agent.on_exit("exited with status 0")
    assert desk.wrote(desk.act()) == ["farewell"]
    assert desk.act() == [Exit()]
    assert desk.look().reports == {}


def test_those_who_leave_together_hold_their_claims_until_the_state_is_committed(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_leave(desk.now)
    desk.act()
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    assert desk.act() == [], "a claim that is gone would end the generation under which slot 0 still publishes"
    desk.head(6)
    actions = desk.act()
    assert (desk.wrote(actions), sent(actions)) == (["release"], [messages.Stop()])


def test_leaving_with_the_newest_state_commits_it_first(desk: Desk) -> None:
    desk.prepared(held=6)
    desk.plan(1, "me")
    desk.act()
    desk.agent.on_leave(desk.now)
    assert sent(desk.act()) == [messages.Commit(base=messages.Base())]
    assert desk.act() == []
    desk.tell(messages.Publish(step=6, manifest="m6", state_digest="s6", parent=None))
    assert desk.wrote(desk.act()) == ["publish"]
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=6, manifest="m6"))]
    desk.tell(messages.Committed(step=6, published=True))
    actions = desk.act()
    assert (desk.wrote(actions), sent(actions)) == (["release"], [messages.Stop()])


def test_leaving_before_a_generation_began_commits_since_the_others_may_be_leaving_too(desk: Desk) -> None:
    desk.prepared(held=6)
    desk.plan(1, "me", "b")
    desk.act()
    desk.agent.on_leave(desk.now)
    assert sent(desk.act()) == [messages.Commit(base=messages.Base())]


def test_leaving_with_a_state_that_is_committed_already_just_lets_go(desk: Desk) -> None:
    desk.prepared(held=6)
    desk.plan(1, "me", "b")
    desk.act()
    desk.head(6)
    desk.agent.on_leave(desk.now)
    actions = desk.act()
    assert (desk.wrote(actions), sent(actions)) == (["release"], [messages.Stop()])


def test_those_who_left_together_without_knowing_it_commit_in_the_end(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    desk.agent.on_leave(desk.now)
    assert desk.act() == [], "the next plan, without us, is usually on its way"
    assert sent(desk.act(PLAN_SECONDS)) == [messages.Commit(base=messages.Base())]


def test_leaving_ends_the_runner_in_the_middle_of_its_step_when_the_grace_is_over(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_leave(desk.now)
    desk.act()
    assert desk.act(GRACE) == []
    assert desk.act(0.1) == [Signal("kill")]
    desk.agent.on_exit("ended by SIGKILL")
    actions = desk.act()
    assert desk.wrote(actions) == ["report"]
    assert desk.look().reports["me"].value.cause == "preempted"
    assert Exit() in desk.act()


def step_of(desk: Desk, seconds: float) -> None:
    """The last step took so long, most of it waiting for the others, and the next one begins."""
    desk.tell(messages.Stepped(progress=records.Progress(step=1, generation=1, step_seconds=seconds)))
    desk.tell(messages.Computing())
    desk.tell(messages.Waiting())


def test_fault_43_a_step_that_is_longer_than_the_notice_is_dropped_at_once(desk: Desk) -> None:
    desk.running("b")
    step_of(desk, GRACE + 5)
    desk.agent.on_leave(desk.now)
    actions = desk.act()
    assert sent(actions) == [messages.Leave()]
    assert actions[-1] == Signal("kill")
    assert desk.act(0.1) == [], "once"
    desk.agent.on_exit("ended by SIGKILL")
    assert desk.wrote(desk.act()) == ["report"]
    assert desk.mine() == {}


def test_a_long_step_that_ends_within_the_notice_is_finished(desk: Desk) -> None:
    desk.running("b")
    step_of(desk, GRACE + 5)
    desk.now += 6
    desk.agent.on_leave(desk.now)
    assert sent(desk.act()) == [messages.Leave()]
    assert desk.act(GRACE) == []
    assert desk.act(0.1) == [Signal("kill")]


def test_a_long_step_is_not_dropped_at_once_while_nobody_else_holds_the_state_before_it(desk: Desk) -> None:
    desk.running()
    step_of(desk, GRACE + 5)
    desk.agent.on_leave(desk.now)
    assert sent(desk.act()) == [messages.Leave()]
    assert desk.act(GRACE) == []


def test_leaving_does_not_wait_for_a_store_that_is_gone(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_leave(desk.now)
    desk.agent.on_exit("ended by SIGKILL")
    desk.lose_lease()
    assert Exit() in desk.agent.decide(None, None, desk.now)


def test_preparing_workers_leave_at_once(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.act()
    desk.agent.on_leave(desk.now)
    actions = desk.act()
    assert sent(actions) == [messages.Stop()]
    assert actions[-1] == Signal("kill"), "it hears nothing while it imports and builds, and holds nothing yet"
    desk.agent.on_exit("ended by SIGKILL")
    assert desk.wrote(desk.act()) == ["farewell"]


# ---- pausing


def test_pausing_is_told_once_and_ends_with_a_release(desk: Desk) -> None:
    desk.running("b")
    desk.desire("paused")
    assert sent(desk.act()) == [messages.Pause()]
    assert desk.act() == []
    desk.head(6)
    desk.tell(messages.Idle(generation=1, held=6, reason="pause"))
    assert desk.wrote(desk.act()) == ["release"]
    assert desk.mine() == {}
    assert desk.act() == []
    desk.plan(2)
    desk.assign(None)
    assert sent(desk.act()) == [messages.Stop()]


def test_pausing_while_ready_commits_what_only_members_hold(desk: Desk) -> None:
    desk.prepared(held=6)
    desk.plan(1, "me", "b")
    desk.act()
    desk.claim(1, 6)
    desk.desire("paused")
    assert sent(desk.act()) == [messages.Commit(base=messages.Base())], "the first of those who hold it"
    assert desk.act() == []
    desk.head(6)
    desk.tell(messages.Committed(step=6, published=True))
    assert desk.wrote(desk.act()) == ["release"]


def test_a_generation_that_stopped_to_pause_lets_go_when_the_job_is_resumed(desk: Desk) -> None:
    desk.running("b")
    desk.desire("paused")
    desk.act()
    desk.tell(messages.Idle(generation=1, held=6, reason="pause"))
    desk.desire("running")
    assert desk.wrote(desk.act()) == ["release"], "so that the coordinator plans a successor"
    desk.plan(2, "me", "b")
    assert desk.wrote(desk.act()) == ["claim"]


@pytest.mark.parametrize("why", ["pause", "leave"])
def test_a_publish_that_outlives_its_generation_does_not_keep_a_member_from_saving_its_state(
    desk: Desk, why: Literal["pause", "leave"]
) -> None:
    """The publish waited for a claim, and the claim for the publish, until the member was given up as hanging."""
    desk.running("b")
    desk.tell(messages.Publish(step=5, manifest="m5", state_digest="s5", parent=None))
    desk.plan(2, "me")
    if why == "pause":
        desk.desire("paused")
    else:
        desk.agent.on_leave(desk.now)
    desk.tell(messages.Idle(generation=1, held=6, reason=why))
    assert "claim" in desk.wrote(desk.act())
    assert desk.wrote(desk.act()) == ["publish"]
    assert messages.Commit(base=messages.Base(step=5, manifest="m5")) in sent(desk.act())


def test_a_worker_that_is_wanted_elsewhere_says_so_and_brings_its_state_to_the_store(desk: Desk) -> None:
    """A plan without anybody used to make all members drop what they had not committed."""
    desk.running()
    desk.assign("other")
    assert sent(desk.act()) == [messages.Leave()]
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    assert desk.act() == [], "others may carry on: a plan is awaited"
    assert sent(desk.act(PLAN_SECONDS)) == [messages.Commit(base=messages.Base())]


def test_a_generation_that_stopped_for_one_who_stays_after_all_lets_go(desk: Desk) -> None:
    desk.running("b")
    desk.assign("other")
    desk.act()
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    desk.assign("job")
    assert desk.wrote(desk.act()) == []
    assert desk.wrote(desk.act(PLAN_SECONDS)) == ["release"], "so that the coordinator plans a successor"
    desk.plan(2, "me", "b")
    assert desk.wrote(desk.act()) == ["claim"]


# ---- deadlines


def test_a_hanging_runner_shows_its_stacks_and_is_ended(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Computing())
    assert desk.act(10 * FLOOR) == []
    assert desk.act(0.1) == [Signal("stacks")], "a process that TERM ends writes no stacks"
    assert desk.act(STACKS_SECONDS) == [Signal("term")]
    assert desk.act(TERM_SECONDS - 0.1) == []
    assert desk.act(0.2) == [Signal("kill")]
    desk.agent.on_exit("ended by SIGKILL")
    assert desk.wrote(desk.act()) == ["report"]
    report = desk.look().reports["me"].value
    assert report.cause == "hang"
    assert "no progress for 10 s" in report.message


@pytest.mark.parametrize("word", [messages.Waiting(), messages.Stepped(progress=records.Progress(step=1))])
def test_who_waits_or_steps_does_not_hang(desk: Desk, word: messages.FromRunner) -> None:
    desk.running("b")
    desk.tell(messages.Computing())
    desk.tell(word)
    assert desk.act(1e4) == []


def test_a_commit_that_goes_on_is_no_sign_of_life_of_a_step_that_hangs(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Computing())
    desk.tell(messages.Publish(step=8, manifest="m8", state_digest="s8", parent=None))
    assert Signal("stacks") in desk.act(10 * FLOOR + 0.1)


def test_each_kind_of_work_has_a_deadline_of_its_own(desk: Desk) -> None:
    desk.running("b")
    for _ in range(4):
        desk.tell(messages.Computing(what="evaluation"))
        desk.now += 50 * FLOOR
        desk.tell(messages.Computing())
        desk.now += 0.1
        desk.tell(messages.Waiting())
    desk.tell(messages.Computing())
    assert Signal("stacks") in desk.act(2 * FLOOR), "long evaluations teach nothing about steps"


def test_a_function_takes_as_long_as_it_takes(desk: Desk) -> None:
    desk.running()
    desk.tell(messages.Computing(what="function"))
    assert desk.act(1e5) == []
    desk.tell(messages.Computing(what="evaluation"))
    assert Signal("stacks") in desk.act(10 * FLOOR + 0.1), "what we do afterwards has a deadline"


@pytest.mark.parametrize("why", ["cancelled", "failed", "rewound"])
def test_a_function_that_nobody_wants_any_more_is_ended(desk: Desk, why: str) -> None:
    desk.running()
    desk.tell(messages.Computing(what="function"))
    if why == "cancelled":
        desk.desire("cancelled")
    elif why == "failed":
        desk.status(state="failed")
    else:
        desk.job(rewound=1)
        desk.plan(2)
    assert desk.mine(), "until then"
    assert messages.Stop() not in sent(desk.act())
    assert desk.act(DROP_SECONDS - 0.1) == []
    actions = desk.act(0.2)
    assert messages.Stop() in sent(actions)
    assert desk.mine() == {}
    assert Signal("kill") in desk.act(TERM_SECONDS + 0.1)
    desk.agent.on_exit("ended by SIGKILL")
    desk.act()
    assert desk.look().reports == {}, "that is no failure of its"


def test_a_job_that_is_wanted_again_in_time_is_not_ended(desk: Desk) -> None:
    desk.running()
    desk.tell(messages.Computing(what="function"))
    desk.desire("cancelled")
    desk.act()
    desk.desire("running")
    assert desk.act(DROP_SECONDS + 1) == []
    desk.desire("cancelled")
    assert messages.Stop() not in sent(desk.act())


def test_a_runner_that_loads_for_ever_hangs_too(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.act()
    assert Signal("stacks") in desk.act(10 * FLOOR + 0.1)


def test_deadlines_hold_while_the_store_does_not_answer(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Computing())
    assert desk.agent.deadlines(desk.now + 10 * FLOOR + 0.1) == [Signal("stacks")]


def test_a_runner_that_does_not_stop_is_killed(desk: Desk) -> None:
    desk.prepared()
    desk.assign(None)
    assert sent(desk.act()) == [messages.Stop()]
    assert desk.act(TERM_SECONDS) == [Signal("kill")]
    desk.agent.on_exit("ended by SIGKILL")
    desk.act()
    assert desk.look().reports == {}


# ---- how attempts end


@pytest.mark.parametrize("cause", ["raised", "memory", "diverged"])
def test_what_the_runner_said_last_is_reported_with_its_claim_let_go(desk: Desk, cause: Any) -> None:
    desk.running("b")
    desk.tell(messages.Failed(cause=cause, step=5, message="it broke", traceback="line 3"))
    desk.agent.on_exit("exited with status 1")
    actions = desk.act()
    assert desk.wrote(actions) == ["report"]
    entry = desk.look().reports["me"]
    assert entry.kv.lease == desk.lease
    assert entry.value == records.Report(
        worker="me", generation=1, cause=cause, step=5, message="it broke", traceback="line 3",
        device="here cpu (worker me)",
    )  # fmt: skip
    assert desk.mine() == {}
    refused = {SPEC: "it broke"} if cause == "memory" else {}
    assert desk.view().workers["me"].value.refusals == refused


def test_a_death_without_words_is_told_with_the_last_lines_of_the_log(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Stepped(progress=records.Progress(step=5)))
    desk.agent.on_exit("the runner ended by SIGSEGV; last output: ouch")
    desk.act()
    report = desk.look().reports["me"].value
    assert (report.cause, report.step, report.message) == ("died", 5, "the runner ended by SIGSEGV; last output: ouch")


def test_a_runner_is_started_again_only_after_its_end_was_counted(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_exit("ended by SIGKILL")
    desk.outcome = "no"
    assert desk.wrote(desk.act()) == ["report"]
    desk.outcome = "yes"
    assert desk.wrote(desk.act()) == ["report"], "until it is written"
    for _ in range(3):
        assert desk.act(1.0) == [], "it lies there uncounted"
    desk.delete(keys.report("job", "me"))
    (start,) = desk.act()
    assert isinstance(start, Start)


def test_an_unknown_outcome_of_a_report_is_resolved_by_the_next_picture(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_exit("ended by SIGKILL")
    desk.outcome = "unknown"
    assert desk.wrote(desk.act()) == ["report"]
    desk.outcome = "yes"
    assert desk.act() == []
    desk.delete(keys.report("job", "me"))
    (start,) = desk.act()
    assert isinstance(start, Start)


def test_a_report_goes_to_the_job_it_is_about_before_another_is_served(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_exit("ended by SIGKILL")
    desk.job("next")
    desk.assign("next")
    assert desk.agent.wanted_job("next") == "job"
    assert desk.wrote(desk.act()) == ["report"]
    (start,) = desk.act()
    assert isinstance(start, Start)
    assert start.prepare.job == "next"


def test_a_report_stays_small_however_long_the_exception(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Failed(cause="raised", step=5, message="x" * 2_000_000, traceback="y" * 2_000_000))
    desk.agent.on_exit("exited with status 1")
    desk.act()
    assert len(desk.look().reports["me"].kv.value) < 100_000


@pytest.mark.parametrize(
    "error",
    [UnavailableError("s3 is down"), AddressError("s3 cannot be reached"), CorruptError("a blob is damaged")],
    ids=lambda error: type(error).__name__,
)
def test_trouble_with_the_store_is_not_charged_to_the_users_code(error: Exception, tmp_path: Path) -> None:
    assert describe(error, 5, tmp_path).cause != "raised"


def test_an_assertion_of_ours_is_not_charged_to_the_users_code_and_one_of_the_users_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("assert 1 == 2, 'the user is wrong'\n")
    run = messages.Run(generation=1, members=ranges.even(4, ["a"]), slot=0, step=0, base=messages.Base())
    told = []
    for call in (
        lambda: Session(run, 10).decide(1, [], 0.0),
        lambda: runpy.run_path(str(script)),
    ):
        with pytest.raises(AssertionError) as found:
            call()
        told.append(describe(found.value, 5, tmp_path))
    assert [failed.cause for failed in told] == ["died", "raised"]
    assert "one record per member" in told[0].message, "the sentence goes into the report"
    assert "in decide" in told[0].traceback


def test_words_of_nobody_are_nothing(desk: Desk) -> None:
    desk.hold_lease()
    desk.tell(READY)
    desk.agent.on_exit("ended by SIGKILL")
    assert desk.act() == []


# ---- away: the device is its owner's for a while


def test_an_owner_who_comes_back_has_the_step_finished_the_claim_released_and_the_runner_gone(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_away("another process uses it", desk.now)
    assert sent(desk.act()) == [messages.Leave()]
    assert desk.view().workers["me"].value.away == "another process uses it"
    assert desk.act() == [], "once"
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    desk.plan(2, "b")
    actions = desk.act()
    assert desk.wrote(actions) == ["release"]
    assert sent(actions) == [messages.Stop()]
    desk.agent.on_exit("exited with status 0")
    assert desk.act() == [], "it stays a worker, and starts no runner although it is assigned"
    assert "me" in desk.view().workers
    assert desk.look().reports == {}


def test_when_its_owner_has_gone_it_serves_again(desk: Desk) -> None:
    desk.prepared()
    desk.agent.on_away("another process uses it", desk.now)
    assert sent(desk.act()) == [messages.Stop()]
    desk.agent.on_exit("exited with status 0")
    assert desk.act(60.0) == []
    desk.agent.on_away("", desk.now)
    (start,) = desk.act()
    assert isinstance(start, Start)
    assert desk.view().workers["me"].value.away == ""


def test_who_prepares_when_its_owner_comes_is_ended_at_once(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    (start,) = desk.act()
    assert isinstance(start, Start)
    desk.agent.on_away("another process uses it", desk.now)
    actions = desk.act()
    assert sent(actions) == [messages.Stop()]
    assert Signal("kill") in actions


def test_an_owner_waits_no_longer_than_the_grace_and_the_step_that_is_cut_short_is_nobodys_fault(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_away("another process uses it", desk.now)
    desk.act()
    assert Signal("kill") in desk.act(GRACE + 0.1)
    desk.agent.on_exit("killed by signal 9")
    desk.act()
    assert desk.look().reports["me"].value.cause == "preempted"


def test_an_owner_who_goes_before_the_step_has_ended_costs_that_step_only(desk: Desk) -> None:
    desk.running("b")
    desk.agent.on_away("another process uses it", desk.now)
    desk.act()
    desk.agent.on_away("", desk.now)
    desk.tell(messages.Idle(generation=1, held=6, reason="leave"))
    assert desk.act() == [], "it waits for the next plan, of which it may be a member"
    desk.plan(2, "b", "me")
    assert desk.wrote(desk.act()) == ["claim"]
