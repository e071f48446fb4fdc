"""How kernels get to a GPU, with a driver that only tells what it was asked for: names, parameters, errors."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from easyscale.pipeline.numerics import build, cuda, nvrtc
from numerics import sass

HERE = Path(__file__).parent
NAME = "es::cuda::some_kernel<true, float>"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program and the driver."""
    folder = tmp_path_factory.mktemp("launching")
    flags = [build.compiler(), "-std=c++20", "-Wno-unknown-pragmas"]
    driver = folder / "libfake.so"
    subprocess.run([*flags, "-shared", "-fPIC", str(HERE / "fake_cuda.cc"), "-o", str(driver)], check=True)
    files = [str(build.SOURCES / "cuda" / name) for name in ("shim.cc", "device.cc", "launch.cc")]
    made = folder / "launching"
    command = [*flags, "-DES_ISA=cuda", "-x", "c++", str(HERE / "launching.cu"), *files, "-o", str(made), "-ldl"]
    subprocess.run(command, check=True)
    return made, driver


@pytest.fixture(scope="module")
def compiled(program):
    """Its kernels, and what NVRTC makes of them."""
    lines = subprocess.run([str(program[0])], capture_output=True, text=True, check=True).stdout.splitlines()
    kernels = [cuda.kernel(line) for line in lines]
    text = f'#include "{HERE / "launching.cu"}"\nusing namespace es;\n'
    options = (*cuda.OPTIONS, "--gpu-architecture=sm_75")
    asked = nvrtc.Program(text, cuda.HEADERS, tuple(one.name for one in kernels), options)
    (done,) = nvrtc.compile_all(cuda.compiler(), [asked])
    return kernels, done


def run(program, symbols, **env):
    made, driver = program
    names = [f"{name}={symbol}" for name, symbol in symbols.items()]
    command = [str(made), str(driver), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})


def test_kernels_are_known_by_the_names_that_the_compiler_of_gpus_takes(compiled):
    kernels, done = compiled
    assert {one.name for one in kernels} == {NAME, "es::cuda::never_kernel"}
    assert {one.file for one in kernels} == {"launching.cu"}
    sizes = sass.parameters(done.cubin)
    assert {one.name: one.parameters for one in kernels} == {
        name: sizes[symbol] for name, symbol in done.symbols.items()
    }


def test_a_launch_gives_the_driver_the_kernels_parameters(program, compiled):
    symbols = compiled[1].symbols
    done = run(program, symbols, FAKE_SIZES="4,8,12,1")
    assert done.returncode == 0, done.stdout
    said = [line for line in done.stdout.splitlines() if "\t" not in line]
    values = (
        struct.pack("<f", 1.0).hex(),
        struct.pack("<q", 2).hex(),
        struct.pack("<qi", 0x1000, -1).hex(),
        "ff",
    )
    launch = f"launch {symbols[NAME]} 7x1x1 64x1x1 0 0xabc  {' '.join(values)}"
    assert said == [
        "memory of 24",
        "context of device 103",  # this thread had none yet
        "module CUBIN",
        f"function {symbols[NAME]}",
        launch,
        launch,  # nothing is looked up twice
        "copy 4 0xabc",
        "wait 0xabc",
        "fetched 77",
        "released 0x1000 24",
    ]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("cuInit=209", "starting the driver: no kernel image is available for execution on the device"),
        ("cuDeviceGet=209", "asking for the device: no kernel image"),
        ("cuModuleLoadData=209", "loading launching.cu: no kernel image .* (CUDA_ERROR_NO_BINARY_FOR_GPU)"),
        ("cuModuleGetFunction=209", "looking for es::cuda::some_kernel<true, float> in launching.cu: no kernel"),
        ("cuLaunchKernel=1234", "starting es::cuda::some_kernel<true, float> of launching.cu: unknown error (1234)"),
        ("cuStreamSynchronize=1234", "waiting for kernels: unknown error (1234)"),
    ],
)
def test_what_the_driver_refuses_is_told_with_the_kernels_name(program, compiled, fault, told):
    done = run(program, compiled[1].symbols, FAKE_CUDA=fault)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert re.match("CUDA: " + re.escape(told).replace(r"\.\*", ".*"), last), last
    if "cuInit" not in fault:
        assert "released 0x1000 24" in done.stdout  # memory is given back all the same


def test_machine_code_that_lacks_a_kernel_is_refused_before_anything_runs(program, compiled):
    done = run(program, {NAME: compiled[1].symbols[NAME]})
    assert done.returncode == 1
    assert done.stdout.endswith("CUDA: the machine code of launching.cu lacks es::cuda::never_kernel\n")


def test_a_missing_driver_and_one_that_is_too_old_are_told(program, tmp_path):
    missing = run((program[0], tmp_path / "none.so"), {})
    assert missing.returncode == 1
    assert "CUDA: the driver cannot be loaded: " in missing.stdout
    old = tmp_path / "libold.so"
    command = [build.compiler(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(old)]
    subprocess.run(command, input='extern "C" int cuInit(unsigned) { return 0; }', text=True, check=True)
    done = run((program[0], old), {})
    assert done.returncode == 1
    assert f"CUDA: {old} has no cuGetErrorName: a newer driver is needed" in done.stdout
