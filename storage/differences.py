"""Where two states differ: which tensors, in how many elements, and by how much.

Two states that mean the same have no difference, as `digest.state_digest` sees it: the order of dict keys and the bits
of a NaN do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from ..errors import shown
from . import trees
from .digest import INTEGERS, tensor_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .trees import Skeleton


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor or value that is not the same on both sides.

    Args:
        name: its path in the state.
        what: in words: `3 of 40 elements differ, by up to 2 ulps`, or the two values.
        elements, of: how many elements differ, and how many there are; 0 for what is no tensor on both sides.
        ulps: the largest difference in units in the last place, of the elements that are finite on both sides; None
            for integers, and where it cannot be told.
    """

    name: str
    what: str
    elements: int = 0
    of: int = 0
    ulps: int | None = None


def differences(
    here: tuple[Skeleton, Mapping[str, torch.Tensor]], there: tuple[Skeleton, Mapping[str, torch.Tensor]]
) -> list[Difference]:
    """What differs between two states that were taken apart by `trees.flatten`, in the order of the first.

    Tensors are on any device; equal ones are seen by their digests.
    """
    ours, theirs = _leaves(*here), _leaves(*there)
    found = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in ours or name not in theirs:
            found.append(Difference(name=name, what=f"is only {'there' if name not in ours else 'here'}"))
        elif (difference := _between(name, ours[name], theirs[name])) is not None:
            found.append(difference)
    return found


def _leaves(skeleton: Skeleton, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {path: tensors.get(path, node) for path, node in trees.leaves(skeleton)}


def _between(name: str, ours: Any, theirs: Any) -> Difference | None:
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None if _same(ours, theirs) else Difference(name=name, what=f"{_told(ours)} and {_told(theirs)}")
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return Difference(name=name, what=f"{_told(ours)} and {_told(theirs)}")
    if tensor_digest(ours) == tensor_digest(theirs):
        return None
    return _elements(name, ours.detach().cpu().contiguous(), theirs.detach().cpu().contiguous())


def _same(ours: Any, theirs: Any) -> bool:
    return type(ours) is type(theirs) and bool(ours == theirs)


def _elements(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Difference:
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    bits = INTEGERS[ours.element_size()]
    a, b = (tensor.reshape(-1).view(bits) for tensor in (ours, theirs))
    differing = a != b
    largest: int | None = None
    if ours.dtype.is_floating_point and ours.element_size() > 1:
        x, y = ours.reshape(-1), theirs.reshape(-1)
        differing &= ~(torch.isnan(x) & torch.isnan(y))
        finite = differing & torch.isfinite(x) & torch.isfinite(y)
        largest = _ulps(a[finite], b[finite]) if finite.any() else None
    count, of = int(differing.sum()), ours.numel()
    by = "" if largest is None else f", by up to {largest:,} ulp{'s' if largest != 1 else ''}"
    verb = "differs" if count == 1 else "differ"
    return Difference(name=name, what=f"{count:,} of {of:,} elements {verb}{by}", elements=count, of=of, ulps=largest)


def _ulps(a: torch.Tensor, b: torch.Tensor) -> int:
    """The largest number of floats that lie between two, from their bits; both zeros are one number."""

    def ordered(bits: torch.Tensor) -> torch.Tensor:
        return torch.where(bits < 0, torch.iinfo(bits.dtype).min - bits, bits).long()

    x, y = ordered(a), ordered(b)
    apart = torch.maximum(x, y) - torch.minimum(x, y)  # of float64 it may wrap round: read as unsigned it is right
    return int(apart.numpy().view(np.uint64).max())


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return shown(value)
