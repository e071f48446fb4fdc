"""The exact process of a job: what is not covered is refused, and what could change bits behind our back is noticed.

`begin` comes before the user's script is loaded. `look` comes whenever code of the user's has run that may have brought
operators or switches of its own: after the script, after the build function, after each pass. What is computed outside
of PyTorch's operators (numpy, C extensions that touch memory themselves) cannot be seen.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...errors import InexactError
from . import library, scalars
from .coverage import KERNELS, Class, classify, goes_by_the_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER_LAYOUTS = {
    "CPU": ("SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    "CUDA": ("SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA"),
}
"""Keys of tensors that exact mode has nothing for, by device."""

OURS = "easyscale/csrc"
"""Where our own kernels say that they come from."""

_ORIGIN = re.compile(r"^(?:CPU|CUDA|Autograd\w*|Composite\w+): registered at (.*?):\d+ ::", re.MULTILINE)

_seen: set[str] = set()
"""Operators that have been looked at: refused, or covered."""

_torchs: set[str] = set()
"""Namespaces of operators that were there before anything of the user's."""

_loaded: list[tuple[int, ...]] = []
"""What `_counts` said when operators were last looked at."""

_undo: list[Callable[[], None]] = []


def begin(device: str = "cpu") -> None:
    """Make this process exact, and refuse the rest.

    Args:
        device: see `library.enable`.

    Raises:
        BuildError: the kernels cannot be built.
        DeviceError: EASYSCALE_ISA names an instruction set that is not here, or there are no kernels for this GPU.
    """
    library.enable(device)
    scalars.install()
    _refuse_inductor()
    _torchs.update(name.partition("::")[0] for name in _names())
    refuse_new()


def begun() -> bool:
    """Whether this process is exact and strict."""
    return bool(_seen)


def end() -> None:
    """PyTorch's own operators again, all of them; for tests."""
    while _undo:
        _undo.pop()()
    library.load().allow()
    _seen.clear()
    _torchs.clear()
    library.disable()


@contextmanager
def strictly() -> Iterator[None]:
    """Exact and strict inside; for tests."""
    begin()
    try:
        yield
    finally:
        end()


def look(*, operators: bool = False) -> list[str]:
    """See whether this process is still exact; to be called between passes.

    Args:
        operators: user code has been loaded: look at all threads, and for kernels that it has put in the place of
            PyTorch's, too. Takes a quarter of a second.

    Returns:
        Operators of others that were not there before: what has just been run may have called them. From now on they
        are refused.

    Raises:
        InexactError: it is not, and why.
    """
    if operators or torch._C._get_mkldnn_enabled():  # noqa: SLF001
        library.settle()  # without harm so far: what they lead to is refused, or is what we have, in other parts
    if not library.load().arithmetic_is_ieee(operators):
        raise InexactError(
            "this process takes subnormal numbers for zero, or rounds otherwise than to nearest: exact numerics "
            "cannot go on",
            "something in the job's code has switched that on: torch.set_flush_denormal(True), or a library that was "
            "linked with -ffast-math",
        )
    came = refuse_new() if operators or _loaded != [_counts()] else []
    if operators:
        _refuse_replaced()
    return came


def _counts() -> tuple[int, ...]:
    """Grow with whatever can bring operators along, and are quickly asked."""
    made = torch.library._defs, torch.library._impls  # noqa: SLF001
    return len(sys.modules), len(torch.ops.loaded_libraries), *map(len, made)


def _names() -> list[str]:
    names: list[str] = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    return names


def _has(name: str, key: str) -> bool:
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)  # noqa: SLF001
    return found


def refuse_new() -> list[str]:
    """Refuse what is not covered among the operators that are there now and were not before.

    Returns:
        Those of them that are not PyTorch's.
    """
    _loaded[:] = [_counts()]
    new = [name for name in _names() if name not in _seen]
    _seen.update(new)
    refused, integers, foreign = [], [], []
    ours = library.load()
    devices = ("CPU", "CUDA") if ours.has_devices() else ("CPU",)
    others: dict[str, list[str]] = {key: [] for device in devices for key in OTHER_LAYOUTS[device]}
    for name in new:
        kind = classify(name)
        if not name.startswith("aten::"):
            if kind is Class.UNCOVERED:
                foreign.append(name)
            continue
        for key, names in others.items():
            if _has(name, key):
                names.append(name)
        if not any(_has(name, key) for key in KERNELS) or (goes_by_the_cpu(name) and kind is Class.UNCOVERED):
            continue
        if kind is Class.UNCOVERED:
            refused.append(name)
        elif kind is Class.INTEGERS:
            integers.append(name)
    for device in devices:
        ours.refuse(refused + foreign, device)
        ours.refuse(foreign, f"Autograd{device}")  # some compute there already
        ours.integers_only(integers, device)
    for key, names in others.items():
        ours.refuse(names, key)
    return [name for name in foreign if name.partition("::")[0] not in _torchs]


def _refuse_replaced() -> None:
    """PyTorch's own operators, replaced by somebody else's kernels.

    Raises:
        InexactError: names the first of them, and where it was registered.
    """
    theirs = _root(), str(Path(torch.__file__).parent), OURS  # PyTorch registers some in Python
    for name in _names():
        if not name.startswith("aten::"):
            continue
        for place in _ORIGIN.findall(torch._C._dispatch_dump(name)):  # noqa: SLF001
            if not place.startswith(theirs):
                raise InexactError(
                    f"{name} was replaced: another kernel was registered for it at {place}",
                    'exact numerics need its own kernels: leave that library out, or use numerics="native"',
                )


def _root() -> str:
    """Where PyTorch itself was built: `/pytorch/` of `/pytorch/build/aten/src/...`."""
    said = torch._C._dispatch_dump("aten::add.Tensor")  # noqa: SLF001
    found = re.search(r"^debug: registered at (.*?)build/aten/", said, re.MULTILINE)
    assert found, said
    return found[1]


def _refuse_inductor() -> None:
    """The compiler that makes kernels of its own. Others (`eager`, `aot_eager`) call operators."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise InexactError(
            "torch.compile makes kernels of its own, which exact numerics cannot cover",
            'use torch.compile(backend="aot_eager"), or leave it out',
        )

    wrapper = torch._TorchCompileInductorWrapper  # noqa: SLF001
    before = wrapper.__init__
    wrapper.__init__ = refuse  # type: ignore[method-assign]
    _undo.append(lambda: setattr(wrapper, "__init__", before))
