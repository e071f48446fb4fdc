"""PyTorch's switches, and those of the libraries below it, that decide whether a device gives the same bits twice.

`determinism.configure` sets them. Code of the user's may set some again (`torch.backends.cudnn.benchmark = True` is in
many scripts): they are set back and it is told. They are part of a GPU's determinism class, as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


_CHOOSING = ("CUBLAS", "CUDNN_", "NVIDIA_TF32", "TORCH_CUDNN", "TORCH_BLAS", "TORCH_ALLOW_TF32")
"""Beginnings of environment variables by which they choose."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One of them.

    Args:
        name: as one would set it. wanted: its value here. read: its value now. set: gives it a value.
        early: it is read once, by what CUDA starts: afterwards it is too late.
    """

    name: str
    wanted: object
    read: Callable[[], object]
    set: Callable[[Any], object]
    early: bool = False


def _flushes() -> bool:
    return torch.tensor([1e-40]).add(1e-40).item() == 0


_CUDNN, _MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul

# They are properties of modules' types that mypy does not know.
_ATTRIBUTES: tuple[tuple[str, Any, str, bool], ...] = (
    ("torch.backends.cudnn", _CUDNN, "deterministic", True),
    ("torch.backends.cudnn", _CUDNN, "benchmark", False),  # it would choose by stopwatch
    ("torch.backends.cudnn", _CUDNN, "allow_tf32", False),  # on by default; tensor cores differ by generation
    ("torch.backends.cuda.matmul", _MATMUL, "allow_fp16_reduced_precision_reduction", False),
    ("torch.backends.cuda.matmul", _MATMUL, "allow_bf16_reduced_precision_reduction", False),
    ("torch.backends.cuda.matmul", _MATMUL, "allow_fp16_accumulation", False),
)

_VARIABLES = {
    # cuBLAS uses several workspaces, and with them several algorithms, unless told not to. The other allowed value
    # (:16:8) is deterministic too, but gives other bits.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",  # 1 would switch TF32 on whatever PyTorch says
}

SWITCHES: tuple[Switch, ...] = (
    *(
        Switch(name, value, partial(os.environ.get, name), partial(os.environ.__setitem__, name), early=True)
        for name, value in _VARIABLES.items()
    ),
    Switch(
        "torch.use_deterministic_algorithms",
        True,
        lambda: (
            torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
        ),
        torch.use_deterministic_algorithms,
    ),
    # Filling what torch.empty returns costs 5 % of a step (measured: a small CNN on one core, 4.6 -> 4.9 ms) and would
    # only hide a bug of the user's: reading memory that nobody has written.
    Switch(
        "torch.utils.deterministic.fill_uninitialized_memory",
        False,
        lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        partial(setattr, torch.utils.deterministic, "fill_uninitialized_memory"),
    ),
    Switch(
        "torch.set_float32_matmul_precision",
        "highest",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    *(
        Switch(f"{module}.{name}", value, partial(getattr, owner, name), partial(setattr, owner, name))
        for module, owner, name, value in _ATTRIBUTES
    ),
    # a library linked with -ffast-math turns it on for whoever loads it
    Switch("torch.set_flush_denormal", False, _flushes, torch.set_flush_denormal),
)

_late: list[str] = []
"""Variables that have been set when CUDA had started already."""


def set_all() -> None:
    """Every switch as it should be; before CUDA is initialised."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    for switch in SWITCHES:
        if started and switch.early and switch.read() != switch.wanted:
            _late.append(switch.name)
        switch.set(switch.wanted)


def moved() -> dict[str, object]:
    """The switches that are not as they should be, and how they are."""
    return {switch.name: switch.read() for switch in SWITCHES if switch.read() != switch.wanted}


def late() -> list[str]:
    """The variables that were set too late: CUDA had been initialised without them."""
    return list(_late)


def put_back() -> dict[str, object]:
    """Set what is not as it should be.

    Returns:
        These switches, and how they were.
    """
    found = moved()
    for switch in SWITCHES:
        if switch.name in found:
            switch.set(switch.wanted)
    return found


def chosen() -> dict[str, str]:
    """Everything set in this process by which CUDA's libraries choose kernels: our switches, and what else is known."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(_CHOOSING)}
    return {
        **{switch.name.removeprefix("torch."): str(switch.read()) for switch in SWITCHES},
        "blas": str(torch.backends.cuda.preferred_blas_library()),
        **variables,
    }
