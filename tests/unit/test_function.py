"""A plain function as a job of one step, and what stages start from."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
import torch
import toys
from easyscale.errors import CorruptError, DeviceError, ProcessDiedError, SpecError
from easyscale.pipeline import determinism, inputs, replica
from easyscale.pipeline.engine import build
from easyscale.pipeline.function import FunctionEngine, Returned, written
from easyscale.pipeline.inputs import Committed
from easyscale.pipeline.runner import Runner
from easyscale.pipeline.slowdown import slowed
from easyscale.pipeline.spec import Input, JobSpec
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key, put_blob
from easyscale.storage.collected import write_note
from easyscale.storage.manifests import read_manifest
from easyscale.storage.memory import MemoryStore
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS: list[dict[str, Any]] = []
CODE = "c" * 64


@pytest.fixture(autouse=True)
def one_thread() -> None:
    determinism.configure(1)
    CALLS.clear()


def spec(name: str = "p.f", **changes: Any) -> JobSpec:
    its: dict[str, Any] = {
        "name": name, "pipeline": "p", "kind": "function", "script": "x.py::f", "code": CODE, "data": "",
        "samples": 1, "ests": 1, "batch_size": 1, "steps": 1, "seed": 3,
    }  # fmt: skip
    return JobSpec(**(its | changes))


def engine(function: Callable[..., Any], **given: Any) -> FunctionEngine:
    return FunctionEngine(function, spec(), "cpu", lambda: dict(given))


def draws(**given: Any) -> dict[str, Any]:
    CALLS.append(given)
    return {"drawn": torch.rand(3), "given": given, "n": 7, "share": 0.5, "flag": True, "name": "x", "pair": (1, None)}


def test_its_result_is_the_state_of_step_1_whoever_calls_it_whatever_was_drawn_before() -> None:
    states = []
    for _ in range(2):
        torch.rand(5)
        it = engine(draws, x=1)
        assert it.state() == {"step": 0, "result": None}
        report = it.run_local()
        assert (report.step, report.loss, report.lr) == (0, None, ())
        assert it.step == 1
        states.append(it.exact_sums())
        other = engine(draws)
        other.load_state(it.state())
        assert other.exact_sums() == it.exact_sums()
        assert other.state()["result"]["drawn"] is not it.state()["result"]["drawn"]
    assert states[0] == states[1]


def test_neither_making_it_nor_its_probe_call_the_function() -> None:
    it = engine(draws)
    assert it.probe() == engine(lambda: None).probe()
    assert it.footprint() is None
    assert CALLS == []
    it.compute(range(1))
    assert len(CALLS) == 1
    assert it.step == 0, "it counts when it is applied"


def test_the_numbers_at_the_top_of_a_result_are_its_metrics() -> None:
    it = engine(draws)
    it.run_local()
    assert it.evaluate() == {"n": 7.0, "share": 0.5}
    for result, found in [(0.25, {"result": 0.25}), ([1], {}), (2**99, {}), (None, {}), ({3: 4}, {"3": 4.0})]:
        it = engine(lambda result=result: result)
        it._function.__name__ = "result"
        it.run_local()
        assert it.evaluate() == found


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"a": {"model": nn.Linear(1, 1)}}, "'result/a/model': a value of type torch.nn.modules.linear.Linear"),
        (b"bytes", "'result': a value of type bytes"),
        ({(1, 2): 3}, "a key of type tuple"),
        ([torch.ones(1).to_sparse()], "'result/0': a tensor with"),
        ({1, 2}, "a value of type set"),
    ],
    ids=["module", "bytes", "key", "sparse", "set"],
)
def test_a_result_that_cannot_be_stored_is_refused_with_the_place_in_it(result: Any, words: str) -> None:
    with pytest.raises(SpecError) as found:
        engine(lambda: result).compute(range(1))
    assert "stage 'p.f': of what it returned" in str(found.value)
    assert words in str(found.value)


def test_what_it_returned_is_out_of_the_reach_of_whoever_still_holds_it() -> None:
    mine = torch.zeros(2)
    it = engine(lambda: OrderedDict(x=mine, y=nn.Parameter(mine)))
    it.run_local()
    mine.fill_(9)
    result = it.state()["result"]
    assert type(result) is dict
    assert result["x"].tolist() == [0, 0]
    assert not result["y"].requires_grad


def test_a_slow_device_is_slow_for_functions_too() -> None:
    it = slowed(engine(draws), 2.0)
    it.run_local()
    assert it.step == 1


class Store:
    """Commits of a function and of a training."""

    def __init__(self) -> None:
        self.store = MemoryStore("test")

    def commit(self, it: Any, of: JobSpec, code: str = CODE) -> Input:
        snapshot = commits.Snapshot.take(it.step, it.state())
        found = commits.write_commit(
            self.store, snapshot, job=of.name, parent=None, spec=put_blob(self.store, of.encode()), code=code,
            ests=1, determinism={}, generation=1, metrics=it.evaluate(), history=None,
        )  # fmt: skip
        return Input(job=of.name, step=found.step, state_digest=found.state_digest)

    def function(self, function: Callable[..., Any] = draws) -> Input:
        it = engine(function)
        it.run_local()
        return self.commit(it, spec())

    def training(self, **changes: Any) -> tuple[Any, Input]:
        of = toys.spec(name="p.train", **changes)
        it = replica.make(toys.cnn, of, self.store, "cpu")
        it.run_local()
        return it, self.commit(it, of)


@pytest.fixture
def place() -> Store:
    return Store()


def test_a_stage_gets_the_very_value_and_a_committed_state_each_time_anew(place: Store) -> None:
    trained, train = place.training(ema=0.5)
    stage = spec("p.g", inputs={"f": place.function(), "train": train})
    first, second = (inputs.load(place.store, stage) for _ in range(2))
    assert first["f"]["pair"] == (1, None)
    assert first["f"]["flag"] is True
    first["f"]["drawn"].fill_(7)
    assert not torch.equal(first["f"]["drawn"], second["f"]["drawn"])
    got = second["train"]
    assert isinstance(got, Committed)
    assert (got.job, got.step, got.state_digest) == ("p.train", 1, train.state_digest)
    state = trained.state()
    assert all(torch.equal(value, state["model"]["parameters"][name]) for name, value in got.parameters.items())
    model = toys.cnn().model
    model.load_state_dict(got.state_dict())
    assert got.load_into(toys.cnn().model, ema=True) is not None
    assert set(got.optimizer) == {"state", "param_groups"}
    with pytest.raises(SpecError, match=r"of shape .* in this model, missing in commit 1 of 'p.train'"):
        got.load_into(nn.Linear(2, 2))


def test_averages_that_were_not_kept_are_refused(place: Store) -> None:
    _, train = place.training()
    got = inputs.load(place.store, spec(inputs={"train": train}))["train"]
    assert got.ema is None
    with pytest.raises(SpecError, match="keeps no averages"):
        got.state_dict(ema=True)


def test_a_job_is_built_with_its_inputs_anew_and_seeded_after_they_were_read(place: Store) -> None:
    given = place.function()

    def built(f: dict[str, Any]) -> Any:
        CALLS.append({"first": torch.rand(1)})
        f["drawn"].fill_(0)
        return toys.cnn()

    of = toys.spec(name="p.t", pipeline="p", inputs={"f": given})
    CALLS.clear()
    for _ in range(2):
        build(built, of, lambda: inputs.load(place.store, of))
    assert torch.equal(CALLS[0]["first"], CALLS[1]["first"])


def test_inputs_that_are_missing_other_collected_or_damaged_are_told_apart(place: Store) -> None:
    given = place.function()
    with pytest.raises(DeviceError, match=r"job 'p.g' starts from p.f@2 .* has no commit of step 2"):
        inputs.load(place.store, spec("p.g", inputs={"f": Input(job="p.f", step=2, state_digest="e" * 64)}))
    with pytest.raises(DeviceError, match="came to another state there"):
        inputs.load(place.store, spec("p.g", inputs={"f": Input(job="p.f", step=1, state_digest="e" * 64)}))
    marker = commits.read_marker(place.store, "p.f", 1)
    assert marker is not None
    pack = blob_key(read_manifest(place.store, marker.manifest).packs[0].digest)
    whole = place.store.get(pack)
    place.store.put(pack, b"x" + whole[1:])
    with pytest.raises(CorruptError):
        inputs.load(place.store, spec("p.g", inputs={"f": given}))
    place.store.delete(pack)
    write_note(place.store, "p.f", [marker.manifest])
    with pytest.raises(DeviceError, match=r"was collected .*\(easyscale rewind p.f --to 0"):
        inputs.load(place.store, spec("p.g", inputs={"f": given}))
    place.store.put(pack, whole)
    assert inputs.load(place.store, spec("p.g", inputs={"f": given}))["f"]["n"] == 7


def test_a_result_that_was_committed_and_not_published_is_not_computed_again(place: Store) -> None:
    assert written(place.store, spec()) is None
    place.function(lambda: {"called": 1})
    found = written(place.store, spec())
    assert found == Returned(0, {"called": 1})
    it = replica.make(draws, spec(), place.store, "cpu")
    it.run_local()
    assert it.state()["result"] == {"called": 1}
    assert CALLS == []
    anew = replica.make(draws, spec(), place.store, "cpu", anew=True)
    anew.run_local()
    assert len(CALLS) == 1


@pytest.mark.parametrize("changes", [{"code": "d" * 64}, {"seed": 4}, {"inputs": {"x": None}}])
def test_a_result_of_another_call_is_none_of_this_one(place: Store, changes: dict[str, Any]) -> None:
    place.function()
    if "inputs" in changes:
        changes = {"inputs": {"x": Input(job="p.x", step=1, state_digest="e" * 64)}}
    assert written(place.store, spec(**changes)) is None
    assert written(place.store, spec(priority=4)) is not None, "what never reaches the bits makes no difference"


def test_a_damaged_result_is_computed_again(place: Store) -> None:
    place.function()
    marker = commits.read_marker(place.store, "p.f", 1)
    assert marker is not None
    place.store.delete(blob_key(read_manifest(place.store, marker.manifest).packs[0].digest))
    assert written(place.store, spec()) is None


def test_another_result_of_the_same_call_is_no_divergence(place: Store) -> None:
    it = object.__new__(Runner)
    error = commits.CommitConflictError("p.f", 1, "a" * 64, "b" * 64, ["result/x"])
    it._spec = spec()
    told = it._failure(error)
    assert isinstance(told, ProcessDiedError)
    assert "the next takes that one" in str(told)
    it._spec = toys.spec()
    assert it._failure(error) is error
    it._spec = spec()
    assert it._failure(told) is told
