"""Scalar functions: the specified bits on hostile and ordinary values, and how far they are from the truth."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import exhaustive, reference
from numerics import reference_functions as specified
from numerics.isas import ISAS

NAMES = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "rsqrt", "sin", "cos")

HALF_A_UNIT = (
    "log2",
    "log10",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
    "erfinv",
)
"""Computed in binary64."""


def words(count, seed):
    """Every kind of float: random words, with all exponents, infinities, NaN and subnormals."""
    return np.random.default_rng(seed).integers(0, 2**32, count, np.uint64).astype(np.uint32).view(np.float32)


# fmt: off
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2**-149, -(2**-149), 2**-126, 3.4e38, -3.4e38, 88.72, 88.73, -87.4,
     -103.9, -104, 0.5, 2, -0.99999994, 1e-20, 0.999, 9.1, 71476, 71477, 1e30, -1e30, 4, 20, -18.1],
    np.float32,
)
# fmt: on


def units(result, truth):
    """Distance in units of the last place of the truth."""
    truth = np.asarray(truth, np.float64)
    exponent = np.maximum(np.frexp(truth)[1] - 24, -149)
    return np.abs(result.astype(np.float64) - truth) / np.ldexp(1.0, exponent)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_has_the_specified_bits_on_every_kind_of_number(isa, name):
    x = np.concatenate([SPECIAL, words(3000, 1), np.random.default_rng(2).normal(0, 3, 3000).astype(np.float32)])
    if name in ("sin", "cos"):
        x = x[np.abs(x) <= 71476]
    with np.errstate(all="ignore"):
        expected = getattr(specified, name)(x)
    assert reference.same(getattr(torch, name)(torch.from_numpy(x)).numpy(), np.asarray(expected, np.float32))


@pytest.mark.parametrize("name", [*NAMES, "exp2", *HALF_A_UNIT])
def test_a_function_is_within_one_unit_of_the_last_place(name):
    x = np.concatenate([words(100000, 3), np.random.default_rng(4).normal(0, 2, 50000).astype(np.float32), SPECIAL])
    function = getattr(torch, name)
    truth = function(torch.from_numpy(x).double()).numpy()
    with library.exact():
        result = function(torch.from_numpy(x)).numpy()
    finite = np.isfinite(truth) & (np.abs(truth) < 3.4e38)
    assert (np.isnan(result) == np.isnan(truth)).all()
    assert (units(result[finite], truth[finite]) <= (0.51 if name in HALF_A_UNIT else 1.0)).all()
    infinite = np.isinf(truth)
    assert (result[infinite] == truth[infinite]).all()
    assert (np.signbit(result[truth == 0]) == np.signbit(truth[truth == 0])).all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_have_equal_bits_beside_small_ones_and_alone(isa, name):
    x = torch.from_numpy(np.concatenate([words(500, 5), SPECIAL]))
    function = getattr(torch, name)
    alone = torch.stack([function(x[i : i + 1])[0] for i in range(len(x))])
    assert reference.same(function(x).numpy(), alone.numpy())


def test_a_power_follows_ieee_for_every_pair_of_special_numbers(isa):
    numbers = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 2**-149, 1e38, 2**24, 2**24 - 1, 7.5]
    x, y = (torch.tensor(values.ravel()) for values in np.meshgrid(*[np.array(numbers, np.float32)] * 2))
    with np.errstate(all="ignore"):
        expected = np.power(x.double().numpy(), y.double().numpy()).astype(np.float32)
    assert reference.same(torch.pow(x, y).numpy(), expected)


def test_a_power_is_within_half_a_unit_and_a_bit(exact):
    random = np.random.default_rng(6)
    x, y = np.exp(random.normal(0, 3, 50000)).astype(np.float32), random.normal(0, 8, 50000).astype(np.float32)
    truth = np.power(x.astype(np.float64), y.astype(np.float64))
    inside = (truth < 3.4e38) & (truth > 1e-37)
    assert (units(torch.pow(torch.tensor(x), torch.tensor(y)).numpy(), truth)[inside] <= 0.51).all()
    scalar = torch.pow(torch.tensor(x), 1.7).numpy()
    assert reference.same(scalar, torch.pow(torch.tensor(x), torch.full((50000,), 1.7)).numpy())


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (2, lambda x: x * x),
        (3, lambda x: x * x * x),
        (0.5, np.sqrt),
        (-1, lambda x: np.float32(1) / x),
        (-2, lambda x: np.float32(1) / (x * x)),
        (-0.5, specified.rsqrt),
        (1, lambda x: x),
        (0, np.ones_like),
    ],
)
def test_some_exponents_are_products_quotients_and_roots(isa, exponent, expected):
    x = np.concatenate([SPECIAL, words(500, 7)])
    with np.errstate(all="ignore"):
        assert reference.same(torch.pow(torch.from_numpy(x), exponent).numpy(), np.asarray(expected(x), np.float32))


@pytest.mark.parametrize("set_of_instructions", ISAS)
def test_hashes_over_a_sample_of_all_numbers_are_those_of_the_repository(set_of_instructions):
    fast = set_of_instructions in ("avx512", "avx2")
    found = dict(exhaustive.hashes(set_of_instructions, "sample", [] if fast else ["exp", "tanh"]))
    assert found
    recorded = json.loads(exhaustive.RECORD.read_text())["sample"]
    assert found == (recorded if fast else {name: recorded[name] for name in found})
