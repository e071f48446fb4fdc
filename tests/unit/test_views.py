"""The picture of the store that decisions are made from: complete, and not spoilt by one bad value."""

from __future__ import annotations

import pytest
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import Put
from pictures import Board


@pytest.fixture
def board() -> Board:
    board = Board()
    board.job()
    return board


def test_every_key_finds_its_place(board: Board) -> None:
    board.worker("a", "running", step=3)
    board.put(keys.assigned("a"), "job")
    board.put(keys.LEADER, "me")
    board.plan(2, "a", "b")
    board.claims(5, 7)
    board.claim(0, 4, worker="old", generation=1)
    board.head(3)
    board.status(state="running")
    board.probe()
    board.damage("m3", 0)
    board.progress(6, 5)
    board.report("b", "died")
    board.put(keys.logs("job", "a"), records.LogRecord(chunks=2))
    board.put(keys.PREFIX + "future/key", "something that a newer version writes")
    view = board.view()
    job = view.jobs["job"]
    assert view.damaged == []
    assert view.workers["a"].value.state == "running"
    assert view.assigned["a"].value == "job"
    assert view.leader is not None
    assert view.leader.value == b"me"
    assert {slot: entry.value.held for slot, entry in job.claims.items()} == {0: 5, 1: 7}, "of this generation only"
    assert set(job.all_claims) == {(1, 0), (2, 0), (2, 1)}
    assert (job.generation, job.state, job.desired, job.over) == (2, "running", "running", False)
    assert job.head is not None
    assert (job.head.value.step, job.head.kv.key) == (3, keys.head("job"))
    assert set(job.reports) == {"b"}
    assert job.logs["a"].chunks == 2
    assert job.probe is not None
    assert job.progress is not None
    assert job.damage is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.plan("job"), b"{"),
        (keys.plan("job"), b'{"generation": "one"}'),
        (keys.head("job"), b"\xff\xfe"),
        (keys.desired("job"), b"\xff"),
        (keys.worker("a"), b"null"),
        (keys.claims("job") + "1/2/3", b'{"worker": "a", "held": 1}'),
        (keys.claims("job") + "one/two", b'{"worker": "a", "held": 1}'),
        (keys.report("job", "a"), b'{"worker": "a", "generation": 1, "cause": "bored", "step": 1}'),
        (keys.assigned("a"), b"\xff"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_and_left_out(board: Board, key: str, value: bytes) -> None:
    board.kv.txn((), (Put(key, value),))
    board.job("other")
    view = board.view()
    assert [line.partition(":")[0] for line in view.damaged] == [key]
    assert view.jobs["job"].spec is not None
    assert view.jobs["other"].spec is not None


def test_a_field_of_a_newer_version_is_no_damage(board: Board) -> None:
    board.kv.txn((), (Put(keys.plan("job"), b'{"generation": 3, "members": [], "mood": "good"}'),))
    assert board.look().generation == 3
    assert board.view().damaged == []


def test_the_base_is_the_head_unless_that_very_head_is_damaged(board: Board) -> None:
    assert board.look().base == (0, None)
    board.head(8)
    assert board.look().base == (8, "m8")
    board.damage("m8", 4)
    assert board.look().base == (4, "m4")
    board.head(12)
    assert board.look().base == (12, "m12"), "damage of an older head is history"


def test_the_start_is_known_once_every_member_has_claimed(board: Board) -> None:
    assert board.look().start_step() is None, "there is no plan"
    board.plan(1, "a", "b")
    board.claim(0, 5)
    assert board.look().start_step() is None
    board.claim(1, 9)
    assert board.look().start_step() == 9, "the newest state any member holds"
    board.head(10)
    assert board.look().start_step() == 10, "or can load"
    board.damage("m10", 4)
    assert board.look().start_step() == 9
    board.plan(2)
    assert board.look().start_step() is None, "nobody starts a generation without members"


@pytest.mark.parametrize(("state", "over"), [("waiting", False), ("paused", False), ("done", True), ("failed", True)])
def test_a_job_is_over_when_nothing_will_run_any_more(board: Board, state: records.JobState, over: bool) -> None:
    board.status(state=state)
    assert board.look().over is over


def test_names_of_jobs_that_begin_alike_are_apart(board: Board) -> None:
    board.job("job2", steps=7)
    board.plan(4, "a", name="job2")
    alone = views.parse(board.kv.range(keys.job("job"))).jobs
    assert set(alone) == {"job"}
    assert alone["job"].plan is None
