"""What is here, and everything built: the library, the GPU's machine code, the probe."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Callable

    from .checks import Options, Teller


def plan(_options: Options) -> list[Planned]:
    """What will be looked at."""
    return [Planned("versions", 1), Planned("things to build", 4)]


def run(options: Options, tell: Teller) -> None:
    """Describe and build."""
    import torch
    from easyscale.pipeline.numerics import build, cuda
    from numerics import probe

    here = described(options)
    tell(Check("here", Outcome.told, ", ".join(f"{name} {value}" for name, value in here.items()), here))

    def timed(name: str, make: Callable[[], object]) -> None:
        began = time.monotonic()
        said = make()
        seconds = round(time.monotonic() - began, 1)
        tell(Check(name, Outcome.told, f"{seconds} s: {said}", {"seconds": seconds}))

    timed("library", lambda: build.library(_show, cuda=True).name)
    if torch.version.cuda is not None:
        arch = cuda.architecture_of(torch.cuda.get_device_capability(0))
        timed("machine code", lambda: machine_code([arch]))
    timed("probe", lambda: probe.with_cuda().name)
    timed("probe of the CPU", lambda: probe.program(build.isas(), build.compiler()).name)


def machine_code(archs: list[str]) -> str:
    """Of the library's kernels, for these architectures."""
    from easyscale.pipeline.numerics import build, cuda

    kernels = cuda.kernels_in(build.library(_show, cuda=True))
    made = cuda.cubins(kernels, archs, _show)
    size = sum(one.path.stat().st_size for one in made)
    return f"{len(kernels)} kernels of {len(made) // len(archs)} files for {', '.join(archs)}: {size / 1e6:.1f} MB"


def _show(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def described(options: Options) -> dict[str, Any]:
    """GPU, driver and versions; without a GPU as much as there is."""
    import torch
    from easyscale.pipeline.devices import device_kind
    from easyscale.pipeline.numerics import build, cuda

    found: dict[str, Any] = {}
    if options.on_gpu:
        properties = torch.cuda.get_device_properties(0)
        found["GPU"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["GB"] = round(properties.total_memory / 1e9)
        found["processors"] = properties.multi_processor_count
        found["driver"] = driver()
        found["CUDA"] = torch.version.cuda
        found["cuDNN"] = torch.backends.cudnn.version()
    else:
        found["GPU"] = "none: " + options.device
    found["NVRTC"] = cuda.compiler().version()
    found["torch"] = torch.__version__
    found["Python"] = platform.python_version()
    found["CPU"] = f"{len(os.sched_getaffinity(0))} cores of {device_kind('cpu')}"
    found["compiler"] = Path(build.compiler()).name
    return found


def driver() -> str:
    """The version of NVIDIA's kernel driver."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        import torch

        return str(torch._C._cuda_getDriverVersion())  # noqa: SLF001 - of CUDA, at least
    return next((word for word in line.split() if word[0].isdigit() and "." in word), line)
