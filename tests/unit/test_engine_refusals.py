"""What cannot be trained is refused before it costs anything, and the message says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import toys
from easyscale.errors import ChangedError, SpecError, UserError
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.training import Training
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


def changed(**parts: Any) -> Callable[[], Training]:
    def build_fn() -> Training:
        base = toys.linear()
        model = parts.get("model", base.model)
        optimizer = parts["optimizer"](model) if "optimizer" in parts else torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = parts["scheduler"](optimizer) if "scheduler" in parts else None
        return Training(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            dataset=parts.get("dataset", base.dataset),
            step=parts.get("step", base.step),
        )

    return build_fn


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another type": (lambda: toys.small_convnet(), "build\\(\\) returned Sequential"),
    "SyncBatchNorm": (changed(model=nn.Sequential(nn.SyncBatchNorm(3))), "module '0' is a SyncBatchNorm"),
    "sparse": (changed(model=nn.Embedding(3, 3, sparse=True)), "sparse gradients"),
    "lazy": (changed(model=nn.LazyLinear(3)), "without a shape"),
    "frozen": (changed(model=nn.Linear(3, 3).requires_grad_(False)), "no parameter that requires"),
    "strange": (changed(optimizer=lambda _: torch.optim.SGD([torch.ones(3, 2)])), r"1 tensors .* of shape \[3, 2\]"),
    "LBFGS": (changed(optimizer=lambda m: torch.optim.LBFGS(m.parameters())), "LBFGS"),
    "plateau": (changed(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau), "ReduceLROnPlateau"),
    "scheduler": (
        changed(scheduler=lambda _: toys.cnn().scheduler),
        "scheduler is over another optimizer",
    ),
    "no tensor": (changed(step=lambda model, batch: 3.0), "step\\(\\) returned float"),
    "no loss": (changed(step=lambda model, batch: {"los": 3.0}), r"a dict with the keys \['los'\]"),
    "vector": (changed(step=lambda model, batch: model(batch[0])), r"a loss of shape \[3, 10\]"),
    "detached": (changed(step=lambda model, batch: model(batch[0]).sum().detach()), "no trainable parameter"),
    "sparse by hand": (
        changed(step=lambda model, batch: SparseSum.apply(model[1].weight)),
        "gradient of parameter '1.weight' is sparse",
    ),
}


class SparseSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ones(10, 64).to_sparse()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(name: str) -> None:
    build_fn, message = REFUSED[name]
    job = toys.spec()
    with pytest.raises(SpecError, match=message):
        Engine(build(build_fn, job), job).run_local()


def test_a_dataset_of_another_length_and_a_state_of_another_model_are_refused() -> None:
    with pytest.raises(ChangedError, match="has 49 samples, but had 50"):
        toys.engine(changed(dataset=toys.Images(49)), toys.spec())
    engine = toys.engine(toys.linear, toys.spec())
    before = toys.digest(engine)
    with pytest.raises(ChangedError, match=r"parameter '1.weight' is .* \[4\] in the state and .* \[10, 64\]"):
        engine.load_state(toys.engine(toys.cnn, toys.spec()).state())
    assert toys.digest(engine) == before


def with_tensor(kind: str, tensor: Tensor) -> nn.Module:
    model = nn.Linear(64, 10)
    if kind == "buffers":
        model.register_buffer("odd", tensor)
    else:
        model.register_parameter("odd", nn.Parameter(tensor))
    return model


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize(
    ("kind", "make", "named"),
    [
        ("buffers", lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        ("parameters", lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        ("buffers", lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "torch.qint8"),
        ("buffers", lambda: torch.empty(3, device="meta"), "device meta"),
        ("parameters", lambda: torch.empty(3, device="meta"), "device meta"),
    ],
)
def test_a_tensor_that_cannot_be_stored_is_refused_at_the_start_and_not_at_the_first_commit(
    kind: str, make: Callable[[], Tensor], named: str
) -> None:
    with pytest.raises(UserError, match=f"model/{kind}/odd.*{named}"):
        toys.engine(changed(model=with_tensor(kind, make())), toys.spec())


def test_a_scheduler_whose_numbers_cannot_be_stored_is_refused_at_once() -> None:
    def numpy_rates(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: np.cos(t / 100))

    with pytest.raises(UserError, match=r"optimizer/param_groups/0/lr.*numpy.float64"):
        toys.engine(changed(scheduler=numpy_rates), toys.spec())
