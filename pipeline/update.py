"""The optimizer's half of a step: unscale, clip, optimizer, EMA, LR scheduler. Every worker does it on its replica.

It is a function of the state and the averaged gradient; where the gradient comes from is left to the engine.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .contexts import copy_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from .flat import GradientLayout
    from .spec import JobSpec
    from .training import Training


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an update did.

    Args:
        lr: each parameter group's learning rate, as used.
        grad_norm: total norm of the averaged gradient before clipping; None without clipping, or without an update.
        skipped: there was no update: it was left out, or the grad scaler found the gradients not finite.
    """

    lr: list[float]
    grad_norm: float | None
    skipped: bool


class Update:
    """Everything that turns a gradient into the next parameters, with its state."""

    def __init__(self, training: Training, spec: JobSpec, layout: GradientLayout, device: torch.device) -> None:
        self._optimizer = training.optimizer
        self._scheduler: Any = training.scheduler
        self._spec = spec
        self._layout = layout
        self._scaler: torch.amp.GradScaler | None = None
        if spec.amp == "fp16":
            self._scaler = torch.amp.GradScaler(device.type)
            self._scaler.scale(torch.zeros((), device=device))  # makes its tensors, so that loading can fill them
        self._ema: list[Tensor] = []
        if spec.ema is not None:
            self._ema = [_wide(p).clone() for p in layout.parameters]

    @property
    def is_scaled(self) -> bool:
        """Whether gradients are scaled, and whether they are finite is for the scaler to see."""
        return self._scaler is not None

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call `backward()` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def run(self, *, epoch_ends: bool) -> Outcome:
        """One update from the averaged gradients in `p.grad`."""
        lr = [float(group["lr"]) for group in self._optimizer.param_groups]
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm: Tensor | None = None
        if self._spec.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self._layout.parameters, self._spec.clip_norm)
        skipped = self._step_optimizer()
        if self._spec.ema is not None:
            with torch.no_grad():
                torch._foreach_lerp_(self._ema, [_wide(p) for p in self._layout.parameters], 1 - self._spec.ema)
        self._step_scheduler(epoch_ends=epoch_ends, skipped=skipped)
        return Outcome(lr, None if norm is None else norm.item(), skipped)

    def leave_out(self, *, epoch_ends: bool) -> Outcome:
        """No update: only the schedule goes on, since the learning rate follows the step number."""
        lr = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._step_scheduler(epoch_ends=epoch_ends, skipped=True)
        return Outcome(lr, None, skipped=True)

    def _step_scheduler(self, *, epoch_ends: bool, skipped: bool) -> None:
        if self._scheduler is None or not (epoch_ends or self._spec.schedule == "step"):
            return
        if not skipped:
            self._scheduler.step()
            return
        with warnings.catch_warnings():  # its advice to call optimizer.step() first: that was left out on purpose
            warnings.simplefilter("ignore", UserWarning)
            self._scheduler.step()

    def _step_optimizer(self) -> bool:
        """Step; True when the scaler skipped it."""
        if self._scaler is None:
            self._optimizer.step()
            return False
        scale = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return self._scaler.get_scale() < scale  # it backs off exactly when it has skipped

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While it lasts, the parameters have their averages' values (if the job has an EMA)."""
        trained = [p.data for p in self._layout.parameters]
        try:
            for parameter, average in zip(self._layout.parameters, self._ema, strict=False):
                parameter.data = average.to(parameter.dtype, copy=True)
            yield
        finally:
            for parameter, data in zip(self._layout.parameters, trained, strict=True):
                parameter.data = data

    def state(self) -> dict[str, Any]:
        """The tensors are those in use, not copies."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "ema": dict(zip(self._layout.names, self._ema, strict=True)) if self._ema else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` gave; nothing of the argument is kept."""
        load_optimizer(self._optimizer, state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy_tree(state["scheduler"]))
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        for name, average in zip(self._layout.names, self._ema, strict=False):
            average.copy_(state["ema"][name])


def _wide(parameter: Tensor) -> Tensor:
    """At least single precision: an average in half precision would soon stop moving."""
    value = parameter.detach()
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict`, but exact.

    PyTorch's casts state to the parameter's dtype and may share memory with what it was given; it does decide rightly
    where a tensor belongs (Adam's `step` stays on the host).
    """
    state = copy_tree(state)
    optimizer.load_state_dict({**state})
    numbered = _numbered_parameters(optimizer, state)
    for number, entries in state["state"].items():
        held = optimizer.state[numbered[number]]
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                held[key] = value.to(held[key].device)


def _numbered_parameters(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[int, Tensor]:
    def parameters(groups: Iterable[dict[str, Any]]) -> Iterator[Any]:
        return (p for group in groups for p in group["params"])

    return dict(zip(parameters(state["param_groups"]), parameters(optimizer.param_groups), strict=True))
