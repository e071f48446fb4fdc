"""A refused operator is told with the line of the user's code and the module, in the backward pass too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import toys
from easyscale.errors import InexactError
from easyscale.pipeline.determinism import determinism_class
from easyscale.pipeline.endings import describe
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.numerics import library, strict
from easyscale.pipeline.training import Training
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with strict.strictly():
        yield


class Words(nn.Module):
    """Sums embeddings, and does something on the way."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(toys.VOCABULARY, 4)
        self.inner = Inner(inner)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(self.table(tokens)).sum()


class Inner(nn.Module):
    """The something."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def training(inner: Callable[[Tensor], Tensor] = lambda x: x, **parts: Any) -> Callable[[], Training]:
    def build_fn() -> Training:
        model = Words(inner)
        optimizer = parts.get("optimizer", lambda p: torch.optim.SGD(p, lr=1.0))(model.parameters())
        return Training(model=model, optimizer=optimizer, dataset=toys.Tokens(), step=lambda m, batch: m(batch))

    return build_fn


def refused(build_fn: Callable[[], Training], step: Callable[[Engine], object]) -> InexactError:
    spec = toys.spec(numerics="exact", ests=1)
    with pytest.raises(InexactError) as raised:
        step(Engine(build(build_fn, spec), spec))
    return raised.value


def test_in_the_forward_pass_the_line_and_the_module_are_told() -> None:
    error = refused(training(lambda x: torch.fft.rfft(x).real), lambda engine: engine.compute(range(1)))
    assert "refuse the operator aten::_fft_r2c" in str(error)
    assert "in the forward pass: " in str(error)
    assert "test_numerics_refusals.py:" in str(error)
    assert "module 'inner'" in str(error)
    assert "easyscale scan" in str(error), "what to do"


def test_in_the_backward_pass_it_is_the_line_of_the_operator_whose_derivative_it_is() -> None:
    library.load().refuse(["aten::embedding_dense_backward"], "CPU")
    line = Words.forward.__code__.co_firstlineno + 1
    error = refused(training(), lambda engine: engine.compute(range(1)))
    assert "aten::embedding_dense_backward" in str(error)
    assert "in the backward pass: " in str(error)
    assert f"test_numerics_refusals.py:{line}, module 'table'" in str(error)


def test_in_the_build_function_and_in_the_optimizer_likewise() -> None:
    error = refused(
        lambda: Training(nn.Linear(2, 2).apply(lambda m: nn.init.orthogonal_(m.weight)), None, [], None),  # type: ignore[arg-type]
        lambda engine: engine,
    )
    assert "aten::linalg_qr" in str(error)
    assert "in build(): " in str(error)


def test_a_refusal_fails_the_job_at_once_as_its_users() -> None:
    error = refused(training(lambda x: torch.fft.rfft(x).real), lambda engine: engine.compute(range(1)))
    told = describe(error, 3, Path("/"))
    assert told.cause == "inexact"
    assert "_fft_r2c" in told.message
    assert error.exit_code == 2


def test_an_operator_that_comes_along_in_a_pass_is_refused_before_the_pass_counts() -> None:
    def late(x: Tensor) -> Tensor:
        if not hasattr(torch.ops.easyscalelate, "twice"):
            torch.library.custom_op(
                "easyscalelate::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
            )
        twice: Tensor = torch.ops.easyscalelate.twice(x.detach())
        return x + twice

    error = refused(training(late), lambda engine: engine.compute(range(1)))
    assert "easyscalelate::twice" in str(error)
    assert "in the forward pass" in str(error)


def test_what_the_users_code_does_to_the_arithmetic_is_told_before_the_step_counts() -> None:
    def flush(x: Tensor) -> Tensor:
        torch.set_flush_denormal(True)
        return x

    library.load().allow()  # so that the whole step can be run, whatever is covered
    try:
        error = refused(training(flush), lambda engine: engine.compute(range(1)))
    finally:
        torch.set_flush_denormal(False)
    assert "subnormal" in str(error)


def test_the_class_of_an_exact_job_is_that_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = determinism_class("cpu", 1, "exact")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert determinism_class("cpu", 2, "exact") == one
    assert one.keys() == {"numerics", "specification", "python", "torch"}
