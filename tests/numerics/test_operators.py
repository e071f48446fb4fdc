"""PyTorch's own table of operators in exact mode: equal bits in every world, or refused in every world."""

from __future__ import annotations

import pytest
from numerics import operators, worlds

pytestmark = pytest.mark.timeout(900)  # three worlds at once, one of them without fma


@pytest.mark.parametrize("dtype", operators.DTYPES)
def test_an_operator_has_the_same_bits_everywhere_or_is_refused(dtype):
    found = worlds.everywhere("exact", "operators", dtype)
    first, *others = found.values()
    digests = sum(
        not outcome.startswith(("refused", "failed", "no inputs")) for all_ in first.values() for outcome in all_
    )
    assert digests > 1000, "most of the table is covered"
    for name in first:
        assert all(other[name] == first[name] for other in others), name
