"""A CUDA device where there is none: `csrc/standin`, and the exact kernels with CUDA's, which run through the shim.

The device is the process's, and PyTorch asks whether there is one early: import this before torch, in a process of its own.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

from easyscale.pipeline.numerics import build
from numerics import probe


def libraries() -> tuple[Path, Path]:
    """The device's and the exact kernels', built if need be; to be called in a process that may import torch."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    flags = ["-shared", f"-L{folder}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}"]
    torch_units = build.torch_units(cuda=True)
    units = build.kernel_units(build.isas()) + torch_units + build.cuda_units(probe.FMA)
    exact = build.linked("exact-stand-in-{}.so", units, build.compiler(), flags)
    sources = sorted((build.SOURCES / "standin").glob("*.cc"))
    device = build.linked(
        "stand-in-{}.so", [build.Unit(source, torch_units[0].flags) for source in sources], build.compiler(), flags
    )
    return device, exact


def appear(device: str) -> None:
    """From now on this process's PyTorch, which has not been imported, has a device `cuda:0`.

    Args:
        device: its library.
    """
    spec = find_spec("torch")
    assert spec and spec.origin
    folder = Path(spec.origin).parent / "lib"
    for library in (folder / "libc10.so", folder / "libtorch_cpu.so", device):
        ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    import torch

    torch.cuda._initialized = True
