"""What a user may write as a pipeline, and what is said of the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.errors import ScriptError, SpecError
from easyscale.pipeline.job import Job
from easyscale.pipeline.pipelines import Pipeline, Stage
from easyscale.pipeline.script import MODULE_NAME, load, pick, runnable_in
from easyscale.pipeline.spec import Input, Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DIGEST = "d" * 64


def prepare() -> int:
    return 1


def build(prepare: int) -> Any: ...


def evaluate(train: Any, prepare: int, limit: float = 0.5) -> Any: ...


def recursive(recursive: Any) -> Any: ...


def unknown(prepaer: Any) -> Any: ...


def anything(**stages: Any) -> Any: ...


def positional(prepare: Any, /) -> Any: ...


def fine_tune_user(fine_tune: Any) -> Any: ...


def train(name: str = "train", **settings: Any) -> Job:
    return Job(name, build, ests=2, batch_size=5, steps=3, **settings)


def nested() -> Callable[[], int]:
    def inner() -> int:
        return 1

    return inner


def test_parameters_say_what_builds_on_what() -> None:
    it = Pipeline("p", [prepare, train(), Stage(evaluate, name="check", retries={"raised": 2}, priority=3)])
    assert it.inputs == {"prepare": (), "train": ("prepare",), "check": ("train", "prepare")}
    assert [(stage.name, stage.kind, stage.inputs) for stage in it.record.stages] == [
        ("prepare", "function", ()),
        ("train", "training", ("prepare",)),
        ("check", "function", ("train", "prepare")),
    ]
    check = it.stage("check")
    assert (check.settings.retries, check.settings.priority) == (Retries(raised=2), 3)
    assert check.settings.total_steps == 1


def test_a_stages_specification_names_pipeline_and_inputs() -> None:
    it = Pipeline("p", [prepare, train()])
    one = Input(job="p.prepare", step=1, state_digest=DIGEST)
    spec = it.spec("train", {"prepare": one}, script="x.py::build", code=DIGEST, data="d", samples=50)
    assert (spec.name, spec.pipeline, spec.kind, spec.inputs) == ("p.train", "p", "training", {"prepare": one})
    assert str(one) == "p.prepare@1 (dddddddddddd)"
    assert spec.decode(spec.encode()) == spec
    other = it.spec("train", {"prepare": Input(job="p.prepare", step=1, state_digest="e" * 64)}, script="x.py::build",
                    code=DIGEST, data="d", samples=50)  # fmt: skip
    assert set(spec.differences(other)) == {"inputs"}, "what it starts from defines its bits"


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], "its stages are []"),
        (prepare, "its stages are <function prepare"),
        ([prepare] * 101, "give a list of 1 to 100"),
        ([lambda: 1], "one of its stages is <lambda>"),
        ([nested()], "nested.<locals>.inner, which workers cannot find by name"),
        ([7], "one of its stages is 7"),
        ([prepare, prepare], "two stages named 'prepare'"),
        ([prepare, train(), train()], "two stages named 'train'"),
        ([recursive], "its parameter 'recursive' is itself"),
        ([train(), prepare], "its parameter 'prepare' is a later stage"),
        ([prepare, unknown], "'prepaer' is no stage before it\n  the stages before it are: prepare"),
        ([unknown], "the stages before it are: none"),
        ([prepare, anything], "has the parameter '**stages', which no stage can stand for"),
        ([prepare, positional], "has the parameter 'prepare', which no stage can"),
        ([prepare, train("fine-tune"), fine_tune_user], "stage 'fine-tune' has a name that no parameter can have"),
        ([Stage(prepare, name="x" * 99)], "100 characters fit"),
        ([Pipeline("q", [prepare])], "a pipeline cannot be a stage"),
    ],
)
def test_a_pipeline_that_cannot_be_run_is_refused_with_what_to_do(stages: Any, words: str) -> None:
    with pytest.raises(SpecError) as found:
        Pipeline("p", stages)
    assert words in str(found.value)
    assert str(found.value).startswith("pipeline 'p'")
    assert found.value.hint


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 101, None])
def test_a_name_that_cannot_be_part_of_keys_is_refused(name: Any) -> None:
    with pytest.raises(SpecError, match="its name cannot be used"):
        Pipeline(name, [prepare])
    if name is not None:
        with pytest.raises(SpecError, match="cannot be used"):
            Stage(prepare, name=name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ests": 2}, "there is no setting 'ests'"),
        ({"prioritiy": 2}, "did you mean priority?"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"retries": {"raised": -1}}, "retries has raised -1"),
        ({"threads": 0}, "threads is 0"),
        ({"files": "x"}, "files is 'x'"),
    ],
)
def test_settings_of_a_stage_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as found:
        Stage(prepare, **settings)
    assert words in str(found.value)


def test_settings_from_the_command_line_go_to_their_stages() -> None:
    it = Pipeline("p", [prepare, train(), Stage(evaluate, name="a.b")])
    found = it.replace({"name": "q", "numerics": "exact", "train.batch_size": "7", "a.b.priority": "4"})
    assert found.name == "q"
    assert found.stage("train").settings.batch_size == 7
    assert found.stage("a.b").settings.priority == 4
    assert {stage.settings.numerics for stage in found.stages} == {"exact"}
    assert it.replace({"train.numerics": "exact"}).stage("prepare").settings.numerics == "native"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"batch_size": "7"}, "--set 'batch_size': pipeline 'p' has no such stage\n  write --set STAGE.KEY=VALUE"),
        ({"trian.seed": "7"}, "its stages are prepare, train"),
        ({"prepare.ests": "7"}, "stage 'prepare': there is no setting 'ests'"),
        ({"train.ests": "x"}, "--set 'ests=x' is not a value for ests"),
        ({"train.name": "x"}, "a stage cannot be renamed"),
        ({"name": "x" * 97}, "100 characters fit"),
    ],
)
def test_settings_that_belong_nowhere_are_refused(texts: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError) as found:
        Pipeline("p", [prepare, train()]).replace(texts)
    assert words in str(found.value)


SCRIPT = """
import easyscale as es
def prepare(): ...
def build(prepare): ...
train = es.Job("train", build, ests=1, batch_size=1, steps=1)
other = es.Job("other", build, ests=1, batch_size=1, steps=1)
pipe = es.Pipeline("pipe", [prepare, train])
"""


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading a script changes what a process of its own would not miss."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    yield
    sys.modules.pop(MODULE_NAME, None)


def found_in(tmp_path: Path, text: str) -> dict[str, Any]:
    script = tmp_path / "train.py"
    script.write_text(text)
    return dict(runnable_in(load(script)))


def test_what_can_be_run_of_a_script_is_its_pipelines_and_the_jobs_that_are_no_stages(tmp_path: Path) -> None:
    found = found_in(tmp_path, SCRIPT)
    assert list(found) == ["other", "pipe"]
    assert isinstance(pick(found, "pipe"), Pipeline)
    with pytest.raises(ScriptError, match="choose one with --job NAME among: other, pipe"):
        pick(found)
    with pytest.raises(ScriptError, match="no job 'train'"):
        pick(found, "train")


def test_two_of_one_name_in_a_script_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="two pipelines named 'pipe'"):
        found_in(tmp_path, SCRIPT + "again = es.Pipeline('pipe', [prepare])\n")
    with pytest.raises(ScriptError, match="a job and a pipeline that are both named 'other'"):
        found_in(tmp_path, SCRIPT + "again = es.Pipeline('other', [prepare])\n")


def test_a_pipeline_that_is_run_while_its_script_is_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is run by its script whenever the script is read"):
        found_in(tmp_path, SCRIPT + "pipe.run()\n")
