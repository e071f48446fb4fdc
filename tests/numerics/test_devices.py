"""What PyTorch composes, casts or draws otherwise on a GPU is in exact mode what it is on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import devices, stand_in, worlds
from once import once


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def run() -> Any:
        env = stand_in.environment(tmp_path_factory.mktemp("driver"), closed=True)
        return worlds.answer(worlds.start(worlds.BEST, "exact", "devices", env=env))

    return once(tmp_path_factory, "devices", run)


@pytest.mark.parametrize("name", devices.WORK)
def test_both_devices_come_to_the_same(found: Any, name: str) -> None:
    ours, theirs = found["digests"][name]
    assert ours == theirs


def test_ways_of_an_optimizer_that_differ_are_told_apart(found: Any) -> None:
    """Else the test above would prove nothing: on a GPU PyTorch would take the second of these by itself."""
    digests = {name: found["digests"][f"optimizer-{name}"][0] for name in ("adamw", "adamw-foreach")}
    assert len(set(digests.values())) == 2


def test_a_generator_of_a_gpu_is_refused_with_what_to_do(found: Any) -> None:
    assert "a generator of cuda:0" in found["refusal"]
    assert "use torch.Generator() without a device" in found["refusal"]


def test_a_state_is_copied_beside_training_before_it_changes(found: Any) -> None:
    """The stand-in copies as late as it may: without order between the streams it would copy a later state."""
    ours, theirs, unordered = found["snapshots"]
    assert ours == theirs != unordered


def test_every_operator_that_autocast_knows_on_a_cpu_is_cast_likewise() -> None:
    """The lists of PyTorch's that ours were made for: with another version they have to be read again."""
    narrow, wide, widest, alone = library.casts()
    assert (len(narrow), len(wide), len(widest)) == (24, 100, 3), torch.__version__
    assert {"aten::layer_norm", "aten::softmax.int", "aten::sum"} <= set(alone)
