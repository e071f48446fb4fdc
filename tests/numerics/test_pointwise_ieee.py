"""What exact mode leaves to PyTorch's own kernels has one result under every instruction set, in every place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numerics import ieee, reference

CAPABILITIES = ("default", "avx2", "avx512")


@pytest.fixture(scope="module")
def digests():
    script = str(Path(__file__).with_name("ieee.py"))
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script],
            stdout=subprocess.PIPE,
            env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
        )
        for capability in CAPABILITIES
    ]
    return [json.loads(child.communicate()[0]) for child in children]


def test_stock_kernels_of_single_operations_agree_under_every_instruction_set(digests):
    assert len(digests[0]) > 100
    assert {name for name in digests[0] if len({digest[name] for digest in digests}) > 1} == set()


def test_stock_kernels_of_single_operations_do_not_depend_on_the_place_of_an_element(digests):
    assert [name for name, digest in digests[0].items() if "differs" in digest] == []


def test_the_digests_show_what_does_differ(exact):
    """PyTorch's remainder is another beside others than alone; ours is not."""
    x, y = ieee.numbers(1, torch.float32), ieee.numbers(2, torch.float32)
    alone = torch.cat([torch.remainder(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    assert reference.same(torch.remainder(x, y).numpy(), alone.numpy())


def test_remainders_and_rounded_quotients_are_exact(isa):
    random = np.random.default_rng(5)
    words = random.integers(0, 2**32, (2, 3000), np.uint64).astype(np.uint32).view(np.float32)
    near = random.normal(0, 100, (2, 3000)).astype(np.float32)
    special = np.array([0, -0.0, 1, -1, 3, -3, 0.1, np.inf, -np.inf, np.nan, 2**-149, 3e38], np.float32)
    x, y = np.concatenate([words, near, np.stack([values.ravel() for values in np.meshgrid(special, special)])], 1)
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    with np.errstate(all="ignore"):
        assert reference.same(torch.fmod(a, b).numpy(), np.fmod(x, y))
        rest = np.fmod(x, y)
        moved = np.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)
        assert reference.same(torch.remainder(a, b).numpy(), moved)
        assert reference.same(torch.div(a, b, rounding_mode="trunc").numpy(), np.trunc(x / y))
        floor = torch.div(a, b, rounding_mode="floor").numpy()
        exact = np.isfinite(x) & np.isfinite(y) & (y != 0) & (np.abs(x / y) < 2**20)
        assert (floor[exact] == np.floor(x[exact].astype(np.float64) / y[exact].astype(np.float64))).mean() > 0.999
        assert reference.same(floor[exact], np.floor_divide(x[exact], y[exact]))


def test_shrinking_keeps_nan_and_takes_gradients_outside(isa):
    nan = float("nan")
    x = torch.tensor([nan, -1, -0.5, 0, 0.5, 1])
    grad = torch.arange(1.0, 7)
    assert reference.same(torch.nn.functional.softshrink(x).numpy(), np.array([nan, -0.5, 0, 0, 0, 0.5], np.float32))
    expected = np.array([1, 2, 0, 0, 0, 6], np.float32)
    assert reference.same(torch.ops.aten.softshrink_backward(grad, x, 0.5).numpy(), expected)
    assert reference.same(torch.ops.aten.hardshrink_backward(grad, x, 0.5).numpy(), expected)
    inside = np.array([1, 0, 0, 4, 0, 0], np.float32)
    assert reference.same(torch.ops.aten.hardtanh_backward(grad, x, -0.5, 0.5).numpy(), inside)
