"""PyTorch's own table of operators in exact mode: equal bits in every world, or refused in every world."""

from __future__ import annotations

import pytest
from numerics import operators, stand_in, worlds

pytestmark = pytest.mark.timeout(900)  # four worlds at once, one of them without fma


@pytest.mark.parametrize("dtype", operators.DTYPES)
def test_an_operator_has_the_same_bits_everywhere_or_is_refused(dtype, tmp_path):
    best = next(iter(worlds.WORLDS))
    env = stand_in.environment(tmp_path, closed=dtype == "bfloat16")
    device = worlds.start(best, "exact", "operators", dtype, "0/1", "cuda", env=env)
    found = worlds.everywhere("exact", "operators", dtype)
    on_device = worlds.answer(device)
    first, *others = found.values()
    digests = sum(
        not outcome.startswith(("refused", "failed", "no inputs")) for all_ in first.values() for outcome in all_
    )
    assert digests > 1000, "most of the table is covered"
    for name in first:
        assert all(other[name] == first[name] for other in others), name
    differing = {
        name for name in first if name not in operators.OTHERWISE_ON_A_DEVICE and on_device[name] != first[name]
    }
    assert not differing, {name: [*zip(first[name], on_device[name], strict=True)] for name in differing}
