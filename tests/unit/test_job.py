"""A job is checked when it is made, and says which setting is wrong."""

from __future__ import annotations

import subprocess
import sys
import traceback
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, Required, get_args, get_origin

import pytest
from easyscale.errors import AddressError, ScriptError, SpecError, UserError
from easyscale.pipeline import job as job_module
from easyscale.pipeline.job import Job, Settings, parse_settings
from easyscale.pipeline.spec import JobSpec, Retries

GIVEN: dict[str, Any] = {"ests": 4, "batch_size": 8, "epochs": 3}


def build() -> Any:
    raise AssertionError("making a job must not build it")


def job(**settings: Any) -> Job:
    return Job("demo", build, **{**GIVEN, **settings})


def test_settings_offer_every_field_of_the_spec_that_a_user_may_set() -> None:
    assert [*Settings.__annotations__] == [*job_module._KINDS][1:]
    found_later = {"script", "code", "data", "samples", "python", "torch"}
    found_later |= {"pipeline", "kind", "inputs"}  # of stages only
    assert {"name", *Settings.__annotations__} | found_later == set(JobSpec.__struct_fields__)


def test_settings_have_the_types_of_the_spec() -> None:
    names = {"Literal": Literal, "Required": Required, "Retries": Retries}
    for name, annotation in Settings.__annotations__.items():
        kind = eval(annotation.__forward_arg__, names)
        kind = get_args(kind)[0] if get_origin(kind) is Required else kind
        assert kind == (Retries | dict[str, int] if name == "retries" else job_module._KINDS[name]), name


def test_a_job_becomes_a_spec_with_the_defaults_of_the_spec() -> None:
    spec = job().spec(script="a.py", code="c", data="d", samples=100)
    assert spec == JobSpec(name="demo", script="a.py", code="c", data="d", samples=100, **GIVEN)


def test_a_dataset_smaller_than_one_global_batch_is_refused() -> None:
    with pytest.raises(SpecError, match=r"31 samples, fewer than one global batch"):
        job().spec(script="a.py", code="c", data="d", samples=31)


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        job().files = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ests": "4"}, r"ests is '4'\n.*int"),
        ({"ests": True}, r"ests is True\n.*int"),
        ({"ests": 0}, r"ests is 0\n.*at least 1"),
        ({"ests": -3}, r"ests is -3\n.*at least 1"),
        ({"amp": "fp8"}, r"amp is 'fp8'\n.*'bf16' or 'fp16' or None"),
        ({"steps": 5}, r"both steps and epochs"),
        ({"epochs": None}, r"neither steps nor epochs"),
        ({"epoch": 5}, r"no setting 'epoch'\n.*did you mean epochs"),
        ({"samples": 5}, r"no setting 'samples'"),
        ({"retries": {"died": "often"}}, r"retries is .*often.*\n.*\"died\": int"),
        ({"retries": 3}, r"retries is 3"),
        ({"files": "configs/*.toml"}, r"files is 'configs/\*\.toml'\n.*list"),
        ({"files": None}, r"files is None\n.*list"),
        ({"files": ["*.txt"] * 200_000}, r"files has 200000 globs\n.*100 are allowed"),
        ({"ests": 10**6}, r"ests is 1000000\n.*between 1 and 65,536"),
        ({"epochs": 10**30}, r"epochs is 10{30}\n.*between 1 and 999,999,999,999"),
        ({"seed": -1}, r"seed is -1\n.*at least 0"),
        ({"seed": 10**5000}, r"seed is a number of 16610 bits\n.*between 0 and"),
        ({"ests": [1] * 10**6}, r"ests is \[1, 1.*\.\.\. \(3000000 characters\)\n.*int"),
        ({"threads": 10**9}, r"threads is 1000000000\n.*between 1 and 1,024"),
        ({"loaders": 10_000}, r"loaders is 10000\n.*between 0 and 256"),
        ({"min_workers": 0}, r"min_workers is 0\n.*at least 1"),
        ({"min_workers": 5}, r"min_workers 5 is more than its 4 ESTs\n.*one worker only"),
        ({"min_workers": 3, "max_workers": 2}, r"max_workers 2 is less than min_workers 3\n.*raise the one"),
        ({"max_workers": 10_000}, r"max_workers is 10000\n.*between 1 and 800"),
        ({"guaranteed_workers": 5}, r"guaranteed_workers 5 is more than the 4 that it may use\n.*raise max_workers"),
        ({"guaranteed_workers": 3, "max_workers": 2}, r"more than the 2"),
        ({"tenant": "a b"}, r"tenant 'a b' cannot be used"),
        ({"tenant": 3}, r"tenant"),
        ({"priority": 10**9}, r"priority is 1000000000\n.*between -1,000,000 and 1,000,000"),
        ({"commit_every": 0}, r"commit_every is 0\n.*at least 1"),
        ({"commit_every": 10**15}, r"commit_every is 1000000000000000\n.*between 1 and"),
        ({"commit_seconds": float("inf")}, r"commit_seconds is inf\n.*between 0\.001 and"),
        ({"commit_seconds": float("nan")}, r"commit_seconds is nan\n.*between 0\.001 and"),
        ({"commit_seconds": -1}, r"commit_seconds is -1\.0\n.*at least 0\.001"),
        ({"commit_seconds": 1e-9}, r"commit_seconds is 1e-09\n.*at least 0\.001"),
        ({"clip_norm": float("nan")}, r"clip_norm is nan\n.*positive and finite"),
        ({"ema": float("nan")}, r"ema is nan\n.*0 <= ema < 1"),
        ({"retries": {"died": -1}}, r"retries has died -1\n.*between 0 and 1,000,000"),
        ({"retries": {"raised": 10**9}}, r"retries has raised 1000000000\n"),
        ({"retries": {"dead": 1}}, r"retries is \{'dead': 1\}\n.*unknown field `dead`"),
        ({"retries": {str(i): i for i in range(200_000)}}, r"retries is .*characters\)\n.*unknown field"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        job(**settings)
    assert "demo" in caught.value.what
    assert len(str(caught.value)) < 1000, "more than a screen, of something that was too large"


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SpecError, match="does not give batch_size"):
        Job("demo", build, ests=1, steps=1)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        ".hidden",
        "ö",
        "a b",
        "x" * 101,
        7,
        "..",
        ".",
        "../../etc",
        "a\nb",
        "a\n",
        "a\0",
        "x" * 300,
        "x" * 10**6,
        "実験/ü #1?",
        "\udc80",
        "-rf",
        "\u0661",
        None,
    ],
    ids=lambda name: repr(name)[:20],
)
def test_a_name_that_cannot_be_a_key_is_refused(name: Any) -> None:
    with pytest.raises(SpecError, match="name") as caught:
        Job(name, build, **GIVEN)
    assert len(str(caught.value)) < 400
    assert "\n" not in caught.value.what


def test_retries_may_be_a_dict_or_retries() -> None:
    assert job(retries={"died": 1}) == job(retries=Retries(died=1))


def test_a_whole_number_is_taken_for_a_float_setting() -> None:
    assert job(clip_norm=1).settings.clip_norm == 1.0


class Holder:
    def method(self) -> Any:
        return None


def unnamed_wrapper(function: Any) -> Any:
    def inner() -> Any:
        return function()

    return inner


@pytest.mark.parametrize(
    "function",
    [lambda: None, partial(build), Holder().method, Holder.method, unnamed_wrapper(build), None, "build"],
)
def test_a_build_that_workers_cannot_find_is_refused(function: Any) -> None:
    with pytest.raises(SpecError, match=r"build .*\n.*top level"):
        Job("demo", function, **GIVEN)


def test_a_wrapped_build_keeps_its_name_and_is_taken() -> None:
    @wraps(build)
    def wrapped() -> Any:
        return build()

    assert Job("demo", wrapped, **GIVEN).build is wrapped


def test_replace_changes_only_what_is_given() -> None:
    first = job(seed=7, files=["*.txt"])
    second = first.replace(name="other", batch_size=16)
    assert (second.name, second.settings.batch_size) == ("other", 16)
    assert (second.settings.seed, second.files, second.build) == (7, ("*.txt",), build)
    assert (first.name, first.settings.batch_size) == ("demo", 8)


def test_steps_take_the_place_of_epochs() -> None:
    assert job().replace(steps=9).settings.epochs is None
    assert job(commit_every=3).replace(commit_seconds=2.0).settings.commit_every is None


def test_replace_refuses_what_a_new_job_would() -> None:
    with pytest.raises(SpecError, match="both"):
        job().replace(steps=9, epochs=9)
    with pytest.raises(SpecError, match="no setting 'code'"):
        job().replace(code="x")


def test_text_from_the_command_line_is_read_by_the_type_of_the_setting() -> None:
    texts = {
        "name": "4", "ests": "4", "clip_norm": "1e-1", "amp": "none", "drop_last": "true", "retries": '{"raised": 2}',
    }  # fmt: skip
    assert parse_settings(texts) == {
        "name": "4", "ests": 4, "clip_norm": 0.1, "amp": None, "drop_last": True, "retries": Retries(raised=2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text"),
    [("ests", "four"), ("ests", "none"), ("ests", "1.5"), ("amp", "int8"), ("retries", "{"), ("script", "x.py")],
)
def test_text_that_is_no_value_of_the_setting_is_refused(key: str, text: str) -> None:
    with pytest.raises(SpecError, match=key):
        parse_settings({key: text})


def test_a_value_from_the_command_line_that_never_ends_is_cut_short() -> None:
    with pytest.raises(SpecError, match=r"^--set 'retries=.*\.\.\. \(100\d+ characters\) is not a value") as caught:
        parse_settings({"retries": '{"a":' * 20_000})
    assert len(str(caught.value)) < 300


def test_a_job_that_is_too_long_for_its_commits_to_be_numbered_is_refused_when_its_data_are_known() -> None:
    known: Any = {"script": "a.py", "code": "c", "data": "d"}
    assert job(epochs=10**11).spec(**known, samples=32).total_steps == 10**11
    with pytest.raises(SpecError, match=r"100000000000 epochs are 1,000,000,000,000 steps\n.*999,999,999,999"):
        job(epochs=10**11).spec(**known, samples=320)


def test_a_script_that_submits_while_it_is_only_read_is_told_so(tmp_path: Any) -> None:
    from easyscale.pipeline.script import load

    script = tmp_path / "eager.py"
    script.write_text(
        "from easyscale.pipeline.job import Job\n"
        "def build(): ...\n"
        "Job('demo', build, ests=1, batch_size=1, steps=1).submit()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", [*sys.argv])
        with pytest.raises(ScriptError, match="__main__"):
            load(script)


def test_making_a_job_does_not_import_torch() -> None:
    code = "import sys, easyscale.pipeline.job, easyscale.pipeline.script; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


@pytest.mark.parametrize(("kind", "cause_is_shown"), [(AddressError, False), (ScriptError, True)])
def test_the_traceback_of_a_users_mistake_shows_the_users_lines_and_not_ours(
    monkeypatch: pytest.MonkeyPatch, kind: type[UserError], cause_is_shown: bool
) -> None:
    def deep_inside(*_: Any, **__: Any) -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            raise kind("that will not do") from error

    monkeypatch.setattr("easyscale.pipeline.submit.submit", deep_inside)
    with pytest.raises(kind, match="that will not do") as caught:
        job().submit()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [Path(frame.filename).name for frame in frames] == ["test_job.py", "job.py"]
    shown = "".join(traceback.format_exception(caught.value))
    assert ("ZeroDivisionError" in shown) == cause_is_shown, "what the user's own code raised"
