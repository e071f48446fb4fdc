"""Which operators a piece of the job calls, and where in the user's code each comes from.

The backward pass has no lines of its own: an operator there is told with the place of the forward operator that it is
the derivative of. What an operator that is made of others consists of is looked into, since its parts are judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .numerics.coverage import Class, base_name, classify
from .places import Place, Places, stack

if TYPE_CHECKING:
    from collections import Counter

    from torch import nn

_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # noqa: SLF001

SINGLES = frozenset({torch.float32, torch.bfloat16, torch.float16})


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called while it is entered.

    Args:
        model: whose modules are named.

    Attributes:
        part: what is being run, to be set by whoever runs it; `forward` becomes `backward` by itself.
        calls: how often each operator was called, by (operator, class, part, place).
        last: place of the operator called last, and whether that was in the backward pass.
    """

    def __init__(self, calls: Counter[tuple[str, Class, str, Place]], model: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part = "forward"
        self.calls = calls
        self.last: tuple[Place, str] = (Place(), "")
        self._places = Places(model)
        self._origins: dict[int, Place] = {}  # autograd's number of a node -> where it was made
        self._inside: list[tuple[Place, str]] = []

    def knows(self, model: nn.Module) -> None:
        """The model has been built."""
        self._places = Places(model)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator and note it; called by torch for each."""
        kwargs = kwargs or {}
        place, part = self._inside[-1] if self._inside else self._where()
        self.last = (place, part)
        name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")  # noqa: SLF001
        kind = classify(name)
        if kind is Class.COMPOSED:
            self._inside.append((place, part))
            try:
                with self:
                    return func.redispatch(_BELOW, *args, **kwargs)
            finally:
                self._inside.pop()
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        self.calls[name, _with_types(name, kind, tensors), part, place] += 1
        return out

    def _where(self) -> tuple[Place, str]:
        place = self._places.of(stack(2))
        node = torch._C._current_autograd_node()  # noqa: SLF001 - torch has no other way
        if node is None:  # if the newest node was not there before, it is this operator's
            self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)  # noqa: SLF001
            return place, self.part
        origin = self._origins.get(node._sequence_nr())  # noqa: SLF001 - torch has no other way
        return origin or place, "backward" if self.part == "forward" else self.part


def _with_types(name: str, kind: Class, tensors: list[torch.Tensor]) -> Class:
    """The class of a call: some operators are exact for some types only."""
    types = {tensor.dtype for tensor in tensors}
    floats = {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}
    if kind is Class.INTEGERS and floats:
        return Class.UNCOVERED
    if kind in (Class.OURS, Class.IEEE) and any(dtype.is_complex for dtype in floats):
        return Class.UNCOVERED
    if kind is Class.OURS and not floats <= SINGLES and base_name(name) not in ("sum", "mean", "arange", "linspace"):
        return Class.UNCOVERED
    return kind
