"""The flat layout of a model's gradients: what is summed over the ESTs and what travels between workers.

One contiguous buffer per reduction dtype holds the gradient of every trainable parameter, each once (however often it
is tied), in the model's order. The layout is a function of the model alone, so it is equal on all workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..errors import SpecError
from ..storage.sums import pack_sums
from . import segments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.nn import Parameter

ALIGNMENT = 64
"""Bytes. Kernels that choose a path by the alignment of their operands choose the same one everywhere."""

_NOTHING = torch.zeros(0)


@dataclass(frozen=True, slots=True)
class FlatGradient:
    """One gradient in flat memory.

    Args:
        flat: one 1-d tensor per reduction dtype; the few elements between parameters are zero.
        views: for each parameter, its part of `flat` in the parameter's shape and memory format.
    """

    flat: list[Tensor]
    views: list[Tensor]


class GradientLayout:
    """Where each trainable parameter's gradient lies in the flat buffers.

    Args:
        parameters: name and parameter, as `model.named_parameters()` gives them.
        reduce: `fp32`: gradients in half precision are widened before they are summed; `grad`: summed as they are.
            Gradients in float64 (or complex) keep their dtype either way.
    """

    def __init__(self, parameters: Iterable[tuple[str, Parameter]], reduce: str = "fp32") -> None:
        trainable: dict[int, tuple[str, Parameter]] = {}
        for name, parameter in parameters:
            if parameter.requires_grad:
                trainable.setdefault(id(parameter), (name, parameter))
        self.names = [name for name, _ in trainable.values()]
        self.parameters = [p for _, p in trainable.values()]
        self._ends: dict[torch.dtype, int] = {}
        self._places = [self._place(p, reduce) for p in self.parameters]
        self._all_used = bytes([1]) * len(self.parameters)

    def _place(self, parameter: Parameter, reduce: str) -> tuple[torch.dtype, int, tuple[int, ...]]:
        """The parameter's dtype of reduction, offset (elements) and strides in the flat buffer of that dtype."""
        half = parameter.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half and reduce == "fp32" else parameter.dtype
        offset = self._ends.get(dtype, 0)
        unit = max(1, ALIGNMENT // dtype.itemsize)
        self._ends[dtype] = offset + -(-parameter.numel() // unit) * unit
        return dtype, offset, torch.empty_like(parameter, device="meta").stride()

    def new(self, device: torch.device) -> FlatGradient:
        """Fresh memory for one gradient, all zero."""
        if device.type == "cpu":  # where peers on this machine can read it
            flat = [segments.zeros(size, dtype) for dtype, size in self._ends.items()]
        else:
            flat = [torch.zeros(size, dtype=dtype, device=device) for dtype, size in self._ends.items()]
        return FlatGradient(flat, self.views(flat))

    def views(self, flat: list[Tensor]) -> list[Tensor]:
        """Each parameter's part of flat memory, in the parameter's shape and memory format."""
        by_dtype = dict(zip(self._ends, flat, strict=True))
        return [
            by_dtype[dtype].as_strided(parameter.shape, strides, offset)
            for parameter, (dtype, offset, strides) in zip(self.parameters, self._places, strict=True)
        ]

    def sums(self) -> bytes:
        """Sums of every `p.grad`'s bits, 8 bytes each: see `storage.sums.pack_sums`."""
        return pack_sums(_NOTHING if p.grad is None else p.grad for p in self.parameters)

    def clear(self) -> None:
        """Set every `p.grad` to None, so that the next backward pass stores instead of adding."""
        for parameter in self.parameters:
            parameter.grad = None

    def collect(self, out: FlatGradient) -> bytes:
        """Move every `p.grad` to `out`, zeros where there is none, and clear them.

        The copy keeps negative zeros, which adding to zeroed memory would lose.

        Returns:
            For each parameter 1 if it had a gradient, else 0.

        Raises:
            SpecError: a gradient is sparse.
        """
        targets, gradients, others, used = self._pair(out)
        if others:
            torch._foreach_zero_(others)
        if gradients:
            torch._foreach_copy_(targets, gradients)
        self.clear()
        return used

    def add(self, out: FlatGradient) -> bytes:
        """As `collect` to other memory and then `out + that`, bit for bit, in `out`."""
        targets, gradients, others, used = self._pair(out)
        if others:
            torch._foreach_add_(others, 0.0)  # -0.0 + 0.0 is 0.0
        if gradients:
            torch._foreach_add_(targets, gradients)
        self.clear()
        return used

    def _pair(self, out: FlatGradient) -> tuple[list[Tensor], list[Tensor], list[Tensor], bytes]:
        """Views with a gradient, these gradients, the views without one, and which have one."""
        found = [parameter.grad for parameter in self.parameters]
        gradients = [gradient for gradient in found if gradient is not None]
        for gradient in gradients:
            if gradient.layout is not torch.strided:
                self._refuse_sparse(found)
        if len(gradients) == len(found):  # nearly always
            return out.views, gradients, [], self._all_used
        used = bytes(gradient is not None for gradient in found)
        targets = [view for view, there in zip(out.views, used, strict=True) if there]
        others = [view for view, there in zip(out.views, used, strict=True) if not there]
        return targets, gradients, others, used

    def _refuse_sparse(self, found: list[Tensor | None]) -> None:
        for name, gradient in zip(self.names, found, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                raise SpecError(
                    f"the gradient of parameter {name!r} is sparse ({gradient.layout})",
                    "use dense gradients, e.g. torch.nn.Embedding(..., sparse=False)",
                )

    def scatter(self, flat: FlatGradient, used: bytes) -> None:
        """Set `p.grad` from `flat`: views of it, or copies where the parameter's dtype is another.

        A parameter that no EST used gets None, as in DDP: its optimizer state does not move.
        """
        for parameter, view, was_used in zip(self.parameters, flat.views, used, strict=True):
            if was_used:
                parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
            else:
                parameter.grad = None


class GradientPool:
    """Flat gradients that are used again: fresh memory would cost a page fault per 4 KiB at every step."""

    def __init__(self, layout: GradientLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._all: list[FlatGradient] = []
        self._free: list[FlatGradient] = []

    def take(self) -> FlatGradient:
        """One that nobody uses. Its content is arbitrary, but for the zeros between parameters."""
        if not self._free:
            self._all.append(self._layout.new(self._device))
            return self._all[-1]
        return self._free.pop()

    def find(self, flat: list[Tensor]) -> FlatGradient | None:
        """The one that has this memory, if it came from here and may be written to."""
        found = next((gradient for gradient in self._all if gradient.flat is flat), None)
        return None if found is None or _is_retired(found) else found

    def give_back(self, flat: list[Tensor]) -> None:
        """Nobody uses `flat`, which came from here, any more."""
        gradient = self.find(flat)
        assert gradient is not None
        self._free.append(gradient)

    def reclaim(self) -> None:
        """Nobody uses any of them any more, but for those that were retired."""
        self._all = [gradient for gradient in self._all if not _is_retired(gradient)]
        self._free = list(self._all)


def _is_retired(gradient: FlatGradient) -> bool:
    return any(map(segments.is_retired, gradient.flat))
