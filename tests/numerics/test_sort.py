"""Sorting: the order that PyTorch's stable sort has on a CPU, for every type, along any dimension, in any layout."""

from __future__ import annotations

import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics.isas import ISAS

TYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
]


def elements(dtype, *shape):
    """Many are equal; of floats some are NaN, zeros of either sign or infinite."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 40
    if not dtype.is_floating_point:
        return x.to(torch.int64).to(dtype)
    flat = x.to(dtype).flatten()
    flat[flat.abs() < 9] = 0
    odd = torch.tensor([torch.nan, -torch.nan, -0.0, 0.0, torch.inf, -torch.inf])
    flat[::7] = odd.repeat(len(flat))[: len(flat[::7])].to(dtype)
    return flat.view(shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_gives_what_a_stable_sort_gives(isa, threads, dtype, descending):
    for x, dim in (
        (elements(dtype, 1000), 0),
        (elements(dtype, 40, 30), 1),
        (elements(dtype, 300, 5), 0),
        (elements(dtype, 6, 100, 4).transpose(0, 1)[::2], 1),
        (elements(dtype, 3, 0), 1),
        (elements(dtype, 1)[0], 0),
    ):
        stock = torch.sort(x, stable=True, dim=dim, descending=descending)
        with library.exact(isa):
            ours = torch.sort(x, dim=dim, descending=descending)
        assert torch.equal(ours.indices, stock.indices)
        assert torch.equal(ours.values.double().nan_to_num(7.5), stock.values.double().nan_to_num(7.5))
        assert torch.equal(ours.values.double().signbit(), stock.values.double().signbit())


def test_the_first_of_equals_is_among_the_largest(exact):
    x = torch.tensor([[1.0, 3.0, -0.0, 3.0, torch.nan, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]])
    assert x.topk(3).indices.tolist() == [[4, 1, 3], [0, 1, 2]]
    assert x.topk(3, largest=False).indices.tolist() == [[2, 5, 0], [0, 1, 2]]
    values, indices = torch.empty(6, 2).t(), torch.empty(6, 2, dtype=torch.long).t()
    torch.sort(x, out=(values, indices))
    assert indices.tolist() == [[2, 5, 0, 1, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert values[0, 2:5].tolist() == [1.0, 3.0, 3.0]


def test_what_has_no_order_is_refused(exact):
    with pytest.raises(RuntimeError, match="omplex"):
        torch.zeros(3, dtype=torch.complex64).sort()
