"""What NVRTC makes of CUDA's kernels, for every architecture: read, since nothing here can run it."""

from __future__ import annotations

import re

import pytest
from easyscale.pipeline.numerics import build, cuda, nvrtc
from numerics import probe, sass

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
    "sm_120": rf"{SOME}|^(?!conv|gemm)",
    "sm_121": PRODUCTS,
}
"""Which kernels, by file and name, for which architecture: all for the oldest, nearly all for one of the newest, since
the compiler is another from sm_100 on. Compiling them is what it costs."""

ARCHITECTURES = tuple(LOOKED_AT)

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
    """Those that the library knows, in the same words."""
    done = probe.output([str(probe.with_cuda()), "kernels"])
    return [cuda.kernel(line) for line in done.splitlines()]


def codes(kernels, arch, files=r"\.cu$"):
    """(file, name, code) of those that are looked at."""
    for one in cuda.cubins(chosen(kernels, arch), [arch]):
        if not re.search(files, one.file):
            continue
        code = sass.disassemble(one.path)
        yield from ((one.file, name, code[symbol]) for name, symbol in one.symbols.items())


def chosen(kernels, arch):
    """Always the same for an architecture, so that each is compiled once."""
    return [one for one in kernels if re.search(LOOKED_AT[arch], f"{one.file} {one.name}")]


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
def test_nothing_that_is_denied_is_in_the_machine_code(kernels, arch):
    found = set()
    for file, name, code in codes(kernels, arch):
        found |= {(file, name, *one) for one in denied(code)}
        roots = sum("sqrt_rn_f32" in one.operands for one in code.main if one.operation.startswith("CALL"))
        assert code.count(r"MUFU\.RSQ$") <= roots, name
        assert code.count(r"FMUL\.FTZ$") == 2 * roots, name  # within a square root's normal range
        divisions = code.count("FCHK") + code.count(r"U?I2F\.U(32|64)\.RP")  # those of integers begin so
        assert code.count(r"MUFU\.RCP$") <= divisions, name
    assert found == set()


def test_products_do_the_same_multiplications_on_every_architecture(kernels):
    """As many as the source has: in a step of the loop over k once for whole steps and once for the rest, and where
    results are stored."""
    counts = {}
    for arch in ARCHITECTURES:
        for file, name, code in codes(kernels, arch, "gemm|conv"):
            if tile := re.search(r"contraction_kernel<.*Tile<(\d+), (\d+), (\d+), (\d+)>", name):
                step = 2 * 8 * int(tile[3]) * int(tile[4])
                assert step in code.multiply_adds(), (arch, name)
                counts.setdefault((file, name), set()).add(sass.multiply_adds(code.main))
    assert len(counts) == 18
    assert {name: len(found) for name, found in counts.items() if len(found) != 1} == {}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_fit_into_the_registers_and_spill_next_to_nothing(kernels, arch):
    for one in cuda.cubins(chosen(kernels, arch), [arch]):
        used = sass.resources(one.log)
        for name, symbol in one.symbols.items():
            assert used[symbol].spilled <= SPILLED, (name, used[symbol])
            if "contraction" in name:  # so that at least two blocks of 128 threads have room
                assert used[symbol].registers <= 255, (name, used[symbol])


def test_both_compilers_agree_on_the_parameters_of_every_kernel(kernels):
    expected = {(one.file, one.name): one.parameters for one in kernels}
    found = {}
    for one in cuda.cubins(kernels, ["sm_75"]):
        sizes = sass.parameters(one.path.read_bytes())
        found |= {(one.file, name): sizes[symbol] for name, symbol in one.symbols.items()}
    assert found == expected
