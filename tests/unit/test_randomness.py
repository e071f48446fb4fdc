"""Derived randomness: a function of the purpose, and of nothing that ran before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from easyscale.pipeline.randomness import (
    derive,
    preserved,
    seed_everything,
    seed_sample,
    seed_step,
)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_derived_seeds_never_change_from_release_to_release() -> None:
    assert derive(1, "step", 7, 0) == 1929271802347603955
    assert derive(2**63 - 1, "build") == 14157947992777776446


def test_derived_seeds_differ_by_every_part_and_by_the_type_of_a_part() -> None:
    seeds = {
        derive(1, "step", 2, 3),
        derive(1, "step", 3, 2),
        derive(2, "step", 1, 3),
        derive(1, "sample", 2, 3),
        derive(1, "step", 23),
        derive(1, "step", "2", 3),
        derive(1, "step2", 3),
    }
    assert len(seeds) == 7


@pytest.mark.parametrize("value", [0, 1, 2**32, 2**64 - 1])
def test_seeding_fixes_all_three_generators(value: int) -> None:
    seed_everything(value)
    first = draw()
    draw()
    seed_everything(value)
    assert draw() == first


def test_steps_ests_and_samples_have_numbers_of_their_own() -> None:
    drawn = []
    for seed in (seed_step, seed_sample):
        for parts in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)):
            seed(*parts)
            drawn.append(draw())
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == len(drawn)


def test_preserved_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    seed_everything(3)
    expected = [draw(), draw()]
    seed_everything(3)
    got = [draw()]
    with preserved():
        seed_everything(4)
        draw()
    assert [*got, draw()] == expected
