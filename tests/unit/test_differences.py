"""Where two states differ: every tensor and value is named, and how far apart its elements are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from easyscale.storage import trees
from easyscale.storage.differences import Difference, differences
from torch import Tensor


def between(here: Any, there: Any) -> list[Difference]:
    return differences(trees.flatten(here), trees.flatten(there))


def the_one(here: Any, there: Any) -> Difference:
    (found,) = between(here, there)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_elements_are_counted_and_the_largest_distance_is_told_in_ulps(dtype: torch.dtype) -> None:
    here = torch.ones(2, 3, dtype=dtype)
    there = here.clone()
    there[0, 1] = torch.nextafter(there[0, 1], torch.tensor(2.0, dtype=dtype))
    for _ in range(5):
        there[1, 2] = torch.nextafter(there[1, 2], torch.tensor(0.0, dtype=dtype))
    found = the_one({"a": {"w": here}}, {"a": {"w": there}})
    assert (found.name, found.elements, found.of, found.ulps) == ("a/w", 2, 6, 5)
    assert found.what == "2 of 6 elements differ, by up to 5 ulps"


def test_distances_are_right_across_zero_and_over_the_whole_range() -> None:
    tiny = math.ulp(0.0)
    assert the_one(double(tiny), double(-tiny)).ulps == 2
    assert the_one(double(0.0), double(-0.0)).ulps == 0
    largest = torch.finfo(torch.float64).max
    assert the_one(double(largest), double(-largest)).ulps == 2 * 0x7FEFFFFFFFFFFFFF


def double(value: float) -> dict[str, Tensor]:
    return {"x": torch.tensor([value], dtype=torch.float64)}


def test_what_is_no_number_apart_has_no_distance() -> None:
    nans = torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, math.inf])
    found = the_one({"x": nans[0]}, {"x": nans[1]})
    assert (found.elements, found.ulps) == (1, None)
    found = the_one({"x": torch.tensor([1, 2, 3])}, {"x": torch.tensor([1, 5, 4])})
    assert (found.elements, found.of, found.ulps) == (2, 3, None)


def test_equal_states_have_no_difference_whatever_the_order_and_the_bits_of_a_nan() -> None:
    odd = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert between({"a": 1, "x": torch.tensor([math.nan])}, {"x": odd, "a": 1}) == []


def test_other_shapes_values_and_what_is_on_one_side_only_are_named() -> None:
    here = {"shape": torch.zeros(2, 3), "lr": 0.1, "count": 1, "old": None}
    there = {"shape": torch.zeros(3, 2), "lr": 0.2, "count": True, "new": torch.zeros(1)}
    assert {found.name: found.what for found in between(here, there)} == {
        "shape": "float32 [2, 3] and float32 [3, 2]",
        "lr": "0.1 and 0.2",
        "count": "1 and True",
        "old": "is only here",
        "new": "is only there",
    }


def test_complex_eight_bit_and_boolean_tensors_are_compared_too() -> None:
    for dtype in (torch.complex64, torch.bool, torch.uint8, torch.float8_e4m3fn):
        here = torch.zeros(4).to(dtype)
        there = torch.tensor([0.0, 1.0, 0.0, 0.0]).to(dtype)
        assert the_one({"x": here}, {"x": there}).elements == 1
