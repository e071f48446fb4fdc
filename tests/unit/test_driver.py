"""The driver submits each stage once what it builds on is committed, and outlives outages and stages that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import ScriptError, UnavailableError, UserError
from easyscale.pipeline import driver as driving
from easyscale.pipeline.bundle import Bundle
from easyscale.pipeline.driver import Driver
from easyscale.pipeline.spec import Input, JobSpec
from easyscale.pipeline.stages import Moves
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RECORD = records.PipelineRecord(
    name="p",
    stages=(
        records.StageRecord(name="a", kind="function"),
        records.StageRecord(name="b", kind="function", inputs=("a",)),
        records.StageRecord(name="c", kind="function"),
        records.StageRecord(name="d", kind="function", inputs=("b", "c")),
    ),
)


class Desk:
    """A driver between a script's folder and stores in memory; what workers would do is done by hand."""

    def __init__(self, folder: Path) -> None:
        (folder / "train.py").write_text("")
        self.bundle = Bundle.collect(folder / "train.py")
        self.kv, self.store = MemoryKV("test"), MemoryStore("test")
        self.described: list[tuple[str, dict[str, Input]]] = []
        self.wrong: dict[str, Exception] = {}
        self.how: dict[str, str] = {}

    def describe(self, stage: str, inputs: Mapping[str, Input]) -> tuple[JobSpec, Bundle]:
        self.described.append((stage, dict(inputs)))
        if stage in self.wrong:
            raise self.wrong[stage]
        spec = JobSpec(
            name=f"p.{stage}", pipeline="p", kind="function", inputs=dict(inputs), script="train.py::f",
            code=self.bundle.digest, data="", samples=1, ests=1, batch_size=1, steps=1,
        )  # fmt: skip
        return spec, self.bundle

    def driver(self, **options: Any) -> Driver:
        def submitted(stage: str, how: str, _: object) -> None:
            self.how[stage] = how

        return Driver(RECORD, self.kv, self.store, self.describe, submitted=submitted, **options)

    def end(self, stage: str, state: records.JobState = "done") -> None:
        puts = [Put(keys.status(f"p.{stage}"), records.encode(records.Status(state=state, reason="so it is")))]
        if state == "done":
            digest = stage * 64
            head = records.Head(step=1, manifest=digest, state_digest=digest, generation=1)
            puts.append(Put(keys.head(f"p.{stage}"), records.encode(head)))
        self.kv.txn((), tuple(puts))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(driving, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(driving, "AGAIN_SECONDS", 0.0)
    return Desk(tmp_path)


def test_stages_are_submitted_with_what_the_earlier_ones_came_to(desk: Desk) -> None:
    it = desk.driver()
    looks = iter(it.follow())
    assert next(looks) == Moves(["a", "c"], {"b": ["a"], "d": ["b", "c"]}, {}, over=False)
    assert next(looks).submit == ["c"]
    assert next(looks).submit == []
    assert list(it.summaries) == ["a", "c"]
    desk.end("a")
    assert next(looks).submit == ["b"]
    desk.end("c")
    assert next(looks).waiting == {"d": ["b"]}
    desk.end("b")
    assert next(looks).submit == ["d"]
    desk.end("d")
    *_, last = looks
    assert last.over
    assert it.done
    inputs = dict(desk.described)
    assert inputs["a"] == {}
    assert inputs["d"] == {name: Input(job=f"p.{name}", step=1, state_digest=name * 64) for name in "bc"}
    assert set(desk.how.values()) == {"created"}


def test_another_driver_finds_what_is_there_and_goes_on(desk: Desk) -> None:
    looks = iter(desk.driver().follow())
    for _ in range(3):
        next(looks)
    desk.end("a")
    del looks  # whoever drove is gone
    it = desk.driver()
    for moves in it.follow():
        for stage, job in it.summaries.items():
            if job.state != "done":
                desk.end(stage)
        assert not moves.blocked
    assert it.done
    assert desk.how == {"a": "found", "b": "created", "c": "found", "d": "created"}


@pytest.mark.parametrize("end", ["failed", "cancelled", "refused"])
def test_what_builds_on_a_stage_that_came_to_nothing_is_blocked_and_the_rest_goes_on(desk: Desk, end: Any) -> None:
    if end == "refused":
        desk.wrong["a"] = ScriptError("no such file", "mend the script")
    it = desk.driver()
    for _ in it.follow():
        for stage, job in it.summaries.items():
            if job.state == "waiting":
                desk.end(stage, end if stage == "a" else "done")
    moves = it.moves
    assert (moves.blocked, moves.over) == ({"b": ["a"], "d": ["a"]}, True)
    assert not it.done
    assert it.summaries["c"].state == "done"
    assert ("a" in it.errors) == (end == "refused")


def test_a_store_that_is_away_for_a_while_fails_no_stage(desk: Desk) -> None:
    desk.wrong["a"] = UnavailableError("it does not answer")
    it = desk.driver()
    looks = iter(it.follow())
    for _ in range(4):
        assert next(looks).submit[0] == "a"
    del desk.wrong["a"]
    while "a" not in it.jobs:
        next(looks)
    assert it.errors == {}


def test_a_pipeline_is_not_begun_under_the_name_of_a_job(desk: Desk) -> None:
    record = records.JobRecord(name="p", spec="s", code="c", steps=1, ests=1)
    desk.kv.txn((), (Put(keys.spec("p"), records.encode(record)),))
    with pytest.raises(UserError, match="there is a job 'p' already"):
        desk.driver()
    assert desk.described == []
