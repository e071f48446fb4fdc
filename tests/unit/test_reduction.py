"""The canonical tree: whoever adds what, the root has the same bits."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log2

import pytest
import torch
from easyscale.pipeline import reduction
from easyscale.pipeline.reduction import PartialStack, finish, mean, nodes_of, split
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    total = draw(st.integers(1, 40))
    cuts = draw(st.sets(st.integers(1, total - 1))) if total > 1 else set()
    ends = [0, *sorted(cuts), total]
    return total, list(pairwise(ends))


def leaves(total: int) -> list[list[torch.Tensor]]:
    """Values of very different magnitudes, where every order of adding gives other bits."""
    generator = torch.Generator().manual_seed(total)
    return [
        [
            torch.randn(50, generator=generator) * 10.0 ** torch.randint(-6, 6, (50,), generator=generator),
            torch.randn(3, generator=generator, dtype=torch.float64),
        ]
        for _ in range(total)
    ]


def by_definition(values: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    if len(values) == 1:
        return values[0]
    half = 1
    while half * 2 < len(values):
        half *= 2
    return [a + b for a, b in zip(by_definition(values[:half]), by_definition(values[half:]), strict=True)]


def partials(lo: int, hi: int, total: int, in_place: bool = False) -> dict[tuple[int, int], list[torch.Tensor]]:
    stack = PartialStack(lo, total)
    for leaf in leaves(total)[lo:hi]:
        left = stack.waiting()
        if in_place and left is not None:
            for a, b in zip(left, leaf, strict=True):
                a += b
            stack.added()
        else:
            stack.push(leaf)
    return stack.nodes()


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> bytes:
        return tensor.view(torch.uint8).numpy().tobytes()

    return all(bits(a) == bits(b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(("n", "mid"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (40, 32)])
def test_a_node_splits_after_the_largest_power_of_two_below_its_size(n: int, mid: int) -> None:
    assert split(0, n) == mid
    assert split(7, 7 + n) == 7 + mid


@given(partitions(), st.booleans())
def test_any_partition_into_contiguous_ranges_gives_the_bits_of_the_whole(
    partition: tuple[int, list[tuple[int, int]]], in_place: bool
) -> None:
    total, parts = partition
    nodes = {node: value for lo, hi in parts for node, value in partials(lo, hi, total, in_place).items()}
    before = {node: [tensor.clone() for tensor in value] for node, value in nodes.items()}
    assert same(finish(nodes, total), by_definition(leaves(total)))
    assert all(same(nodes[node], before[node]) for node in nodes), "finish changed what it was given"


@given(partitions())
def test_a_range_is_folded_into_its_largest_nodes_and_no_more_than_two_log_n(
    partition: tuple[int, list[tuple[int, int]]],
) -> None:
    total, parts = partition
    for lo, hi in parts:
        nodes = nodes_of(lo, hi, total)
        assert list(partials(lo, hi, total)) == nodes
        assert len(nodes) <= max(1, 2 * ceil(log2(total)))
        assert [rank for a, b in nodes for rank in range(a, b)] == list(range(lo, hi))


@given(st.integers(1, 40))
def test_a_whole_tree_needs_log_n_plus_one_live_buffers(total: int) -> None:
    free: list[list[torch.Tensor]] = []
    allocated = 0
    stack = PartialStack(0, total, free.append)
    for leaf in leaves(total):
        if free:
            free.pop()
        else:
            allocated += 1
        stack.push(leaf)
    assert allocated <= int(log2(total)) + 1
    assert list(stack.nodes()) == [(0, total)]


def test_an_aligned_range_is_one_partial() -> None:
    assert nodes_of(4, 8, 16) == [(4, 8)]
    assert nodes_of(8, 12, 12) == [(8, 12)]
    assert nodes_of(1, 7, 8) == [(1, 2), (2, 4), (4, 6), (6, 7)]
    assert nodes_of(3, 3, 8) == []


def test_a_missing_rank_is_named() -> None:
    nodes = {**partials(0, 2, 5), **partials(3, 5, 5)}
    with pytest.raises(ValueError, match="rank 2 is missing among 5"):
        finish(nodes, 5)


def test_more_leaves_than_ranks_are_refused() -> None:
    stack = PartialStack(1, 2)
    stack.push([torch.zeros(1)])
    with pytest.raises(ValueError, match="rank 2 does not exist among 2"):
        stack.push([torch.zeros(1)])


def test_left_plus_right_keeps_its_order_for_not_a_numbers() -> None:
    """x86 gives the first operand's payload, so the order of operands is part of the bits."""
    payloads = [0x7FC00001, 0x7FC00002, 0x7FC00003, 0x7FC00004]
    values = [[torch.tensor([p], dtype=torch.int32).view(torch.float32)] for p in payloads]
    whole = PartialStack(0, 4)
    for value in values:
        whole.push([value[0].clone()])
    nodes = {(0, 2): [values[0][0] + values[1][0]], (2, 3): values[2], (3, 4): values[3]}
    assert same(finish(nodes, 4), whole.nodes()[0, 4])


# ---- the mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("size", [0, 1, 65, reduction.BLOCK, 2 * reduction.BLOCK + 7])
def test_the_mean_is_the_root_divided_in_whatever_memory(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    ranks = [[torch.randn(size, generator=generator).to(dtype), -torch.zeros(3, dtype=dtype)] for _ in range(5)]
    nodes = {(rank, rank + 1): value for rank, value in enumerate(ranks)}
    expected = [root / 5 for root in finish(nodes, 5)]
    given = {node: [tensor.clone() for tensor in value] for node, value in nodes.items()}
    elsewhere = [torch.empty_like(tensor) for tensor in ranks[0]]
    assert mean(given, 5, elsewhere)
    assert same(elsewhere, expected)
    assert all(same(given[node], nodes[node]) for node in nodes), "the nodes stay as they are"
    assert mean(given, 5, given[3, 4])
    assert same(given[3, 4], expected), "but for the one that it is written to"


def test_the_mean_of_one_is_itself() -> None:
    leaf = [torch.tensor([1.5, -0.0, 3.0])]
    out = [torch.empty(3)]
    assert mean({(0, 1): leaf}, 1, out)
    assert same(out, leaf)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, reduction.BLOCK + 3, 2 * reduction.BLOCK])
def test_what_is_not_finite_is_found_wherever_it_is(bad: float, at: int) -> None:
    leaf = torch.ones(2 * reduction.BLOCK + 1)
    leaf[at] = bad
    assert not mean({(0, 1): [torch.ones(3), leaf]}, 1, [torch.empty(3), torch.empty_like(leaf)])


def test_sums_too_large_for_the_type_are_no_infinities() -> None:
    assert mean({(0, 1): [torch.full((10,), 3e38)]}, 1, [torch.empty(10)])
    assert mean({(0, 1): [torch.full((10,), 6e4, dtype=torch.float16)]}, 1, [torch.empty(10, dtype=torch.float16)])
    both = torch.tensor([float("inf"), -float("inf")])
    assert not mean({(0, 1): [both]}, 1, [torch.empty(2)])
