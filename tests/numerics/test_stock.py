"""What exact mode takes from PyTorch as it is gives the same bits under every instruction set."""

from __future__ import annotations

from numerics import worlds


def test_operators_that_are_left_to_pytorch_give_the_same_bits_in_every_world():
    one, *others = worlds.everywhere("native", "stock").items()
    assert {name for name, found in one[1].items() if found.startswith("failed")} == set()
    for world, found in others:
        assert {name for name in found if found[name] != one[1][name]} == set(), world
