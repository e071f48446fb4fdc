"""Deterministic PyTorch: the settings that make one device give the same bits twice, and the name of what remains.

What remains after `configure` is the determinism class: devices of one class give the same bits for a job, so the
coordinator never mixes classes. With exact numerics there is one class, of all devices. Random numbers are left to
`randomness.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from ..errors import DeviceError, shown
from . import switches
from .numerics import SPECIFICATION
from .spec import BOUNDS

_SIMD = ("avx", "fma", "sse", "amx", "f16c", "asimd", "sve", "sme", "bf16", "i8mm")
"""Beginnings of the CPU flags by which kernels choose their code."""

_CHOOSING = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE")
"""Environment variables that make oneDNN and MKL choose other kernels. (ATen's choice is read back from torch.)"""


THREADS = "EASYSCALE_THREADS"
"""The environment variable by which a worker has other threads than the job says; for exact numerics only."""


def configure(threads: int, numerics: str = "native", device: str = "cpu") -> None:
    """Make this process deterministic; to be called before the first kernel runs and before CUDA is initialised.

    Args:
        threads: intra-op CPU threads. In native numerics sums over large tensors depend on it.
        numerics: as in the job's specification. `exact` makes this process exact and strict, for good.
        device: `cpu`, `cuda` or `cuda:<index>`: what this process computes on, and what `cuda` means to its code.

    Raises:
        BuildError: the exact kernels cannot be built.
        DeviceError: an environment variable asks for what this device lacks, or it cannot be used: see `check_device`.
    """
    exact = numerics == "exact"
    switches.set_all()
    torch.set_num_threads(_threads(threads) if exact else threads)
    # Too late once parallel work has started, and then without harm: no kernel's bits depend on it.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    check_device(device)
    if exact and device == "cpu" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no kernels are started for GPUs: code that looks for one finds none
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(torch.device(device).index or 0)
    if exact:
        from .numerics import strict

        strict.begin(device)


def _threads(default: int) -> int:
    text = os.environ.get(THREADS, str(default))
    if text.isdecimal() and 1 <= int(text) <= BOUNDS["threads"][1]:
        return int(text)
    raise DeviceError(f"{THREADS}={shown(text)}: it must be a number from 1 to {BOUNDS['threads'][1]:.0f}")


def check_device(device: str) -> None:
    """Refuse a device that this PyTorch cannot use.

    Raises:
        DeviceError: says which and why.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device {device!r}: PyTorch {torch.__version__} finds no CUDA here")


def versions() -> dict[str, str]:
    """What a job's code is written for, and what its submitter and its workers must have in common.

    Not the build of torch (`+cpu`, `+cu130`): a job may be submitted from a laptop to GPUs.
    """
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__).partition("+")[0],
    }


def check_versions(wanted: dict[str, str]) -> None:
    """Refuse a job that was submitted from other versions, as in `versions`; "" is any.

    Raises:
        DeviceError: names both.
    """
    here = versions()
    if differing := {name: version for name, version in wanted.items() if version not in ("", here[name])}:
        theirs = " and ".join(f"{name} {version}" for name, version in differing.items())
        ours = " and ".join(f"{name} {here[name]}" for name in differing)
        raise DeviceError(
            f"the job was submitted with {theirs}, this worker has {ours}: start a worker with those versions, "
            "or submit the job with these (--accept-changes if it has begun)"
        )


def determinism_class(device: str, threads: int, numerics: str = "native") -> dict[str, str]:
    """Everything known to choose between kernels that differ in bits, for `cpu`, `cuda` or `cuda:<index>`.

    Host properties are part of a GPU's class too, as far as random augmentation on the host depends on them. With exact
    numerics only the specification and what runs the user's Python count.
    """
    if numerics == "exact":
        return {"numerics": "exact", "specification": SPECIFICATION, **versions()}
    found = {
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "libc": "-".join(platform.libc_ver()),
        "machine": platform.machine(),
        "isa": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.device(device).type == "cuda":
        return found | _cuda_class(torch.device(device))
    return found | _cpu_class(threads)


def gpu_uuid(device: str) -> str:
    """The GPU's UUID, by which members see whether two of them share one; empty for `cpu`."""
    if torch.device(device).type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


def class_id(found: dict[str, str]) -> str:
    """A short name for a determinism class: 12 hex digits."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]


def _cuda_class(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": str(properties.multi_processor_count),  # dropout's and randn's grids depend on it
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        **switches.chosen(),
    }


def _cpu_class(threads: int) -> dict[str, str]:
    info = _cpu_info()
    flags = sorted(flag for flag in info.get("flags", info.get("Features", "")).split() if flag.startswith(_SIMD))
    chosen = {name: os.environ[name] for name in _CHOOSING if name in os.environ}
    model = " ".join(
        info[key] for key in ("model name", "cpu family", "model", "CPU implementer", "CPU part") if key in info
    )
    return {
        "device": "cpu",
        "model": model or platform.processor(),
        "flags": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:12],
        "caches": _caches(),  # oneDNN and MKL choose block sizes by them
        "threads": str(threads),
    } | chosen


def _cpu_info() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _caches() -> str:
    """Sizes of the first processor's caches, smallest level first, like `32K 32K 512K 32768K`."""
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return " ".join(path.read_text().strip() for path in sizes)
