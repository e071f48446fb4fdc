"""The kernels without PyTorch: `csrc/probe`, compiled for a processor and run there, or under an emulator.

`python -m numerics.probe` writes what this processor gives to probe.json, where GPUs find it (benchmarks/gpu_check.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from easyscale.pipeline.numerics import build, cuda

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD = Path(__file__).with_name("probe.json")

FMA = () if platform.machine() == "aarch64" else ("-mfma",)
"""For the shim: else it would have to emulate what every GPU has."""

ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


def program(isas: build.Isas, compiler: str) -> Path:
    """The probe for a processor, static."""
    return build.linked("probe-{}", build.kernel_units(isas) + _units(cuda=False), compiler, ["-static"])


def with_cuda(flags: tuple[str, ...] = ()) -> Path:
    """The probe of this processor with CUDA's kernels in it: for the shim, as "instruction set" `cuda`, and for a GPU.

    Args:
        flags: of the compiler, for CUDA's kernels and the linker.
    """
    units = build.kernel_units(build.isas()) + build.cuda_units((*FMA, *flags)) + _units(cuda=True)
    return build.linked("probe-cuda-{}", units, build.compiler(), [*flags, "-ldl"])


def _units(*, cuda: bool) -> list[build.Unit]:
    units = []
    for source in sorted((build.SOURCES / "probe").glob("*.cc")):
        if source.name == "main.cc" and cuda:
            units.append(build.Unit(source, (*build.MATH, "-O2", "-DES_WITH_CUDA")))
        elif source.name != "gpu.cc" or cuda:
            units.append(build.Unit(source, (*build.MATH, "-O2")))
    return units


def here() -> dict[str, str]:
    """Hashes of all families under this processor's best instruction set."""
    return hashes([str(program(build.isas(), build.compiler())), ""])


def kernels() -> list[cuda.Kernel]:
    """CUDA's, as the library knows them."""
    return [cuda.kernel(line) for line in output([str(with_cuda()), "kernels"]).splitlines()]


def hashes(command: list[str], **env: str) -> dict[str, str]:
    """What a probe prints: hashes by name."""
    return dict(line.rsplit(" ", 1) for line in output(command, **env).splitlines())


def output(command: list[str], **env: str) -> str:
    """What a probe prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_family(text: str) -> dict[str, list[str]]:
    """Lines of a probe's output, in their order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        found.setdefault(line.partition(": ")[0], []).append(line)
    return found


def digest(lines: Iterable[str]) -> str:
    """Of a family: 16 hex digits."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def recorded() -> dict[str, str]:
    """What CPUs have given: a digest for each family."""
    return {name: family["digest"] for name, family in json.loads(RECORD.read_text()).items()}


def cases(families: Iterable[str]) -> int:
    """How many cases these have, as far as they were recorded."""
    known = json.loads(RECORD.read_text())
    return sum(known[family]["cases"] for family in families if family in known)


def record(text: str) -> str:
    """probe.json, from what a probe has printed."""
    found = {name: {"cases": len(lines), "digest": digest(lines)} for name, lines in by_family(text).items()}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def arm_tools() -> tuple[str, str]:
    """Compiler and emulator; without them the test is skipped, but fails in CI."""
    import pytest

    found = shutil.which(ARM_COMPILER), shutil.which(ARM_EMULATOR)
    if None in found:
        missing = f"needs {ARM_COMPILER} and {ARM_EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return found


if __name__ == "__main__":
    RECORD.write_text(record(output([str(program(build.isas(), build.compiler())), ""])))
