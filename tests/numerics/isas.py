"""The instruction sets of our kernels that this processor has."""

from __future__ import annotations

import platform
from pathlib import Path

NEEDS = {"baseline": set(), "avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


def _here() -> tuple[str, ...]:
    if platform.machine() != "x86_64":
        return ("neon",)
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split())
    return tuple(name for name, needs in NEEDS.items() if needs <= flags)


ISAS = _here()
