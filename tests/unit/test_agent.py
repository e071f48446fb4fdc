"""What a worker's agent does, a story at a time: pictures and words of its runner in, actions out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from desk import READY, Desk, sent
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Compare, Delete, Put, absent
from easyscale.pipeline import messages
from easyscale.pipeline.actions import Start, Write
from easyscale.pipeline.agent import BEAT_SECONDS, KEEP_SECONDS, KEPT_NOTES
from pictures import CODE, SPEC, worker_record


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- starting a runner


def test_a_runner_is_started_for_the_assigned_job(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    assert desk.act() == []
    desk.assign("job")
    assert desk.act() == [Start(messages.Prepare(job="job", worker="me", spec=SPEC, code=CODE))]
    assert desk.act() == [], "one is enough"
    assert desk.view().workers["me"].value.state == "preparing"
    desk.tell(READY)
    desk.act()
    assert desk.view().workers["me"].value.state == "ready"


@pytest.mark.parametrize("why", ["no lease", "paused", "over", "refused", "no spec"])
def test_no_runner_is_started_in_vain(desk: Desk, why: str) -> None:
    if why != "no lease":
        desk.hold_lease()
    if why != "no spec":
        desk.job(desired="paused" if why == "paused" else "running")
    if why == "over":
        desk.status(state="failed")
    if why == "refused":
        desk.agent.me = worker_record("me", refusals={SPEC: "too small"})
    desk.assign("job")
    assert desk.act() == []


def test_a_runner_in_preparation_is_stopped_when_the_assignment_goes(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.act()
    desk.assign(None)
    assert sent(desk.act()) == [messages.Stop()]
    desk.agent.on_exit("exited with status 0")
    assert desk.act() == []
    assert desk.look().reports == {}, "it did as it was told"


# ---- the probe


def test_what_an_est_takes_is_told_of_the_last_jobs_that_were_prepared(desk: Desk) -> None:
    desk.prepared()
    assert desk.view().workers["me"].value.probes == {}, "it is not known"
    desk.tell(msgspec.structs.replace(READY, est_seconds=0.25))
    desk.act()
    assert desk.view().workers["me"].value.probes == {SPEC: 0.25}
    desk.tell(READY)
    desk.tell(msgspec.structs.replace(READY, est_seconds=0.5))
    desk.act()
    assert desk.view().workers["me"].value.probes == {SPEC: 0.5}
    runner = desk.agent.runner
    assert runner is not None
    specs = [f"{number:064d}" for number in range(KEPT_NOTES)]
    for spec in [*specs, specs[0]]:
        runner.spec = spec
        desk.tell(msgspec.structs.replace(READY, est_seconds=0.125))
    assert [*desk.agent.me.probes] == [*specs[1:], specs[0]], "the newest, the oldest first"


def test_the_first_one_records_the_probe(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.act()
    desk.tell(READY)
    assert desk.wrote(desk.act()) == ["probe"]
    found = desk.look().probe
    assert found is not None
    assert found.value == records.Probe(determinism="class", digest="bits", description={"torch": "2"}, worker="me")
    assert desk.act() == []


def test_of_two_who_record_a_probe_at_once_one_is_believed(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.act()
    desk.tell(READY)
    (write,) = desk.agent.decide("job", desk.look(), 0.0)[:1]
    assert isinstance(write, Write)
    desk.probe("other bits")
    assert not desk.kv.txn(write.txn.compares, write.txn.operations).succeeded


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ({"digest": "other"}, "computes other bits than first for the initial state and first gradient"),
        (
            {"determinism": "old", "torch": "1", "cpu": "x"},
            "another determinism class than first (cpu: None here, 'x' there; torch: '2' here, '1' there)",
        ),
    ],
)
def test_a_device_that_differs_is_refused_by_name_and_with_the_reason(desk: Desk, probe: Any, reason: str) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.probe(**probe)
    desk.plan(1, "me")
    desk.act()
    desk.tell(READY)
    assert sent(desk.act()) == [messages.Stop()]
    assert desk.mine() == {}, "it never claims"
    desk.act()
    assert desk.view().workers["me"].value.refusals == {SPEC: reason}
    desk.agent.on_exit("exited with status 0")
    assert desk.act(2.0) == [], "nor is it started again for this specification"


# ---- claiming


def test_a_slot_is_claimed_once_per_generation_with_the_state_held(desk: Desk) -> None:
    desk.prepared(held=12)
    desk.plan(3, "other", "me")
    assert desk.wrote(desk.act()) == ["claim"]
    assert desk.mine() == {(3, 1): 12}
    assert desk.act() == []
    entry = desk.look().claims[1]
    assert entry.kv.lease == desk.lease
    desk.delete(entry.kv.key)
    assert desk.act(1.0) == [], "one that is gone is not made again"


def test_a_claim_is_conditional_on_the_plan_and_lets_go_of_older_ones(desk: Desk) -> None:
    desk.prepared()
    desk.plan(1, "me", "other")
    desk.act()
    desk.plan(2, "me")
    job = desk.look()
    (write, *_) = desk.agent.decide("job", job, desk.now)
    assert isinstance(write, Write)
    assert job.plan is not None
    key = keys.claim("job", 2, 0)
    assert set(write.txn.compares) == {Compare(keys.plan("job"), "mod", job.plan.kv.mod_revision), absent(key)}
    assert Delete(keys.claim("job", 1, 0)) in write.txn.operations
    desk.plan(3, "me")
    assert not desk.kv.txn(write.txn.compares, write.txn.operations).succeeded, "the plan has changed"
    desk.act()
    assert desk.mine() == {(3, 0): 0}


def test_a_claim_whose_outcome_is_unknown_is_found_in_the_next_picture(desk: Desk) -> None:
    desk.prepared()
    desk.plan(1, "me")
    desk.outcome = "unknown"
    assert desk.wrote(desk.act()) == ["claim"]
    desk.outcome = "yes"
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)


def test_a_claim_that_was_not_made_is_tried_again(desk: Desk) -> None:
    desk.prepared()
    desk.plan(1, "me")
    desk.outcome = "no"
    assert desk.wrote(desk.act()) == ["claim"]
    assert desk.mine() == {}
    desk.outcome = "yes"
    assert desk.wrote(desk.act()) == ["claim"]
    assert desk.mine() == {(1, 0): 0}


def test_nothing_is_claimed_without_a_lease(desk: Desk) -> None:
    desk.prepared()
    desk.lose_lease()
    desk.plan(1, "me")
    assert desk.act() == []
    desk.hold_lease()
    assert desk.wrote(desk.act()) == ["claim"]


# ---- starting to run


def test_what_a_former_runner_had_claimed_starts_no_other_one_and_is_let_go(desk: Desk) -> None:
    """Regression: a stale picture showed the claim after its end was counted, and the generation was run once more."""
    desk.running("b")
    claim = desk.look().claims[0].kv
    desk.agent.on_exit("ended by SIGKILL")
    desk.act()
    desk.delete(keys.report("job", "me"))
    (start,) = desk.act()
    assert isinstance(start, Start)
    desk.tell(READY)
    desk.kv.txn([], [Put(claim.key, claim.value, desk.lease)])
    actions = desk.act()
    assert (desk.wrote(actions), sent(actions)) == (["release"], [])
    assert desk.mine() == {}
    desk.plan(2, "me")
    assert desk.wrote(desk.act()) == ["claim"]
    assert [type(message) for message in sent(desk.act())] == [messages.Run]


def test_running_begins_when_everybody_has_claimed(desk: Desk) -> None:
    desk.prepared()
    desk.plan(1, "me", "b", "c")
    desk.act()
    desk.claim(1)
    assert desk.act() == []
    desk.claim(2)
    members = desk.look().members
    run = messages.Run(
        generation=1, members=members, slot=0, step=0, base=messages.Base(),
        held=(0, 0, 0), addresses=("", "", ""), gpus=("", "", ""),
    )  # fmt: skip
    assert sent(desk.act()) == [run]
    assert desk.act() == []
    assert desk.view().workers["me"].value.state == "running"


def test_who_is_behind_the_head_is_told_to_load_it(desk: Desk) -> None:
    desk.prepared()
    desk.head(30)
    desk.plan(1, "me", "b")
    desk.act()
    desk.claim(1, 20)
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)
    assert (run.step, run.base) == (30, messages.Base(step=30, manifest="m30"))


def test_who_holds_the_newest_state_commits_it_for_those_behind(desk: Desk) -> None:
    desk.prepared(held=37)
    desk.head(30)
    desk.plan(1, "me", "b")
    desk.act()
    desk.claim(1, 0)
    assert sent(desk.act()) == [messages.Commit(base=messages.Base(step=30, manifest="m30"))]
    assert desk.act() == [], "once"
    desk.tell(messages.Publish(step=37, manifest="m37", state_digest="s37", parent="m30"))
    assert desk.wrote(desk.act()) == ["publish"]
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=37, manifest="m37"))]
    desk.tell(messages.Committed(step=37, published=True))
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)
    assert (run.step, run.base.manifest) == (37, "m37")


def test_only_the_first_of_those_who_hold_the_newest_state_commits_it(desk: Desk) -> None:
    desk.prepared(held=37)
    desk.plan(1, "b", "me", "c")
    desk.act()
    desk.claim(0, 37)
    desk.claim(2, 0)
    assert desk.act() == [], "b does it"
    desk.head(37)
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)
    assert run.step == 37


def test_nothing_need_be_committed_when_all_hold_the_newest_state(desk: Desk) -> None:
    desk.prepared(held=37)
    desk.head(30)
    desk.plan(1, "me", "b")
    desk.act()
    desk.claim(1, 37)
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)
    assert (run.step, run.base) == (37, messages.Base(step=30, manifest="m30"))


def test_a_generation_is_run_once(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Idle(generation=1, held=5, reason="yield"))
    assert desk.act() == []
    desk.plan(2, "me")
    assert desk.wrote(desk.act()) == ["claim"]
    assert desk.mine() == {(2, 0): 5}


# ---- while running


def test_a_newer_generation_is_told_with_those_whose_partials_will_never_come(desk: Desk) -> None:
    desk.running("b", "c")
    desk.delete(keys.claim("job", 1, 2))
    assert desk.act() == [], "the coordinator decides who is lost"
    desk.plan(2, "me", "b")
    assert sent(desk.act()) == [messages.Yield(generation=2, lost=(2,))]
    assert desk.act() == [], "once"
    desk.delete(keys.claim("job", 1, 1))
    assert sent(desk.act()) == [messages.Yield(generation=2, lost=(1, 2))], "b has gone over to generation 2"


@pytest.mark.parametrize("why", ["cancelled", "failed", "nobody"])
def test_what_nobody_wants_is_dropped_at_once(desk: Desk, why: str) -> None:
    desk.running("b")
    if why == "cancelled":
        desk.desire("cancelled")
    elif why == "failed":
        desk.status(state="failed")
    else:
        desk.plan(2)
    (told,) = sent(desk.act())
    assert isinstance(told, messages.Yield)
    assert told.drop


@pytest.mark.parametrize("phase", ["ready", "running"])
def test_a_runner_of_an_older_specification_is_not_used_any_more(desk: Desk, phase: str) -> None:
    """`--accept-changes` while the job runs: old code and new code must not train one state together."""
    if phase == "running":
        desk.running()
    else:
        desk.prepared()
        desk.plan(1, "me")
    desk.job(spec="6" * 64)
    desk.delete(keys.probe("job"))
    actions = desk.act()
    if phase == "running":
        desk.tell(messages.Idle(generation=1, held=5, reason="yield"))
        desk.plan(2, "me")
        actions += desk.act() + desk.act()
        assert sent(actions)[-1] == messages.Commit(base=messages.Base()), "what only it holds goes on in the new one"
        assert messages.Stop() not in sent(actions)
        desk.tell(messages.Committed(step=5, published=True))
        desk.head(5)
    actions += desk.act() + desk.act() + desk.act()
    assert messages.Stop() in sent(actions)
    assert desk.mine() == {}
    assert not [message for message in sent(actions) if isinstance(message, messages.Run)]
    assert desk.look().probe is None, "the old code's probe is none of the new one's"


def test_a_runner_of_an_older_specification_publishes_what_it_has_written_and_runs_no_more(desk: Desk) -> None:
    desk.running()
    desk.job(spec="6" * 64)
    desk.delete(keys.probe("job"))
    desk.tell(messages.Publish(step=5, manifest="m5", state_digest="s5", parent=None))
    desk.tell(messages.Idle(generation=1, held=5, reason="pause"))
    desk.plan(2, "me")
    said = [message for _ in range(4) for message in sent(desk.act())]
    head = desk.look().head
    assert head is not None
    assert (head.value.step, head.value.generation) == (5, 2)
    assert [type(message) for message in said] == [messages.Published, messages.Stop]
    assert desk.look().probe is None


def test_what_a_runner_of_an_older_specification_holds_is_not_waited_for_for_ever(desk: Desk) -> None:
    desk.running()
    desk.job(spec="6" * 64)
    desk.tell(messages.Idle(generation=1, held=5, reason="pause"))
    desk.plan(2, "other", "me")
    desk.claim(0, 5)
    for _ in range(3):
        assert sent(desk.act(after=1.0)) == [], "the other one holds the same, and commits it"
    assert messages.Stop() in sent(desk.act(after=KEEP_SECONDS))


def test_an_older_picture_does_not_have_a_new_runner_run_what_a_former_one_had_claimed(desk: Desk) -> None:
    desk.prepared()
    desk.plan(3, "me")
    assert desk.wrote(desk.act()) == ["claim"]
    newest = desk.look().plan
    assert newest is not None
    desk.plan(1, "me")  # a stale read
    desk.claim(0)
    assert desk.act() == []
    desk.put(keys.plan("job"), newest.value)
    (run,) = sent(desk.act())
    assert isinstance(run, messages.Run)
    assert run.generation == 3


def test_an_older_picture_does_not_have_a_claim_made_twice(desk: Desk) -> None:
    desk.prepared()
    desk.plan(3, "me", "b")
    desk.act()
    desk.act()
    newest = desk.look().plan
    assert newest is not None
    desk.plan(1, "me", "b")  # a stale read
    desk.claim(0)
    desk.act()
    desk.put(keys.plan("job"), newest.value)
    desk.delete(keys.claim("job", 3, 0))
    assert desk.act() == [], "it was seen, and is gone: a lease was lost"


@pytest.mark.parametrize("phase", ["ready", "running", "paused"])
def test_a_runner_from_before_a_rewind_never_claims_with_the_state_that_was_given_up(desk: Desk, phase: str) -> None:
    if phase == "ready":
        desk.prepared(held=50)
    else:
        desk.running(held=50)
    if phase == "paused":
        desk.desire("paused")
        desk.act()
        desk.tell(messages.Idle(generation=1, held=50, reason="pause"))
    desk.job(rewound=1)  # resumed at once
    desk.plan(3, "me")
    actions = desk.act()
    if phase == "running":
        desk.tell(messages.Idle(generation=1, held=50, reason="yield"))
    actions += desk.act() + desk.act() + desk.act()
    assert messages.Stop() in sent(actions)
    assert not [message for message in sent(actions) if isinstance(message, messages.Run)]
    assert desk.look().claims == {}
    desk.agent.on_exit("exited with status 0")
    (start,) = [action for action in desk.act() if isinstance(action, Start)]
    assert start.prepare.job == "job"


def test_a_runner_is_told_that_its_job_is_a_fork(desk: Desk) -> None:
    desk.hold_lease()
    desk.job(forked="other@5")
    desk.assign("job")
    (start,) = desk.act()
    assert start == Start(messages.Prepare(job="job", worker="me", spec=SPEC, code=CODE, forked=True))


def test_progress_is_written_by_slot_0_for_those_who_come_after(desk: Desk) -> None:
    desk.running("b")
    progress = records.Progress(step=3, generation=1)
    desk.tell(messages.Stepped(progress=progress))
    desk.act(BEAT_SECONDS)
    entry = desk.look().progress
    assert entry is not None
    assert entry.value == progress
    assert desk.view().workers["me"].value.progress == progress


def test_a_member_that_is_not_slot_0_keeps_its_progress_to_its_own_record(desk: Desk) -> None:
    desk.prepared()
    desk.plan(1, "b", "me")
    desk.claim(0)
    desk.act()
    desk.act()
    desk.tell(messages.Stepped(progress=records.Progress(step=3, generation=1)))
    desk.act(BEAT_SECONDS)
    assert desk.look().progress is None


def test_a_beat_is_written_once_a_second_and_news_at_once(desk: Desk) -> None:
    desk.hold_lease()
    desk.act()
    beats = [desk.view().workers["me"].value.beat]
    for after in (0.3, 0.3, 0.3, 0.3):
        desk.act(after)
        beats.append(desk.view().workers["me"].value.beat)
    assert beats == [1, 1, 1, 1, 2]
    desk.job()
    desk.assign("job")
    desk.act()
    record = desk.view().workers["me"].value
    assert (record.beat, record.state, record.job) == (3, "preparing", "job"), "at once"


def test_a_record_that_was_not_written_is_written_again_at_once(desk: Desk) -> None:
    desk.hold_lease()
    desk.outcome = "no"
    desk.act()
    assert desk.view().workers == {}
    desk.outcome = "yes"
    desk.act()
    assert set(desk.view().workers) == {"me"}


def test_a_lost_lease_is_followed_by_a_new_record_under_the_new_one(desk: Desk) -> None:
    desk.running("b")
    desk.lose_lease()
    assert desk.view().workers == {}
    assert desk.mine() == {}
    assert desk.act() == [], "the runner computes on; it cannot publish"
    desk.hold_lease()
    assert desk.act() == []
    assert desk.view().workers["me"].kv.lease == desk.lease
    assert desk.mine() == {}, "the generation is not claimed a second time"
