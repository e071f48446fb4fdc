"""Which operators a piece of the job calls, and where in the user's code each comes from.

What an operator that is made of others consists of is looked into, since its parts are judged.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .numerics.coverage import DOUBLES, KERNELS, Class, base_name, classify
from .places import Place, Places, stack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from torch import nn

_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # noqa: SLF001

SINGLES = frozenset({torch.float32, torch.bfloat16, torch.float16})


BACKWARD = "backward"


class Call(NamedTuple):
    """One operator as it is called from one place. `part` of the job; `kind`: its class, with these types."""

    operator: str
    kind: Class
    part: str
    place: Place


class OperatorCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called while it is entered.

    Args:
        model: whose modules are named.
        parts: which function of ours runs which part of the job. Autograd's is always `backward`.

    Attributes:
        part: what is being run if none of these functions is.
        calls: how often each operator was called.
        last: place of the operator called last.
    """

    def __init__(self, model: nn.Module | None = None, parts: Mapping[CodeType, str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part = ""
        self.calls: Counter[Call] = Counter()
        self.last = Place()
        self._parts = parts or {}
        self._places = Places(model)
        self._inside: list[tuple[Place, str]] = []

    def knows(self, model: nn.Module) -> None:
        """The model has been built."""
        self._places.knows(model)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator and note it; called by torch for each."""
        kwargs = kwargs or {}
        place, part = self._inside[-1] if self._inside else self._where()
        self.last = place
        name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")  # noqa: SLF001
        kind = classify(name)
        if kind is Class.COMPOSED or not _has_kernel(name):
            self._inside.append((place, part))
            try:
                with self:
                    return func.redispatch(_BELOW, *args, **kwargs)
            finally:
                self._inside.pop()
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        self.calls[Call(name, _with_types(name, kind, tensors), part, place)] += 1
        return out

    def _where(self) -> tuple[Place, str]:
        frames = list(stack(2))
        place = self._places.of(frames)
        part = next((self._parts[frame.f_code] for frame, _ in frames if frame.f_code in self._parts), self.part)
        backward, origin = self._places.origin(place)
        return (origin or place, BACKWARD) if backward else (place, part)


@cache
def _has_kernel(name: str) -> bool:
    """Or it is a composition above autograd, met where there is no autograd any more."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    return not name.startswith("aten::") or any(has(name, key) for key in KERNELS)


def _with_types(name: str, kind: Class, tensors: list[torch.Tensor]) -> Class:
    """The class of a call: some operators are exact for some types only."""
    types = {tensor.dtype for tensor in tensors}
    floats = {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}
    if kind is Class.INTEGERS and floats:
        return Class.UNCOVERED
    if kind in (Class.OURS, Class.IEEE) and any(dtype.is_complex for dtype in floats):
        return Class.UNCOVERED
    if kind is Class.OURS and not floats <= SINGLES and base_name(name) not in DOUBLES:
        return Class.UNCOVERED
    return kind
