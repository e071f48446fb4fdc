"""A trace sees every operator of a step and changes no bit, and two of them lead to the operator that differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import CorruptError
from easyscale.pipeline import trace
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.trace import Operator, Recorder, Trace
from easyscale.pipeline.verify import between, parting
from easyscale.storage.memory import MemoryStore
from toys import cnn, digest, engine, spec, transformer

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.pipeline.training import Training

HERE = Path(__file__).resolve().parents[1]


class Watched:
    """A replica whose steps can be traced."""

    def __init__(self, build_fn: Callable[[], Training], **settings: Any) -> None:
        job = spec(**settings)
        training = build(build_fn, job)
        self.model = training.model
        self.recorder: Recorder | None = None
        step = trace.watched(training.step, lambda: self.recorder)
        self.engine = Engine(dataclasses.replace(training, step=step), job)

    def trace(self) -> list[Operator]:
        self.recorder = recorder = Recorder(HERE, self.model)
        with recorder:
            self.engine.run_local()
        self.recorder = None
        return recorder.operators


@pytest.mark.parametrize("build_fn", [cnn, transformer])
def test_tracing_changes_no_bit_and_comes_out_alike_each_time(build_fn: Callable[[], Training]) -> None:
    watched, again, plain = Watched(build_fn), Watched(build_fn), engine(build_fn, spec())
    for _ in range(2):
        operators = watched.trace()
        repeated = again.trace()
        plain.run_local()
        assert digest(watched.engine) == digest(plain)
        assert trace.unstable(operators, repeated) == []
        assert trace.unlike(operators, repeated) is None


def test_a_trace_has_the_batches_forward_backward_and_update_of_every_est_with_their_places() -> None:
    operators = Watched(cnn).trace()
    parts = list(dict.fromkeys(operator.part for operator in operators))
    assert parts == ["EST 0", "EST 1", "EST 2", "EST 3", "update"]
    lines = (HERE / "toys.py").read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "model(images)" in text)
    for part in parts[:-1]:
        mine = [operator for operator in operators if operator.part == part]
        names = [operator.name for operator in mine]
        forward, backward = names.index("aten.convolution.default"), names.index("aten.convolution_backward.default")
        assert names.index(trace.BATCH) < forward < backward
        line = next(
            i for i, text in enumerate((HERE / "toys.py").read_text().splitlines(), 1) if "model(images)" in text
        )
        assert (mine[forward].place, mine[forward].module) == (f"toys.py:{line}", "0")
        assert (mine[backward].place, mine[backward].module) == (f"toys.py:{line}", "0"), "where the forward was called"
    update = [operator.name for operator in operators if operator.part == "update"]
    assert "aten.div.out" in update
    assert any("add" in name for name in update)


def test_what_nobody_has_written_yet_has_no_digest_and_views_are_left_out() -> None:
    recorder = Recorder(HERE, torch.nn.Identity())
    with recorder:
        made = torch.empty(1000)
        made.view(10, 100)
        made.zero_()
        torch._foreach_add_([made], 1.0)
    assert [operator.name for operator in recorder.operators] == [
        "aten.empty.memory_format",
        "aten.zero_.default",
        "aten._foreach_add_.Scalar",
    ]
    assert recorder.operators[0].digest == trace._text_digest("")[: trace.HASHED]
    assert len({operator.digest for operator in recorder.operators}) == 3


def some(*digests: str, name: str = "aten.mm.default") -> list[Operator]:
    return [Operator(name, "EST 0", "float32[2]", found) for found in digests]


def made(step: int, operators: list[Operator], unstable: list[int] | None = None, **more: Any) -> Trace:
    fields = {"base": 0, "states": ["s"] * (step + 1), "after": "t"} | more
    return Trace(
        job="j", step=step, determinism={}, operators=operators, unstable=unstable or [], repeatable=True, **fields
    )


def test_the_first_operator_that_differs_is_found_and_memory_that_nobody_reads_is_passed_over() -> None:
    found = between(made(3, some("a", "x", "c")), made(3, some("a", "b", "y")))
    assert found is not None
    assert (found.step, found.number, found.here, found.there) == (3, 1, some("x")[0], some("b")[0])
    noisy = between(made(3, some("a", "x", "c"), unstable=[1]), made(3, some("a", "b", "y")))
    assert noisy is not None
    assert noisy.number == 2
    assert between(made(3, some("a", "x")), made(3, some("a", "b"), unstable=[1])) is None
    shorter = between(made(3, some("a")), made(3, some("a", "b")))
    assert shorter is not None
    assert (shorter.number, shorter.here, shorter.there) == (1, None, some("b")[0])


def test_the_step_in_which_states_left_those_of_a_trace_is_found() -> None:
    theirs = made(12, [], base=10, states=["a", "b", "c"], after="d")
    assert parting(theirs, ["a", "b", "x", "y"], start=10) == 11
    assert parting(theirs, ["a", "b", "c", "y"], start=10) == 12
    assert parting(theirs, ["b", "x"], start=11) == 11
    assert parting(theirs, ["a", "b", "c", "d", "e"], start=10) is None


def test_a_trace_comes_back_from_the_store_and_the_first_one_stays() -> None:
    store = MemoryStore()
    first = made(7, some("a"))
    assert trace.write_trace(store, first, "c1")
    assert not trace.write_trace(store, made(7, some("b")), "c1")
    assert trace.read_trace(store, "j", 7, "c1") == first
    assert trace.read_trace(store, "j", 7, "c2") is None
    trace.write_trace(store, made(3, []), "c1")
    trace.write_trace(store, made(5, []), "c2")
    assert trace.traced_steps(store, "j", "c1") == [3, 7]
    store.put(trace.trace_key("j", 3, "c1"), b"no trace")
    with pytest.raises(CorruptError, match="traces/000000000003/c1 is damaged"):
        trace.read_trace(store, "j", 3, "c1")
