"""Machine code for GPUs where there is none: which architectures, what is kept, what is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import DeviceError, EasyScaleError, UserError
from easyscale.pipeline.numerics import build, cuda, nvrtc

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = cuda.Kernel("softmax.cu", "es::cuda::rows_kernel<true>", (48,))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is there yet."""
    monkeypatch.setenv("EASYSCALE_BUILD_FOLDER", str(tmp_path / "built"))
    return tmp_path / "built"


def test_the_architectures_that_are_asked_for_must_be_known_and_not_too_old() -> None:
    assert cuda.chosen(["sm_90", "sm_75", "sm_90"]) == ("sm_90", "sm_75")
    assert {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"} <= set(cuda.chosen(["all"]))
    for arch, told in (("sm_70", "the oldest architecture is sm_75"), ("sm_91", "'sm_91'"), ("hopper", "'hopper'")):
        with pytest.raises(UserError, match=told) as raised:
            cuda.chosen(["sm_80", arch])
        assert "sm_80" in str(raised.value)


@pytest.mark.parametrize(
    ("capability", "arch"), [((7, 5), "sm_75"), ((8, 6), "sm_86"), ((9, 0), "sm_90"), ((12, 9), "sm_121")]
)
def test_a_device_runs_the_newest_code_of_its_generation(capability: tuple[int, int], arch: str) -> None:
    assert cuda.architecture_of(capability) == arch


@pytest.mark.parametrize(("capability", "told"), [((7, 0), "the oldest is 7.5"), ((99, 0), "a newer PyTorch")])
def test_a_device_for_which_there_can_be_no_code_is_refused(capability: tuple[int, int], told: str) -> None:
    with pytest.raises(DeviceError, match=told):
        cuda.architecture_of(capability)


def test_a_missing_compiler_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_places", lambda: iter(["/nonexistent/libnvrtc.so.13"]))
    cuda.compiler.cache_clear()
    with pytest.raises(build.BuildError, match="exact numerics on GPUs need NVRTC") as raised:
        cuda.architectures()
    assert "pip install nvidia-cuda-nvrtc" in str(raised.value)


def test_machine_code_is_kept_until_anything_that_goes_into_it_changes(
    monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    said: list[str] = []
    (first,) = cuda.cubins([KERNEL], ["sm_75"], said.append)
    assert said == ["compiled 1 of 1 files for GPUs"]
    assert first.path.parent == elsewhere / "cuda"
    assert first.path.read_bytes().startswith(b"\x7fELF")
    assert first.symbols.keys() == {KERNEL.name}
    assert first.symbols[KERNEL.name].encode() in first.path.read_bytes()
    assert cuda.cubins([KERNEL], ["sm_75"], said.append) == [first]
    monkeypatch.setattr(cuda, "OPTIONS", (*cuda.OPTIONS, "-DOTHER"))
    (other,) = cuda.cubins([KERNEL], ["sm_75"], said.append)
    assert len(said) == 2
    assert other.path != first.path


def test_what_does_not_compile_is_told_and_leaves_nothing(elsewhere: Path) -> None:
    with pytest.raises(build.BuildError, match=r"cannot compile the exact kernels: .*missing_kernel"):
        cuda.cubins([KERNEL._replace(name="es::cuda::missing_kernel<true>")], ["sm_75"])
    assert [path.name for path in (elsewhere / "cuda").iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_written_is_named(elsewhere: Path) -> None:
    elsewhere.write_text("a file")
    with pytest.raises(EasyScaleError, match=f"exact kernels cannot be built in {elsewhere}"):
        cuda.cubins([KERNEL], ["sm_75"])


class Operators:
    """Those of a library with one kernel."""

    def __init__(self, failing: str = "") -> None:
        self.loaded: list[tuple[Any, ...]] = []
        self.started = ""
        self.failing = failing

    def cuda_kernels(self) -> list[str]:
        return ["\t".join([KERNEL.file, KERNEL.name, "48"])]

    def cuda_load(self, *arguments: object) -> None:
        self.loaded.append(arguments)

    def cuda_start(self, driver: str) -> None:
        if self.failing:
            raise RuntimeError(self.failing)
        self.started = driver


def test_a_library_is_given_the_machine_code_for_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, number))
    operators = Operators()
    cuda.start(operators, 0)
    (one,) = cuda.cubins([KERNEL], ["sm_90"])
    assert operators.loaded == [(KERNEL.file, str(one.path), [KERNEL.name], [one.symbols[KERNEL.name]])]
    assert operators.started == "libcuda.so.1"
    with pytest.raises(DeviceError, match=r"^CUDA: the driver cannot be loaded: libcuda\.so\.1: no"):
        cuda.start(Operators("CUDA: the driver cannot be loaded: libcuda.so.1: no\nException raised from"), 0)


def test_easyscale_build_refuses_an_architecture_before_it_compiles_anything(elsewhere: Path) -> None:
    line = [sys.executable, "-P", "-m", "easyscale.pipeline.cli", "build", "--arch", "sm_70"]
    done = subprocess.run(line, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the oldest architecture is sm_75 (Turing)" in done.stderr
    assert not elsewhere.exists()


def test_the_list_of_what_came_out_can_be_read_by_programs() -> None:
    (one,) = cuda.cubins([KERNEL], ["sm_80"])
    kept = json.loads(one.path.with_suffix(".json").read_text())
    assert kept == {"symbols": one.symbols, "log": one.log}
    assert "Used" in one.log
