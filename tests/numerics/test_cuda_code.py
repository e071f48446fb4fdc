"""What NVRTC makes of CUDA's kernels, for every architecture: read, since nothing here can run it."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest
import tally
from easyscale.pipeline.numerics import build, cuda, nvrtc
from numerics import probe, sass
from once import once

PRODUCTS = r"gemm.cu .*<MatrixProduct<float>, Tile<(128|32)"
OTHERS = r"conv.cu .*<Forward, Tile<128|reduce.cu .*_kernel<float, Sum>|softmax.cu .*<false>|optimizer.cu .*<float"
SOME = f"{PRODUCTS}|{OTHERS}"

LOOKED_AT = {
    "sm_75": "",
    "sm_80": SOME,
    "sm_86": SOME,
    "sm_87": PRODUCTS,
    "sm_89": SOME,
    "sm_90": SOME,
    "sm_100": SOME,
    "sm_103": PRODUCTS,
    "sm_110": PRODUCTS,
    "sm_120": SOME,
    "sm_121": PRODUCTS,
}
"""Which kernels, by file and name, for which architecture: all for the oldest. Compiling them is what it costs."""

ARCHITECTURES = tuple(LOOKED_AT)

CALL = "CALL.REL.NOINC"
DEPTH = 8
"""Of a step of products' loop over k (csrc/cuda/contraction.h)."""

SPILLED = 320
"""Bytes stored and loaded by a kernel for lack of registers, at most: 236 are, by a sum of doubles on sm_120. (What
threads keep of a pairwise sum is an array, which does not count.)"""

DENIED = {
    "approximations": r"MUFU\.(?!RCP|RSQ)",
    "tensor cores": r"\w*MMA\b",
    "atomics": r"U?RED|ATOM",
    "flushes to zero": r"U?F(FMA|ADD|SETP|SET|MNMX|SEL|CMP)2?\b\S*\.FTZ",
    "other roundings": r"U?[FD](FMA|ADD|MUL)2?\b\S*\.(RM|RP|RZ)\b|F2F\S*\.(RM|RP|RZ)\b",
    "arithmetic of halves": r"H(ADD|MUL|SETP|SET|MNMX)2|F2FP?\.(?!F64\.F32|F32\.F64)",
}
"""What no kernel may have outside of the compiler's own division and square root."""


@pytest.fixture(scope="module")
def kernels():
    return probe.kernels()


@pytest.fixture(scope="module")
def compiled(kernels):
    """What is looked at of an architecture, file by file: always the same kernels, so that each is compiled once."""

    def chosen(arch):
        return [one for one in kernels if re.search(LOOKED_AT[arch], f"{one.file} {one.name}")]

    return cache(lambda arch: cuda.cubins(chosen(arch), [arch]))


class Seen(NamedTuple):
    """What matters of a kernel's machine code."""

    name: str
    denied: set[tuple[str, sass.Instruction]]
    multiply_adds: int
    in_loops: list[int]  # multiply-adds
    roots: int
    divisions: int  # of floats, and of integers by way of floats
    seeds: tuple[int, int, int]  # MUFU.RSQ and FMUL.FTZ, which belong to roots, and MUFU.RCP


@pytest.fixture(scope="module")
def seen(compiled, tmp_path_factory):
    """What is seen of an architecture's machine code; looked at once in a test run."""

    def look(arch):
        for one in compiled(arch):
            codes = sass.disassemble(one.path)
            for name, symbol in one.symbols.items():
                code = codes[symbol]
                yield Seen(
                    name=f"{one.file} {name}",
                    denied=set(denied(code)),
                    multiply_adds=sass.multiply_adds(code.main),
                    in_loops=code.multiply_adds(),
                    roots=sum("sqrt_rn_f32" in line.operands for line in code.main if line.operation == CALL),
                    divisions=code.count("FCHK") + code.count(r"U?I2F\.U(32|64)\.RP"),
                    seeds=(code.count(r"MUFU\.RSQ$"), code.count(r"FMUL\.FTZ$"), code.count(r"MUFU\.RCP$")),
                )

    return lambda arch: once(tmp_path_factory, f"machine-code-{arch}", lambda: list(look(arch)))


def test_every_architecture_of_the_compiler_is_one_of_these_or_like_one():
    known = set(cuda.architectures())
    assert set(ARCHITECTURES) <= known
    assert known - set(ARCHITECTURES) <= {"sm_88"}


def test_every_definition_compiles():
    headers = sorted((build.SOURCES / "exact").glob("*.h"))
    text = "".join(f'#include "exact/{header.name}"\n' for header in headers) + "__global__ void nothing() {}\n"
    options = (*cuda.OPTIONS, f"--include-path={build.SOURCES}", "--gpu-architecture=sm_75")
    (done,) = nvrtc.compile_all(cuda.compiler(), [nvrtc.Program(text, cuda.HEADERS, ("nothing",), options)])
    assert done.symbols == {"nothing": "_Z7nothingv"}


def test_every_file_has_kernels(kernels):
    assert {one.file for one in kernels} == {path.name for path in (build.SOURCES / "cuda").glob("*.cu")}


def denied(code):
    """What is denied, and the instruction."""
    for one in code.main:
        for what, pattern in DENIED.items():
            if re.match(pattern, one.operation):
                yield what, one
        # With zeros it moves a constant, which is what the compiler takes it for.
        if one.operation.startswith("HFMA2") and "-RZ, RZ, " not in one.operands:
            yield "arithmetic of halves", one


WRONG = r"""
extern "C" __global__ void approximations(float* x) { *x = __expf(*x); }
extern "C" __global__ void atomics(float* x) { atomicAdd(x, 1.0f); }
extern "C" __global__ void integer_atomics(int* x) { x[1] = atomicMax(x, 1); }
extern "C" __global__ void flushes_to_zero(float* x) { asm("add.ftz.f32 %0, %0, %0;" : "+f"(*x)); }
extern "C" __global__ void other_roundings(float* x) { *x = __fmul_rz(*x, 3.0f); }
extern "C" __global__ void arithmetic_of_halves(unsigned* x) { asm("fma.rn.f16x2 %0, %0, %0, %0;" : "+r"(*x)); }
extern "C" __global__ void tensor_cores(unsigned* x) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]) : "r"(x[4]), "r"(x[5]), "r"(x[6]));
}
extern "C" __global__ void fine(float* x, double* y, int n) {
  *x = __fsqrt_rn(__fmaf_rn(*x, *x, __fdiv_rn(*x, 3.0f))) + (float)*y;
  *y = *y / (double)*x + (double)(n / (int)x[1]);
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_what_is_denied_is_found(tmp_path, arch):
    names = tuple(re.findall(r"void (\w+)\(", WRONG))
    asked = nvrtc.Program(WRONG, {}, names, ("--fmad=false", f"--gpu-architecture={arch}"))
    (done,) = nvrtc.compile_all(cuda.compiler(), [asked])
    (tmp_path / "cubin").write_bytes(done.cubin)
    codes = sass.disassemble(tmp_path / "cubin")
    found = {name: {what.replace(" ", "_") for what, _ in denied(codes[name])} for name in names}
    assert found == {name: set() if name == "fine" else {name.removeprefix("integer_")} for name in names}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_that_is_denied_is_in_the_machine_code(seen, arch):
    assert {one.name: one.denied for one in seen(arch) if one.denied} == {}
    tally.add("cuda", f"machine codes for {arch} without anything denied", len(seen(arch)))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_approximations_are_where_roots_and_divisions_begin_and_nowhere_else(seen, arch):
    """And what flushes to zero is in a root, of a number from the middle of the range."""
    for one in seen(arch):
        root, flushed, reciprocal = one.seeds
        assert root <= one.roots, one.name
        assert flushed == 2 * one.roots, one.name
        assert reciprocal <= one.divisions, one.name


def test_products_do_the_same_multiplications_on_every_architecture(seen):
    """As many as the source has: in the loop over k once for whole steps and once for the rest, and where results are
    stored."""
    counts = {}
    for one in (one for arch in ARCHITECTURES for one in seen(arch)):
        if tile := re.search(r"contraction_kernel<.*Tile<(\d+), (\d+), (\d+), (\d+)>", one.name):
            assert 2 * DEPTH * int(tile[3]) * int(tile[4]) in one.in_loops, one.name
            counts.setdefault(one.name, []).append(one.multiply_adds)
    assert len(counts) == 18
    assert sum(len(found) == len(ARCHITECTURES) for found in counts.values()) == 2
    assert {name: found for name, found in counts.items() if len(set(found)) != 1} == {}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_fit_into_the_registers_and_spill_next_to_nothing(compiled, arch):
    for one in compiled(arch):
        used = sass.resources(one.log)
        for name, symbol in one.symbols.items():
            assert used[symbol].spilled <= SPILLED, (name, used[symbol])
            if "contraction" in name:  # so that at least two blocks of 128 threads have room
                assert used[symbol].registers <= 255, (name, used[symbol])


def test_both_compilers_agree_on_the_parameters_of_every_kernel(kernels, compiled):
    expected = {(one.file, one.name): one.parameters for one in kernels}
    found = {}
    for one in compiled("sm_75"):
        sizes = sass.parameters(one.path.read_bytes())
        found |= {(one.file, name): sizes[symbol] for name, symbol in one.symbols.items()}
    assert found == expected
