"""What a pipeline's driver does next, over all small pipelines and all fates of their stages; and what people see."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, get_args

import pytest
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import MAX_VALUE, Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import CorruptError
from easyscale.pipeline import stages
from easyscale.pipeline.spec import NAME_PATTERN
from easyscale.pipeline.stages import Fate, moves

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = "abcd"
FATES: tuple[Fate, ...] = get_args(Fate)


def pipelines() -> Iterator[tuple[records.StageRecord, ...]]:
    """All that four stages can build on each other: 2 ** (0 + 1 + 2 + 3) pipelines."""
    earlier = [NAMES[:number] for number in range(len(NAMES))]
    choices = [
        [combination for size in range(len(before) + 1) for combination in itertools.combinations(before, size)]
        for before in earlier
    ]
    for inputs in itertools.product(*choices):
        yield tuple(records.StageRecord(name=name, inputs=mine) for name, mine in zip(NAMES, inputs, strict=True))


@pytest.mark.parametrize("number", range(64))
def test_a_stage_is_submitted_when_all_it_builds_on_is_done_and_never_else(number: int) -> None:
    its = [*pipelines()][number]
    for chosen in itertools.product(FATES, repeat=4):
        fates = dict(zip(NAMES, chosen, strict=True))
        found = moves(its, fates)
        new = [stage.name for stage in its if fates[stage.name] == "new"]
        assert sorted([*found.submit, *found.waiting, *found.blocked]) == new, "each has exactly one place"
        for stage in its:
            if stage.name in found.submit:
                assert all(fates[name] == "done" for name in stage.inputs)
            if stage.name in found.waiting:
                assert found.waiting[stage.name] == [name for name in stage.inputs if fates[name] != "done"]
            if stage.name in found.blocked:
                assert all(fates[cause] == "failed" for cause in found.blocked[stage.name])
                assert found.blocked[stage.name]
        assert found.over == (not found.submit and "going" not in chosen)


@pytest.mark.parametrize("number", range(64))
def test_whoever_follows_the_moves_comes_to_an_end_in_any_order(number: int) -> None:
    its = [*pipelines()][number]
    for failing in [None, *NAMES]:
        fates: dict[str, Fate] = dict.fromkeys(NAMES, "new")
        while not (found := moves(its, fates)).over:
            for name in found.submit:
                fates[name] = "going"
            if going := [name for name in NAMES if fates[name] == "going"]:
                fates[going[-1]] = "failed" if going[-1] == failing else "done"
        assert not found.waiting, "at the end all are done, failed or blocked"
        assert (set(fates.values()) == {"done"}) == (failing is None)


def test_names_in_the_record_are_checked_when_it_is_read() -> None:
    for name in ("a", "x" * 100, "a.b-c_d", "../x", "", "a/b", "a\n", "x" * 101):
        record = records.PipelineRecord(name="p", stages=(records.StageRecord(name=name),))
        text = records.encode(record)
        if NAME_PATTERN.fullmatch(name):
            assert records.decode(text, records.PipelineRecord) == record
        else:
            with pytest.raises(CorruptError, match="does not hold a PipelineRecord"):
                records.decode(text, records.PipelineRecord)


def put(kv: MemoryKV, job: str, pipeline: str, state: records.JobState) -> None:
    record = records.JobRecord(name=job, spec="s", code="c", steps=1, ests=1, pipeline=pipeline)
    head = records.Head(step=1, manifest="m", state_digest="d" * 64, generation=1, metrics={"x": 1.0})
    kv.txn(
        (),
        (
            Put(keys.spec(job), records.encode(record)),
            Put(keys.status(job), records.encode(records.Status(state=state))),
            *([Put(keys.head(job), records.encode(head))] if state == "done" else []),
        ),
    )


def test_a_picture_has_all_stages_also_those_that_are_no_jobs_yet_and_no_job_that_is_not_its() -> None:
    kv = MemoryKV("test")
    record = records.PipelineRecord(
        name="p",
        stages=(
            records.StageRecord(name="a", kind="function"),
            records.StageRecord(name="b", inputs=("a",)),
            records.StageRecord(name="c", inputs=("a", "b")),
            records.StageRecord(name="d"),
        ),
    )
    assert stages.read(kv, "p") is None
    kv.txn((), (Put(keys.pipeline("p"), records.encode(record)),))
    put(kv, "p.a", "p", "done")
    put(kv, "p.b", "p", "failed")
    put(kv, "p.d", "", "done")  # a job of that name that is no stage
    put(kv, "p.x", "p", "done")
    found = stages.read(kv, "p")
    assert found is not None
    assert [(stage.stage, stage.state, stage.reason, stage.submitted) for stage in found.summaries()] == [
        ("a", "done", "", True),
        ("b", "failed", "", True),
        ("c", "waiting", "waits for b", False),
        ("d", "waiting", "waits to be submitted: run its script again", False),
    ]
    assert found.summaries()[0].metrics == {"x": 1.0}
    assert found.state == "failed"
    assert [picture.name for picture in stages.read_all(kv, views.parse(kv.range(keys.JOBS)).jobs)] == ["p"]


def test_the_record_of_the_largest_pipeline_is_refused_or_small() -> None:
    from easyscale.errors import SpecError
    from easyscale.pipeline.pipelines import MAX_STAGES, Pipeline, Stage

    def function() -> None: ...

    function.__qualname__ = "function"
    its = [Stage(function, name=f"{'x' * 90}{number:03d}") for number in range(MAX_STAGES)]
    assert len(records.encode(Pipeline("p", its).record)) < MAX_VALUE
    scope: dict[str, object] = {}
    names = [stage.name for stage in its[:-1]]
    exec(f"def last({', '.join(names)}): ...", scope)
    assert len(records.encode(Pipeline("p", [*its[:-1], scope["last"]]).record)) < MAX_VALUE  # type: ignore[list-item]
    every = []
    for number in range(MAX_STAGES):
        exec(f"def {'x' * 90}{number:03d}({', '.join(f.__name__ for f in every)}): ...", scope)
        every.append(scope[f"{'x' * 90}{number:03d}"])
    with pytest.raises(SpecError, match="its names are too long for so many inputs"):
        Pipeline("p", every)  # type: ignore[arg-type]
