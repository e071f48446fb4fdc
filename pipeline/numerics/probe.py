"""One hash over what a small, fixed set of operators gives: devices that differ in it must not work together.

The inputs are made of integers, with values in them that bad arithmetic gets wrong: subnormals, zeros of both signs,
sums over more than one chunk and block. To be called in an exact process.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - as everywhere

from ...storage.digest import tensor_digest
from .refusals import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LONG = 1100
"""Longer than a chunk of a contraction and a block of a reduction."""


def probe() -> str:
    """The hash of this process's exact kernels."""
    parts = [f"{name} {_outcome(run)}" for name, run in _OPERATORS.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _outcome(run: Callable[[], Tensor]) -> str:
    try:
        return tensor_digest(run())
    except RuntimeError as error:
        reason = refusal(error)
        if reason is None:
            raise
        return reason


def _values(*shape: int) -> Tensor:
    """Numbers between -1 and 1 of many magnitudes, the same everywhere."""
    count = torch.Size(shape).numel()
    words = (torch.arange(count, dtype=torch.int64) * 2654435761 + 12345) % 65521
    flat = (words - 32760).float() / 32768
    flat[::7] = flat[::7] / 1024
    flat[::31] = 0.0
    flat[5::97] = 2.0**-140
    return flat.view(shape)


_OPERATORS: dict[str, Callable[[], Tensor]] = {
    "product": lambda: _values(5, LONG) @ _values(LONG, 6),
    "product in bf16": lambda: _values(5, LONG).bfloat16() @ _values(LONG, 6).bfloat16(),
    "convolution": lambda: F.conv2d(_values(2, 3, 9, 9), _values(4, 3, 3, 3), _values(4), padding=1),
    "sum": lambda: _values(3, 3 * LONG).sum(1),
    "add with a factor": lambda: torch.add(_values(LONG), _values(LONG).flip(0), alpha=0.3),
    "exp": lambda: torch.exp(_values(LONG) * 100),
    "tanh": lambda: torch.tanh(_values(LONG)),
    "softmax": lambda: F.log_softmax(_values(3, LONG) * 9, 1),
    "layer norm": lambda: F.layer_norm(_values(3, LONG), (LONG,)),
    "normal numbers": lambda: torch.randn(LONG, generator=torch.Generator().manual_seed(1)),
    "order": lambda: torch.randperm(LONG, generator=torch.Generator().manual_seed(1)),
}
