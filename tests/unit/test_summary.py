"""A job as people and scripts see it: the keys that are promised, and what stands in them."""

from __future__ import annotations

import json

import pytest
from easyscale.coordinator import keys, records
from easyscale.pipeline.cli_jobs import _lines
from easyscale.pipeline.progress import describe
from easyscale.pipeline.summary import read_job, read_jobs, summarize
from pictures import Board

PROMISED = {"job", "state", "step", "steps", "state_digest", "metrics", "workers", "generation", "recoveries"}


@pytest.fixture
def board() -> Board:
    board = Board()
    board.job()
    return board


def test_a_job_that_nobody_has_looked_at_says_so(board: Board) -> None:
    found = summarize(board.look())
    assert (found.state, found.step, found.steps, found.generation) == ("waiting", 0, 100, 0)
    assert found.reason == "no coordinator has seen it yet"
    assert (found.state_digest, found.manifest, found.metrics, found.workers) == (None, None, {}, [])


def test_the_promised_keys_are_there_as_plain_json(board: Board) -> None:
    board.plan(3, "a", "b")
    recovery = records.Recovery(cause="b died", seconds=1.5, steps_recomputed=2)
    board.status(state="running", recoveries=(recovery,), recovered=1)
    plain = json.loads(json.dumps(summarize(board.look()).as_dict()))
    assert plain.keys() >= PROMISED
    assert plain["workers"] == ["a", "b"]
    assert plain["recoveries"] == [{"cause": "b died", "seconds": 1.5, "steps_recomputed": 2}]


def test_a_running_jobs_step_is_the_newest_heard_of(board: Board) -> None:
    board.plan(1, "a")
    board.status(state="running")
    board.head(20)
    board.progress(27)
    found = summarize(board.look())
    assert (found.step, found.committed, found.state_digest) == (27, 20, "s20")
    board.head(30)
    assert summarize(board.look()).step == 30


def test_people_see_the_lane_and_what_a_step_sends(board: Board) -> None:
    board.put(keys.progress("job"), records.Progress(step=3, lane="peer", sent=12345))
    assert ("lane", "peer: 12,345 bytes sent per step") in _lines(summarize(board.look()))
    board.put(keys.progress("job"), records.Progress(step=3, lane="local"))
    assert ("lane", "local") in _lines(summarize(board.look()))


def test_a_done_jobs_step_is_that_of_its_digest(board: Board) -> None:
    board.head(100)
    board.progress(103)
    board.status(state="done")
    found = summarize(board.look())
    assert (found.step, found.committed, found.state_digest) == (100, 100, "s100")


@pytest.mark.parametrize(("state", "rate"), [("running", 50.0), ("paused", 0.0)])
def test_what_stands_still_has_no_rate(board: Board, state: records.JobState, rate: float) -> None:
    board.status(state=state)
    board.put(keys.progress("job"), records.Progress(step=3, samples_per_second=50.0))
    assert summarize(board.look()).samples_per_second == rate


def test_a_failed_job_shows_the_users_traceback(board: Board) -> None:
    failure = records.Failure(cause="raised", step=3, worker="a", message="boom", traceback="line 7: boom")
    board.status(state="failed", reason="the user's code raised", failure=failure)
    found = summarize(board.look())
    assert (found.traceback, found.reason) == ("line 7: boom", "the user's code raised")
    assert describe(found) == "failed: the user's code raised"


def test_jobs_are_listed_by_precedence(board: Board) -> None:
    board.job("younger")
    board.job("urgent", priority=2)
    board.put(keys.head("orphan"), records.Head(step=1, manifest="m", state_digest="s", generation=1))
    assert [job.name for job in read_jobs(board.kv)] == ["urgent", "job", "younger"]


def test_a_job_is_read_by_its_whole_name(board: Board) -> None:
    board.job("job2")
    board.put(keys.head("orphan"), records.Head(step=1, manifest="m", state_digest="s", generation=1))
    found = read_job(board.kv, "job")
    assert found is not None
    assert found.name == "job"
    for name in ("jo", "job3", "orphan"):
        assert read_job(board.kv, name) is None
