"""What makes the stand-in of `csrc/standin` this process's `cuda:0`: before torch is imported, and after."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PROPERTIES = SimpleNamespace(
    name="stand-in", major=9, minor=0, multi_processor_count=1, total_memory=1 << 30, uuid="5ca1ab1e", is_integrated=0
)


def load_device(library: str, torch: str) -> None:
    """Load the device where PyTorch, which is not imported yet, will find it.

    Args:
        library: the device's. torch: path of PyTorch's `__init__.py`.
    """
    folder = Path(torch).parent / "lib"
    for one in (folder / "libc10.so", folder / "libtorch_cpu.so", library):
        ctypes.CDLL(str(one), mode=os.RTLD_GLOBAL | os.RTLD_NOW)


def tell_torch() -> None:
    """Give `torch.cuda`, which was built without it, what is asked of a device that is there."""
    import torch

    def answer(value: Any) -> Callable[..., Any]:  # one function for each name: torch.compile tells them apart by it
        return lambda *_, **__: value

    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": PROPERTIES,
        "get_device_capability": (PROPERTIES.major, PROPERTIES.minor),
        "get_device_name": PROPERTIES.name,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "max_memory_allocated": 1 << 20,
        "manual_seed": None,  # its generator's, which nobody may draw from
        "manual_seed_all": None,
        "get_rng_state": None,
        "set_rng_state": None,
        "get_rng_state_all": [],
        "set_rng_state_all": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, answer(value))
    torch.cuda._initialized = True
