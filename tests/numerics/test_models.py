"""Whole models: one digest in every world in exact mode, the one in the repository; several with stock PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from numerics import stand_in, worlds, zoo

pytestmark = pytest.mark.timeout(900)  # three worlds at once, one of them without fma

STEPS = 20
RECORDED = Path(__file__).with_name("models.json")


@pytest.fixture(scope="module")
def exact():
    return worlds.everywhere("exact", "zoo", str(STEPS))


@pytest.fixture(scope="module")
def native():
    return worlds.everywhere("native", "zoo", str(STEPS), worlds=[*worlds.WORLDS][::2])


@pytest.mark.parametrize("name", zoo.MODELS)
def test_a_model_trained_exactly_has_the_recorded_digest_everywhere(exact, name):
    recorded = json.loads(RECORDED.read_text())
    for optimizer in zoo.OPTIMIZERS:
        found = {world: digests[f"{name}/{optimizer}"] for world, digests in exact.items()}
        assert found == dict.fromkeys(worlds.WORLDS, recorded[f"{name}/{optimizer}"])


@pytest.mark.parametrize("name", zoo.MODELS)
def test_stock_kernels_give_another_model_in_each_world(native, name):
    """Else the test above would prove nothing."""
    for optimizer in zoo.OPTIMIZERS:
        assert len({digests[f"{name}/{optimizer}"] for digests in native.values()}) > 1


def test_a_model_trained_on_a_device_has_the_digest_of_the_cpu(tmp_path):
    """Through PyTorch's dispatcher and autograd for CUDA, with the kernels of CUDA; see `stand_in`."""
    on_device = worlds.start(worlds.BEST, "exact", "zoo", "2", device="cuda", env=stand_in.environment(tmp_path))
    cpu = worlds.answer(worlds.start(worlds.BEST, "exact", "zoo", "2"))
    assert worlds.answer(on_device) == cpu
    assert len(cpu) == len(zoo.MODELS) * len(zoo.OPTIMIZERS)
    assert not [name for name, digest in cpu.items() if "Error" in digest]
