"""Memory that was freed is there again, without a page fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from easyscale.pipeline import heap
if sys.argv[1] == "keep":
    heap.keep()
def step():  # blocks that the C library never keeps by itself
    return [torch.ones(10_000_000) for _ in range(3)]
for _ in range(6):  # until all have found their places
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_the_next_step_finds_the_memory_of_the_last() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-P", "-c", FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("keep", "return")
    }
    assert faults["keep"] < 1000 < faults["return"]
