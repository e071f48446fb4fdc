"""CUDA's kernels without a GPU: their source as C++, thread by thread, to the bits of the CPU's."""

from __future__ import annotations

import subprocess

import pytest
import tally
from easyscale.pipeline.numerics import build
from numerics import probe

CUTS = {
    "as usual": {},
    "large tiles, one block at a time": {"ES_TILE": "1", "ES_BLOCKS": "1"},
    "a segment for each chunk": {"ES_TILE": "2", "ES_SEGMENT": "1"},
    "small tiles, few blocks, backwards": {"ES_TILE": "3", "ES_SEGMENT": "2", "ES_BLOCKS": "3", "ES_SHIM_ORDER": "1"},
}
"""How the work is cut, and in which order threads and blocks run."""


@pytest.fixture(scope="module")
def best():
    return probe.here()


@pytest.mark.parametrize("cut", CUTS)
def test_the_kernels_of_cuda_give_the_bits_of_the_cpu_however_the_work_is_cut(best, cut):
    assert len(best) > 1500
    assert probe.hashes([str(probe.with_cuda()), "cuda"], **CUTS[cut]) == best
    tally.add("cuda", "hashes that equal the CPU's, on the shim", len(best))


def test_the_kernels_of_cuda_stay_within_their_memory_and_within_what_c_defines(best):
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")
    found = probe.hashes([str(probe.with_cuda(flags)), "cuda"], ES_TILE="2", ASAN_OPTIONS="detect_leaks=0")
    assert found == best
    tally.add("cuda", "hashes that equal the CPU's, under sanitizers", len(best))


WRONG = """
#include "device.h"
ES_KERNEL void wrong_kernel(int* out, int what) {
  ES_SHARED(int, all, 64);
  if (what == 1 && threadIdx.x == 5) return;
  if (what == 2) all[threadIdx.x + 1] = 0;
  __syncthreads();
  out[threadIdx.x] = all[63];
}
int main(int count, char**) {
  int out[64] = {};
  ES_LAUNCH(1, 64, wrong_kernel, out, count - 1);
  return out[0] != -1;
}
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [(0, ""), (1, "threads of a block do not meet at a barrier"), (2, "thread 63: shared memory is indexed out of")],
)
def test_the_shim_finds_what_is_wrong_with_a_kernel(tmp_path, what, told):
    """And shared memory that nobody has written is no zeros."""
    source = tmp_path / "wrong.cc"
    source.write_text(WRONG)
    cuda, program = build.SOURCES / "cuda", tmp_path / "wrong"
    files = [str(source), *(str(cuda / name) for name in ("shim.cc", "device.cc", "launch.cc"))]
    subprocess.run([build.compiler(), "-std=c++20", f"-I{cuda}", *files, "-o", str(program)], check=True)
    done = subprocess.run([str(program), *["x"] * what], capture_output=True, text=True, check=False)
    assert told in done.stderr
    assert (done.returncode == 0) == (not told)
