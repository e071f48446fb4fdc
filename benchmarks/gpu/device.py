"""The device in a process: a GPU, or the stand-in for one that tests have. Comes before torch is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checks import Options

STAND_IN = "EASYSCALE_GPU_CHECK_STAND_IN"
"""Environment variable: the libraries of the stand-in, for the processes of one run."""


def build_stand_in() -> None:
    """For this process's children; they have it from the environment."""
    from numerics import stand_in

    os.environ[STAND_IN] = os.pathsep.join(map(str, stand_in.libraries()))


def appear(options: Options) -> None:
    """Let the stand-in be there, if it is to be."""
    if options.on_gpu:
        return
    from numerics import stand_in

    device, exact = os.environ[STAND_IN].split(os.pathsep)
    stand_in.appear(device)
    import torch

    torch.ops.load_library(exact)


def start() -> None:
    """Have the exact kernels run on the GPU. The stand-in runs them as they are."""
    import torch
    from easyscale.pipeline.numerics import cuda, library

    if torch.version.cuda is not None:
        cuda.start(library.load(), 0)


def begin_exact(threads: int = 1) -> None:
    """Make this process exact and strict, on the device, too."""
    from easyscale.pipeline import determinism
    from easyscale.pipeline.numerics import strict

    determinism.configure(threads)
    start()
    strict.begin()


def wait() -> None:
    """For all kernels that have been started."""
    import torch

    if torch.version.cuda is not None:
        torch.cuda.synchronize()
