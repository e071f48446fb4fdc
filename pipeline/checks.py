"""What cannot be trained deterministically or elastically is refused before the first step, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..errors import ChangedError, SpecError
from ..storage import trees
from .data import check_dataset

if TYPE_CHECKING:
    from .spec import JobSpec
    from .training import Training


def check_training(training: Training, spec: JobSpec) -> None:
    """Refuse a training that cannot be run.

    Raises:
        SpecError: what is wrong, and what to do.
        ChangedError: the dataset has another length than the job was submitted with.
        UserError: a parameter or buffer of a kind that cannot be stored; it names it.
    """
    _check_model(training.model)
    _check_optimizer(training)
    length = check_dataset(training.dataset)
    if length != spec.samples:
        raise ChangedError(
            f"job {spec.name!r}: the dataset has {length} samples, but had {spec.samples} when the job was submitted",
            "use the same data, or submit a new job under another name",
        )


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise SpecError(
                f"module {name!r} is a SyncBatchNorm: its statistics tie all ESTs together within a step",
                "use torch.nn.BatchNorm*, GroupNorm or LayerNorm",
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise SpecError(f"module {name!r} makes sparse gradients", "use sparse=False")
    if any(nn.parameter.is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        raise SpecError("the model has parameters without a shape yet", "run one forward pass in build()")
    # Here, and not only at the first commit: sparse, quantised, meta and other tensors without plain bytes.
    trees.flatten({"model": {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}})
    if not any(p.requires_grad for p in model.parameters()):
        raise SpecError("the model has no parameter that requires a gradient", "unfreeze something in build()")


def _check_optimizer(training: Training) -> None:
    optimizer, scheduler = training.optimizer, training.scheduler
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SpecError(
            "LBFGS evaluates the loss several times per step", "use an optimizer whose step() needs nothing"
        )
    ours = {id(p) for p in training.model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        strange = [p for p in group["params"] if id(p) not in ours]
        if strange:
            raise SpecError(
                f"the optimizer's group {number} has {len(strange)} tensors that are no parameters of the model, "
                f"the first of shape {list(strange[0].shape)}",
                "give it parameters of Training.model, and put what else is trained into that model",
            )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise SpecError("ReduceLROnPlateau steps by a metric, not by a step number", "use another LR scheduler")
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise SpecError("the LR scheduler is over another optimizer", "make it over Training.optimizer")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise SpecError(f"the LR scheduler ({type(scheduler).__name__}) has no step()", "use a torch LR scheduler")
