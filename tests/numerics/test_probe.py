"""The same hashes from every instruction set of this processor, from one without fma, and from arm64 under qemu."""

from __future__ import annotations

import pytest
from easyscale.pipeline.numerics import build
from numerics import probe
from numerics.isas import ISAS


@pytest.fixture(scope="module")
def program():
    return str(probe.program(build.isas(), build.compiler()))


@pytest.fixture(scope="module")
def best():
    return probe.here()


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_gives_the_same_bits(program, best, isa):
    assert probe.hashes([program, isa]) == best


def test_the_recorded_hashes_are_these(program):
    """GPUs are held to them. Anew: PYTHONPATH=tests python -m numerics.probe"""
    assert probe.RECORD.read_text() == probe.record(probe.output([program, ""]))


def test_arm64_gives_the_same_bits(best):
    compiler, emulator = probe.arm_tools()
    assert probe.hashes([emulator, str(probe.program(build.ARM, compiler)), "neon"]) == best
