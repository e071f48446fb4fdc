"""What exact mode takes from PyTorch as it is gives the same bits under every instruction set, in every place."""

from __future__ import annotations

import pytest
from numerics import worlds


@pytest.fixture(scope="module")
def everywhere():
    return worlds.everywhere("native", "stock")


def test_operators_that_are_left_to_pytorch_give_the_same_bits_in_every_world(everywhere):
    one, *others = everywhere.items()
    assert len(one[1]) > 100
    assert {name for name, found in one[1].items() if found.startswith("failed")} == set()
    for world, found in others:
        assert {name for name in found if found[name] != one[1][name]} == set(), world


def test_their_results_do_not_depend_on_the_place_of_an_element(everywhere):
    for found in everywhere.values():
        assert [name for name, outcome in found.items() if "differs" in outcome] == []
