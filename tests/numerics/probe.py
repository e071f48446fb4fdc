"""The kernels without PyTorch: `csrc/probe`, compiled for a processor and run there, or under an emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from easyscale.pipeline.numerics import build

if TYPE_CHECKING:
    from pathlib import Path

ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"


def program(isas: build.Isas, compiler: str) -> Path:
    """The probe for a processor, static."""
    sources = sorted((build.SOURCES / "probe").glob("*.cc"))
    units = build.kernel_units(isas) + [build.Unit(source, (*build.MATH, "-O2")) for source in sources]
    return build.linked("probe-{}", units, compiler, ["-static"])


def hashes(command: list[str]) -> dict[str, str]:
    """What a probe prints: hashes by name."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def arm_tools() -> tuple[str, str]:
    """Compiler and emulator; without them the test is skipped, but fails in CI."""
    found = shutil.which(ARM_COMPILER), shutil.which(ARM_EMULATOR)
    if None in found:
        missing = f"needs {ARM_COMPILER} and {ARM_EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return found
