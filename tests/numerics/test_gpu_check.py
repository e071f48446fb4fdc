"""benchmarks/gpu_check.py without a GPU: what it says, what it would do, and a little of its parts on the stand-in."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from easyscale.pipeline.numerics import build, cuda
from numerics import exhaustive, probe

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "gpu_check.py"
ARCH = "sm_75"
"""Which the tests of machine code compile anyway."""

PARTS = ("environment", "kernels", "functions", "operators", "models", "engine", "gemm", "conv", "memory", "steps")

LEFT_OUT = ("functions", "engine", "gemm", "memory")
"""Of the run on the stand-in, for their time. `functions` and `engine` are tried on the CPU below. The stand-in's bits
are those of test_operators.py for functions and the kernels of `gemm` and `memory`, which are timed as `conv` is, and
those of tests/e2e/test_exact_cuda.py for whole jobs."""


def run(*arguments, cwd=None):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


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


def test_parts_do_their_work_on_the_stand_in(tmp_path):
    """Bits are compared in earnest; times mean nothing."""
    file, asked = tmp_path / "found.json", [name for name in PARTS if name not in LEFT_OUT]
    options = ("--arch", ARCH, "--minutes", "30", "--json", str(file), "--only", *asked)
    done = run("--dry-run", "--stand-in", *options, cwd=PROGRAM.parent)  # which has a `numerics` that must not be found
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    outcomes = {name: [check["outcome"] for check in one["checks"]] for name, one in found["parts"].items()}
    assert list(outcomes) == asked
    for name in ("kernels", "operators", "models"):
        assert set(outcomes[name]) == {"equal"}
    for name in ("conv", "steps"):
        assert {"told", *outcomes[name]} <= {"told", "met", "missed"}
        assert outcomes[name][-1] in ("met", "missed")
    assert found["outcomes"] == {
        outcome: sum(all_.count(outcome) for all_ in outcomes.values()) for outcome in found["outcomes"]
    }


def test_a_hash_of_a_function_that_is_made_with_torch_is_the_recorded_one(exact):
    functions = part("functions")
    recorded = json.loads(exhaustive.RECORD.read_text())["sample"]
    assert functions.functions().keys() == recorded.keys()
    for name in ("logit", "softplus", "elu"):  # which take numbers
        assert functions.swept(functions.functions()[name], 1 << 24, 257, "cpu") == recorded[name]


def test_a_cluster_of_the_engines_part_comes_to_the_state_of_a_worker_alone(tmp_path):
    checks, engine = part("checks"), part("engine")
    place = engine.Place(tmp_path, checks.Options(tiny=True))
    assert place.together("together", ("cpu",)) == place.run("alone", "exact", "cpu", 1)


def test_a_job_that_comes_to_another_state_is_told_and_one_that_fails_stops_no_other(monkeypatch, tmp_path):
    checks, engine = part("checks"), part("engine")

    def state(place, name, *_):
        if name == "native-1":
            raise engine.Problem("no worker")
        return "another" if name == "exact-both" else "state"

    monkeypatch.setattr(engine.Place, "run", state)
    monkeypatch.setattr(engine.Place, "together", state)
    engine.run(checks.Options(), checks.Teller(tmp_path / "checks"))
    outcomes = [str(check.outcome) for check in checks.read(tmp_path / "checks")]
    assert outcomes == ["told", "DIFFERS", "equal", "told", "equal", "FAILED"]


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


@pytest.fixture
def told(driver, manifest, monkeypatch, tmp_path):
    """What `kernels` says of two families, by their names, with that driver."""
    checks, kernels = part("checks"), part("kernels")
    monkeypatch.setattr(kernels, "_manifest", lambda *_: manifest)
    monkeypatch.setattr(kernels, "FEW", ("softmax", "long_softmax"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))

    def found():
        file = tmp_path / "checks"
        file.unlink(missing_ok=True)
        kernels.run(checks.Options(tiny=True), checks.Teller(file))
        return {check.name: check for check in checks.read(file)}

    return found


def outcomes_of(found):
    return {name: str(check.outcome) for name, check in found.items()}


def test_hashes_that_differ_are_told_with_the_cases_and_a_family_that_cannot_run_stops_no_other(told, monkeypatch):
    found = told()
    assert outcomes_of(found) == {"softmax": "DIFFERS", "long_softmax": "DIFFERS"}
    said = found["softmax"].said
    assert "51 differ: softmax: softmax of 1 inner 1; " in said  # nothing was computed, and 9 are zeros
    monkeypatch.setenv("FAKE_CUDA", "cuCtxSynchronize=209")
    found = told()
    assert outcomes_of(found) == {"softmax": "FAILED", "long_softmax": "FAILED"}
    assert found["softmax"].said == "CUDA: running kernels: CUDA_ERROR_NO_BINARY_FOR_GPU"


def test_a_probe_that_dies_after_its_last_family_has_failed(told, monkeypatch, tmp_path):
    dying = tmp_path / "dying"
    dying.write_text(f"""#!/bin/sh
'{probe.with_cuda()}' "$@" && [ "$1" = families ] || {{ echo "gone at the end" >&2; exit 3; }}
""")
    dying.chmod(0o755)
    monkeypatch.setattr(probe, "with_cuda", lambda: dying)
    found = told()
    assert outcomes_of(found) == {"softmax": "DIFFERS", "long_softmax": "DIFFERS", "the end": "FAILED"}
    assert found["the end"].said == "gone at the end"
