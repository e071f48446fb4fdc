"""Code of one instruction set stays its own: the linker must have nothing to choose between."""

from __future__ import annotations

import subprocess

import pytest
from easyscale.pipeline.numerics import build


@pytest.mark.parametrize("isa", build.isas())
def test_no_function_is_shared_between_instruction_sets(isa):
    """A weak symbol is kept once: it might be the one for AVX-512, on a processor without it."""
    units = [unit for unit in build.kernel_units(build.isas()) if f"-DES_ISA={isa}" in unit.flags]
    objects = build.objects(units, build.compiler())
    assert objects
    shared = set()
    for path in objects:
        listed = subprocess.run(["nm", "-C", "--defined-only", str(path)], capture_output=True, text=True, check=True)
        symbols = [line.split(None, 2)[1:] for line in listed.stdout.splitlines()]
        shared |= {name for kind, name in symbols if kind in "WVu" and f"es::{isa}::" not in name}
    assert shared <= {"DW.ref.__gxx_personality_v0"}, "a pointer, the same for all"
