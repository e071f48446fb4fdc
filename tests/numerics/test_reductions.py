"""Reductions are accumulated in the specified order, whatever the layout, threads and instruction set."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numerics import reference

SHAPES = [(1,), (5, 0), (16, 17), (1030, 7), (7, 1030), (3, 2100), (2100, 33), (2, 3, 300, 5), (4, 16, 9, 9)]


def values(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layouts(x):
    """The same kind of values, laid out in every way that tensors arrive in."""
    yield x
    yield x.transpose(0, -1)
    yield x[..., ::2]
    yield x[:1].expand(4, *x.shape[1:])
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)


def reduced_dims(x):
    yield from {(0,), (x.dim() - 1,), tuple(range(x.dim()))}
    if x.dim() == 4:
        yield from ((0, 2, 3), (1,), (1, 3))


def rows(x, dims):
    """The reduced dimensions last, as one, in row-major order."""
    x = (x if x.dtype == torch.float64 else x.float()).numpy()
    kept = [d for d in range(x.ndim) if d not in dims]
    length = int(np.prod([x.shape[d] for d in dims]))
    return x.transpose(kept + sorted(dims)).reshape(*(x.shape[d] for d in kept), length)


def same(tensor, expected):
    return reference.same(tensor.numpy(), expected)


@cache
def cases(shape):
    """Tensors, the dimensions to reduce, and the sums in single and in double precision."""
    return [
        (x, dims, reference.reduce(rows(x, dims)), reference.reduce(rows(x.double(), dims)))
        for x in layouts(values(*shape))
        for dims in reduced_dims(x)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_is_the_specified_lanes_and_tree_in_every_layout(isa, threads, shape):
    for x, dims, single, double in cases(shape):
        assert same(x.sum(dims), single)
        assert same(x.double().sum(dims), double)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_halves_is_accumulated_in_single_precision_and_rounded_once(exact, dtype):
    x = values(3, 1500).to(dtype)
    total = torch.from_numpy(reference.reduce(rows(x, (1,))))
    assert same(x.sum(1).float(), total.to(dtype).float().numpy())
    assert same(x.mean(1).float(), (total / 1500).to(dtype).float().numpy())
    assert same(x.sum(1, dtype=torch.float32), total.numpy())
