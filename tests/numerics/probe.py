"""The kernels without PyTorch: `csrc/probe`, compiled for a processor and run there, or under an emulator."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from easyscale.pipeline.numerics import build

if TYPE_CHECKING:
    from pathlib import Path

FMA = () if platform.machine() == "aarch64" else ("-mfma",)
"""For the shim: else it would have to emulate what every GPU has."""

ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


def program(isas: build.Isas, compiler: str) -> Path:
    """The probe for a processor, static."""
    sources = sorted((build.SOURCES / "probe").glob("*.cc"))
    units = build.kernel_units(isas) + [build.Unit(source, (*build.MATH, "-O2")) for source in sources]
    return build.linked("probe-{}", units, compiler, ["-static"])


def with_cuda(flags: tuple[str, ...] = ()) -> Path:
    """The probe of this processor with CUDA's kernels in it, compiled for the shim: as "instruction set" `cuda`.

    Args:
        flags: of the compiler, for CUDA's kernels and the linker.
    """
    units = build.kernel_units(build.isas()) + build.cuda_units((*FMA, *flags))
    mine = (*build.MATH, "-O2")
    units += [build.Unit(source, mine) for source in sorted((build.SOURCES / "probe").glob("*.cc"))]
    return build.linked("probe-cuda-{}", units, build.compiler(), flags)


def hashes(command: list[str], **env: str) -> dict[str, str]:
    """What a probe prints: hashes by name."""
    return dict(line.rsplit(" ", 1) for line in output(command, **env).splitlines())


def output(command: list[str], **env: str) -> str:
    """What a probe prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def arm_tools() -> tuple[str, str]:
    """Compiler and emulator; without them the test is skipped, but fails in CI."""
    found = shutil.which(ARM_COMPILER), shutil.which(ARM_EMULATOR)
    if None in found:
        missing = f"needs {ARM_COMPILER} and {ARM_EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return found
