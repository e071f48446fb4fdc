"""Operator traces: what every PyTorch operator of one step gave, so that two computations of it can be compared.

A recorder sees forward, backward and update of the real engine, and changes nothing in them. Two traces are compared by
bisecting; the first operator whose output differs is the answer, with its place in the user's code. What fetching the
samples computes is not in a trace, only the batches that came of it.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..errors import CorruptError, NotFoundError
from ..storage.digest import has_nonfinite, tensor_digest
from .bisection import first_unlike
from .engine import Engine
from .loader import Loader
from .places import Place, Places, stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn

    from ..storage.objects import ObjectStore

HASHED = 16
"""Hex digits that are kept of an output's digest."""

BATCH = "batch"
"""What stands for an operator where a batch comes in."""

UPDATE = "update"

_MEMORY = ("empty", "new_empty", "resize_")
"""Beginnings of operators that give memory which nobody has written yet: only its shape means something."""

_LOOKING = frozenset({Loader.next.__code__, has_nonfinite.__code__})
"""Functions of ours whose operators are left out: what they compute does not go into the state."""

_COMPUTING, _APPLYING = Engine._compute.__code__, Engine._apply.__code__  # noqa: SLF001


class Operator(msgspec.Struct, frozen=True):
    """One call of an operator.

    Args:
        name: like `aten.addmm.default`, or `BATCH`.
        part: `EST 3`, or `update`: the averaging, the optimizer and what comes with it.
        output: dtypes and shapes of what it gave or wrote to.
        digest: of that, `HASHED` digits.
        place: `train.py:12`, in the user's code; empty where it was not called from there. For the backward pass, where
            the operator was called that this is the derivative of.
        module: path of the innermost module, likewise.
    """

    name: str
    part: str
    output: str
    digest: str
    place: str = ""
    module: str = ""

    def __str__(self) -> str:
        where = ", ".join(filter(None, [self.place, f"module {self.module!r}" if self.module else "", self.part]))
        return f"{self.name} -> {self.output} ({where})"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One step, computed twice on one device.

    Args:
        format: 1.
        job, step: which; `base` is the step of the commit that it was reached from.
        determinism: the class of the device.
        states: digests of `S(base) .. S(step)`; after: of `S(step + 1)`.
        operators: of the first time, in the order of their calls.
        unstable: numbers of those whose output was another the second time.
        repeatable: whether the state after was the same both times. If so, what is unstable is memory that nobody
            reads.
    """

    format: int = 1
    job: str
    step: int
    base: int
    determinism: dict[str, str]
    states: list[str]
    after: str
    operators: list[Operator]
    unstable: list[int]
    repeatable: bool


def trace_key(job: str, step: int, class_id: str) -> str:
    """Where the trace of a step lies that a device of this determinism class made."""
    return f"jobs/{job}/traces/{step:012d}/{class_id}"


def write_trace(store: ObjectStore, trace: Trace, class_id: str) -> bool:
    """Store a trace. One that is there already stays: then False."""
    data = zlib.compress(msgspec.json.encode(trace))
    return store.create(trace_key(trace.job, trace.step, class_id), data)


def read_trace(store: ObjectStore, job: str, step: int, class_id: str) -> Trace | None:
    """The trace of a step, or None if there is none.

    Raises:
        CorruptError: what is there is none.
    """
    key = trace_key(job, step, class_id)
    try:
        return msgspec.json.decode(zlib.decompress(store.get(key)), type=Trace)
    except NotFoundError:
        return None
    except (zlib.error, msgspec.DecodeError) as error:
        raise CorruptError(f"{store.address}: {key} is damaged: {error}") from error


def traced_steps(store: ObjectStore, job: str, class_id: str) -> list[int]:
    """Steps of which a device of this determinism class has left a trace, in order. A listing may lag."""
    prefix = f"jobs/{job}/traces/"
    keys = (key.removeprefix(prefix).split("/") for key in store.list(prefix))
    return sorted(int(step) for step, made_by in keys if made_by == class_id and step.isdigit())


def unlike(here: list[Operator], there: list[Operator], masked: set[int] | frozenset[int] = frozenset()) -> int | None:
    """Number of the first operator that is not the same in both, or None.

    Args:
        masked: numbers of operators of which only the name counts.
    """

    def essence(operators: list[Operator]) -> list[tuple[str, str, str]]:
        return [(op.name, op.output, "" if i in masked else op.digest) for i, op in enumerate(operators)]

    return first_unlike(essence(here), essence(there))


def unstable(once: list[Operator], again: list[Operator]) -> list[int]:
    """Numbers of the operators that were not the same in two runs of one step on one device."""
    pairs = list(zip(once, again, strict=False))
    found = [i for i, (a, b) in enumerate(pairs) if (a.name, a.output, a.digest) != (b.name, b.output, b.digest)]
    return found + list(range(len(pairs), max(len(once), len(again))))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators of a step while it is entered.

    Args:
        folder: of the user's code: places in it are told.
        model: whose modules are named.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self._places = Places(model, folder)
        self._part = ""

    def batch(self, batch: Any) -> None:
        """A batch has come in."""
        self._where()  # keeps the part
        with _disable_current_modes():  # hashing it is no part of the step
            self._record(BATCH, [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)], Place())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator and record it; called by torch for each."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        place = self._where()
        if place is None or func.namespace != "aten":
            return out
        backward, origin = self._places.origin(place)
        if backward and not place.line:
            place = origin or Place()
        results = _results(func, args, kwargs, out)
        if results is not None:
            self._record(str(func), results, place)
        return out

    def _record(self, name: str, results: list[Any], place: Place) -> None:
        output = ", ".join(_shape(result) for result in results[:4]) + (", ..." if len(results) > 4 else "")
        written = not any(name.startswith(f"aten.{memory}") for memory in _MEMORY)
        digests = [_digest(result) for result in results] if written else []
        digest = digests[0] if len(digests) == 1 else _text_digest(" ".join(digests))
        self.operators.append(Operator(name, self._part, output, digest[:HASHED], place.line, place.module))

    def _where(self) -> Place | None:
        """The place in the user's code, or None if it is to be left out; keeps the part.

        On a GPU the backward pass has a thread without frames: then the part stays what it was.
        """
        frames = []
        for frame, line in stack(2):
            if frame.f_code in _LOOKING:
                return None
            if frame.f_code is _COMPUTING:
                self._part = f"EST {frame.f_locals.get('est', 0)}"
                break
            if frame.f_code is _APPLYING:
                self._part = UPDATE
                break
            frames.append((frame, line))
        return self._places.of(frames)


def watched(step: Callable[[Any, Any], Any], recorder: Callable[[], Recorder | None]) -> Callable[[Any, Any], Any]:
    """The user's `step` function, telling the recorder that is at work, if any, of each batch."""

    def step_and_tell(model: Any, batch: Any) -> Any:
        at_work = recorder()
        if at_work is not None:
            at_work.batch(batch)
        return step(model, batch)

    return step_and_tell


def _results(func: Any, args: Any, kwargs: Any, out: Any) -> list[Any] | None:
    """What an operator gave or wrote to; None if it only looked at memory in another way."""
    schema = func._schema  # noqa: SLF001 - torch has no other way
    written: list[Any] = []
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            written += tree_leaves(value)
    if written:
        return [leaf for leaf in written if isinstance(leaf, torch.Tensor)]
    if schema.returns and all(given.alias_info is not None for given in schema.returns):
        return None
    return [leaf for leaf in tree_leaves(out) if leaf is not None]


def _shape(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return type(result).__name__
    return f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}"


def _digest(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return _text_digest(repr(result))
    return _tensor_digest(result)


def _tensor_digest(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return ""  # it has no plain bytes; what comes of it has
    return tensor_digest(tensor)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
