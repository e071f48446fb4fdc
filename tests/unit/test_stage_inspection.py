"""A stage is described in a process of its own, with what earlier stages came to; plain functions are not called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from easyscale.errors import ChangedError, DeviceError, ScriptError, SpecError, UserError
from easyscale.pipeline.inspect import Outline, StageOrder, inspect_any, inspect_script
from easyscale.pipeline.spec import Input, JobSpec
from easyscale.storage import commits
from easyscale.storage.blobs import put_blob
from easyscale.storage.objects import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.pipeline.forkserver import ForkServer

SCRIPT = """
import torch
import easyscale as es
def prepare():
    raise AssertionError("it is called by workers only")
def build(prepare):
    model = torch.nn.Linear(2, 1)
    return es.Training(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=torch.utils.data.TensorDataset(prepare["x"]), step=lambda model, batch: model(batch[0]).mean(),
    )
pipe = es.Pipeline("pipe", [es.Stage(prepare, seed=5), es.Job("train", build, ests=2, batch_size=5, steps=3)])
"""


class Place:
    """A script with a pipeline, and a store where its first stage is done."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self.script, self.fork_server = folder / "user" / "train.py", fork_server
        self.script.parent.mkdir()
        self.script.write_text(SCRIPT)
        self.store = open_store(f"file://{folder}/store")

    def outline(self, **settings: str) -> Outline:
        found = inspect_any(self.script, None, settings, fork_server=self.fork_server)
        assert isinstance(found, Outline)
        return found

    def describe(self, stage: str, *, code: str | None = None, settings: Any = None, **inputs: Input) -> JobSpec:
        code = self.outline().code if code is None else code
        order = StageOrder(stage=stage, inputs=inputs, store=self.store.address, code=code)
        found = inspect_any(self.script, None, settings, stage=order, fork_server=self.fork_server)
        assert isinstance(found, tuple)
        spec, bundle = found
        assert spec.code == bundle.digest
        return spec

    def prepared(self, result: Any) -> Input:
        spec = self.describe("prepare")
        written = commits.write_commit(
            self.store, commits.Snapshot.take(1, {"step": 1, "result": result}), job=spec.name, parent=None,
            spec=put_blob(self.store, spec.encode()), code="c" * 64, ests=1, determinism={}, generation=1, metrics={},
            history=None,
        )  # fmt: skip
        return Input(job=spec.name, step=1, state_digest=written.state_digest)


@pytest.fixture
def here(tmp_path: Path, fork_server: ForkServer) -> Place:
    return Place(tmp_path, fork_server)


def test_a_function_is_described_without_being_called(here: Place) -> None:
    spec = here.describe("prepare")
    assert (spec.name, spec.pipeline, spec.kind, spec.script) == (
        "pipe.prepare",
        "pipe",
        "function",
        "train.py::prepare",
    )
    assert (spec.ests, spec.total_steps, spec.seed, spec.data, spec.inputs) == (1, 1, 5, "", {})
    assert spec.torch
    assert here.describe("prepare", settings={"name": "other"}).name == "other.prepare"
    assert here.outline(name="other").record.name == "other"
    with pytest.raises(ScriptError, match="defines a pipeline"):
        inspect_script(here.script, fork_server=here.fork_server)


def test_a_job_is_built_with_what_it_starts_from(here: Place) -> None:
    import torch

    given = here.prepared({"x": torch.arange(24.0).view(12, 2)})
    spec = here.describe("train", prepare=given)
    assert (spec.name, spec.samples, spec.inputs) == ("pipe.train", 12, {"prepare": given})
    with pytest.raises(ScriptError, match=r"cannot build job 'pipe.train': TypeError"):
        here.describe("train")
    missing = Input(job="pipe.prepare", step=1, state_digest="e" * 64)
    with pytest.raises(DeviceError, match=r"starts from pipe.prepare@1 .* came to another state there"):
        here.describe("train", prepare=missing)


def test_data_that_fill_no_batch_are_refused(here: Place) -> None:
    import torch

    with pytest.raises(SpecError, match="has 4 samples, fewer than one global batch"):
        here.describe("train", prepare=here.prepared({"x": torch.ones(4, 2)}))


def test_a_script_that_changes_between_two_stages_is_noticed(here: Place) -> None:
    code = here.outline().code
    (here.script.parent / "helper.py").write_text("x = 1\n")
    with pytest.raises(ChangedError, match="have changed since this command began, before stage 'prepare'"):
        here.describe("prepare", code=code)


def test_a_job_that_needs_what_only_a_pipeline_gives_is_refused_alone(here: Place) -> None:
    here.script.write_text(
        SCRIPT.partition("pipe =")[0] + "job = es.Job('train', build, ests=2, batch_size=5, steps=3)\n"
    )
    with pytest.raises(SpecError, match="the parameter 'prepare', and nothing to give for it\n  only a stage of"):
        inspect_script(here.script, fork_server=here.fork_server)


def test_settings_of_no_stage_are_refused_before_anything_is_submitted(here: Place) -> None:
    with pytest.raises(UserError, match="pipeline 'pipe' has no such stage"):
        here.outline(batch_size="4")
