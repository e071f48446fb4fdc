"""A CUDA device where there is none: `csrc/standin`, and the exact kernels with CUDA's, which run through the shim.

The device is the process's, and PyTorch asks whether there is one early: import this before torch, in a process of its
own (`appear`); or start processes that have it from the beginning (`environment`).
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from easyscale.pipeline.numerics import build

FOLDER = Path(__file__).parents[1] / "stand_in"


def libraries() -> tuple[Path, Path]:
    """The device's and the exact kernels', built if need be; to be called in a process that may import torch."""
    return device(), build.library(cuda=True)


def device() -> Path:
    """The device's library, built if need be; to be called in a process that may import torch."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    flags = ["-shared", f"-L{folder}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}"]
    # So that what is said of a place in it does not depend on where this repository lies.
    compiling = (*build.torch_units()[0].flags, f"-ffile-prefix-map={build.SOURCES}=easyscale/csrc")
    units = [build.Unit(source, compiling) for source in sorted((build.SOURCES / "standin").glob("*.cc"))]
    return build.linked("stand-in-{}.so", units, build.compiler(), flags)


def environment(folder: Path, *, closed: bool = False) -> dict[str, str]:
    """Environment variables of a process that has the device; to be called in a process that may import torch.

    Args:
        folder: for a driver. closed: the host may not touch the device's memory, which takes as long again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    driver = folder / "libcuda.so.1"
    build._make(driver, [build.compiler(), "-shared", "-fPIC", "-x", "c", str(FOLDER / "libcuda.c")])
    build.library(cuda=True)
    return {
        "STAND_IN": str(device()),
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        build.CUDA: "1",
        **({} if closed else {"STAND_IN_OPEN": "1"}),
    }


def appear(device: str) -> None:
    """From now on this process's PyTorch, which has not been imported, has a device `cuda:0`.

    Args:
        device: its library.
    """
    sys.path.append(str(FOLDER))
    from presence import load_device, tell_torch

    spec = find_spec("torch")
    assert spec
    assert spec.origin
    load_device(device, spec.origin)
    tell_torch()
