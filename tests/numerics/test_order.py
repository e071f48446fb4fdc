"""The orders of accumulation, seen from outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numerics import reference


@pytest.mark.parametrize("k", [0, 1, 3, 511, 512, 513, 1024, 1500, 2600])
def test_a_matrix_product_is_the_specified_chain_and_tree(isa, threads, k):
    generator = torch.Generator().manual_seed(k)
    a, b = torch.randn(5, k, generator=generator), torch.randn(k, 7, generator=generator)
    assert reference.same((a @ b).numpy(), reference.contract(a.numpy(), b.numpy()))


def test_the_reference_rounds_a_product_and_a_sum_once():
    x = np.float32(1 + 2**-12)
    assert reference.fma(x, x, np.float32(-1 - 2**-11)) == np.float32(2**-24)
    tiny = np.float32(2**-149)
    assert reference.fma(tiny, np.float32(0.5), tiny) == np.float32(2**-148), "a tie goes to the even one"
