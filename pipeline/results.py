"""What the user's `step` and `evaluate` returned, made plain: one loss to start from, and numbers by name. Pure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import SpecError, shown

MAX_METRICS, MAX_METRIC_NAME = 100, 100
"""Metrics, and characters of a name: they are part of the record of the newest commit."""


def metrics(result: dict[Any, Any]) -> dict[str, float]:
    """What the user's `evaluate` returned, as it goes into every commit and is shown everywhere.

    Raises:
        SpecError: something in it is no number, or it is too much.
    """
    if len(result) > MAX_METRICS:
        raise SpecError(
            f"evaluate() returned {len(result)} metrics", f"return {MAX_METRICS} at most; write the rest to a file"
        )
    found = {}
    for name, value in result.items():
        try:
            found[str(name).replace("<lambda>", "metric")[:MAX_METRIC_NAME]] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpecError(
                f"evaluate() returned {shown(value)} as {shown(name)}",
                "return one number, or a dict of numbers by name",
            ) from error
    return found


def scalar_loss(result: Any) -> Tensor:
    """The loss in what the user's `step` returned.

    Raises:
        SpecError: there is none that `backward()` could start from.
    """
    loss = result.get("loss") if isinstance(result, dict) else result
    if not isinstance(loss, torch.Tensor):
        kind = f"a dict with the keys {sorted(map(str, result))}" if isinstance(result, dict) else type(result).__name__
        raise SpecError(f"step() returned {kind}", 'return a scalar loss tensor, or a dict with one as "loss"')
    if loss.dim() != 0 or not loss.is_floating_point():
        raise SpecError(
            f"step() returned a loss of shape {list(loss.shape)} and type {loss.dtype}",
            "return one number: the mean over the batch",
        )
    if not loss.requires_grad:
        raise SpecError("step() returned a loss that depends on no trainable parameter", "is it detached?")
    return loss
