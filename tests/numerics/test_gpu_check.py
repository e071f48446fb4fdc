"""benchmarks/gpu_check.py without a GPU: what it says, what it would do, and a little of each part on the stand-in."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from easyscale.pipeline.numerics import build, cuda
from numerics import probe

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "gpu_check.py"
ARCH = "sm_75"
"""Which the tests of machine code compile anyway."""

PARTS = ("environment", "kernels", "functions", "operators", "models", "engine", "gemm", "conv", "memory", "steps")


def run(*arguments, **env):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)


def part(name):
    return importlib.import_module(f"easyscale.benchmarks.gpu.{name}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "everything"],
        ["--minutes", "0"],
        ["--minutes", "many"],
        ["--arch", ARCH],
        ["--stand-in"],
        ["--dry-run", "--arch", "sm_1"],
    ],
)
def test_wrong_arguments_end_with_2_and_a_line_that_says_what_is_wrong(arguments):
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_2_and_says_what_can_be_done():
    done = run("--quick")
    assert done.returncode == 2
    assert "--dry-run needs no" in done.stderr
    assert done.stdout == ""


def test_a_dry_run_builds_and_lists_every_part():
    done = run("--dry-run", "--arch", ARCH)
    assert done.returncode == 0, done.stderr
    assert f"for {ARCH}: " in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ") and "| part" not in line]
    assert tuple(dict.fromkeys(row[0].removeprefix("| ") for row in rows)) == PARTS
    assert all(int(row[3].removesuffix(" |")) > 0 for row in rows)


@pytest.mark.skipif("CI" in os.environ, reason="takes two minutes of what other tests do, too")
def test_every_part_does_its_work_on_the_stand_in(tmp_path):
    """Bits are compared in earnest; times mean nothing. Two tables of them are enough."""
    file, asked = tmp_path / "found.json", [name for name in PARTS if name not in ("gemm", "memory")]
    options = ("--arch", ARCH, "--minutes", "30", "--json", str(file), "--only", *asked)
    done = run("--dry-run", "--stand-in", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    outcomes = {name: [check["outcome"] for check in one["checks"]] for name, one in found["parts"].items()}
    assert list(outcomes) == asked
    for name in ("kernels", "functions", "operators", "models"):
        assert set(outcomes[name]) == {"equal"}
    assert outcomes["engine"].count("equal") == 2
    for name in ("conv", "steps"):
        assert {"told", *outcomes[name]} <= {"told", "met", "missed"}
        assert outcomes[name][-1] in ("met", "missed")
    assert found["outcomes"] == {
        outcome: sum(all_.count(outcome) for all_ in outcomes.values()) for outcome in found["outcomes"]
    }


def test_a_part_that_hangs_or_dies_is_told_and_takes_nothing_along():
    checks, parts = part("checks"), part("parts")
    (late,) = parts.run("functions", checks.Options(device="stand-in", tiny=True, seconds=0.0))
    assert late.outcome is checks.Outcome.late
    if not torch.cuda.is_available():
        *_, died = parts.run("functions", checks.Options(tiny=True))
        assert died.outcome is checks.Outcome.failed
        assert "finds no CUDA" in died.said


@pytest.fixture
def driver(tmp_path):
    """A folder with a driver that runs nothing."""
    folder = tmp_path / "driver"
    folder.mkdir()
    source = Path(__file__).with_name("fake_cuda.cc")
    flags = ["-std=c++20", "-shared", "-fPIC", str(source), "-o", str(folder / "libcuda.so.1")]
    subprocess.run([build.compiler(), *flags], check=True)
    return folder


@pytest.fixture
def manifest(tmp_path):
    """For the probe, with machine code that only the driver above takes."""
    kernels = [cuda.kernel(line) for line in probe.output([str(probe.with_cuda()), "kernels"]).splitlines()]
    nothing = tmp_path / "nothing.cubin"
    nothing.write_text("CUBIN")
    files = {}
    for kernel in kernels:
        files.setdefault(kernel.file, {})[kernel.name] = f"symbol{len(files)}"
    path = tmp_path / "manifest"
    path.write_text(part("kernels").manifest([cuda.Cubin(*one, "") for one in (
        (file, ARCH, nothing, names) for file, names in files.items()
    )]))  # fmt: skip
    return path


def test_the_probe_starts_its_kernels_on_a_gpu_and_waits_for_each(driver, manifest):
    said = probe.output([str(probe.with_cuda()), "gpu", str(manifest), "softmax"], LD_LIBRARY_PATH=str(driver))
    lines = said.splitlines()
    launches = [number for number, line in enumerate(lines) if line.startswith("launch ")]
    assert len(launches) >= 60
    assert all(lines[number + 1] == "wait for all" for number in launches)
    assert len([line for line in lines if line.startswith("softmax: ")]) == probe.cases(["softmax"])


def test_hashes_that_differ_are_told_with_the_cases_and_a_family_that_cannot_run_stops_no_other(
    driver, manifest, monkeypatch, tmp_path
):
    checks, kernels = part("checks"), part("kernels")
    monkeypatch.setattr(kernels, "_manifest", lambda *_: manifest)
    monkeypatch.setattr(kernels, "FEW", ("softmax", "long_softmax"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))

    def found():
        file = tmp_path / "checks"
        file.unlink(missing_ok=True)
        kernels.run(checks.Options(tiny=True), checks.Teller(file))
        return {check.name: check for check in checks.read(file)}

    told = found()
    assert {name: check.outcome for name, check in told.items()} == dict.fromkeys(kernels.FEW, checks.Outcome.differs)
    assert "51 differ: softmax: softmax of 1 inner 1; " in told["softmax"].said  # nothing was computed, and 9 are zeros
    monkeypatch.setenv("FAKE_CUDA", "cuCtxSynchronize=209")
    told = found()
    assert {name: check.outcome for name, check in told.items()} == dict.fromkeys(kernels.FEW, checks.Outcome.failed)
    assert told["softmax"].said == "CUDA: running kernels: CUDA_ERROR_NO_BINARY_FOR_GPU"
