"""The definitions in `csrc/exact` are CUDA too: nvcc compiles them as they are."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from easyscale.pipeline.numerics import build

NVCC = shutil.which("nvcc")

if NVCC:  # not everybody has it, and nothing here runs on a GPU

    @pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
    def test_nvcc_compiles_every_definition(tmp_path, arch):
        headers = sorted((build.SOURCES / "exact").glob("*.h"))
        source = tmp_path / "all.cu"
        source.write_text("".join(f'#include "{header}"\n' for header in headers) + "__global__ void nothing() {}\n")
        command = [NVCC, "-std=c++20", "-fmad=false", f"-arch={arch}", "-c", str(source), "-o", str(tmp_path / "all.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
