"""The canonical reduction: one fixed binary tree over ranks `0..N-1`, whoever holds which ranks.

A node of `n` leaves splits after the largest power of two below `n`; its value is `left + right`, elementwise, in that
order. So the root's bits depend on the leaves only. What a leaf is (a flat gradient) and how nodes travel is left to
others; a value is a list of tensors that are added pairwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..storage.digest import has_nonfinite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Node = tuple[int, int]
    Value = list[Tensor]


BLOCK = 1 << 16
"""Elements that are worked on at a time on a CPU: a few blocks fit into the cache of a core."""


def split(lo: int, hi: int) -> int:
    """Where a node over the ranks `lo .. hi-1` (at least two) splits: its children are `(lo, mid)` and `(mid, hi)`."""
    return lo + (1 << (hi - lo - 1).bit_length() - 1)


def nodes_of(lo: int, hi: int, total: int) -> list[Node]:
    """The largest nodes of the tree over `0..total-1` that lie inside `lo .. hi-1`, in rank order.

    They cover the range exactly, and there are at most `2 * log2(total)` of them (one, if the range is a node).
    """
    found: list[Node] = []

    def visit(a: int, b: int) -> None:
        if lo <= a and b <= hi:
            found.append((a, b))
        elif a < hi and lo < b:
            mid = split(a, b)
            visit(a, mid)
            visit(mid, b)

    if lo < hi:
        visit(0, total)
    return found


def add_into_left(left: Value, right: Value) -> Value:
    """`left + right` in `left`'s memory."""
    for a, b in zip(left, right, strict=True):
        a.add_(b)
    return left


class PartialStack:
    """Sums the leaves of a contiguous range, pushed in rank order, into the fewest nodes.

    It works like a binary counter: a node is folded as soon as its right child is complete, so at most
    `log2(n) + 1` values are alive for a range that is a node itself, plus one for each node that stays apart.

    Args:
        lo: rank of the first leaf.
        total: N, the number of ranks of the whole tree.
        recycle: gets the memory of values that were added into another.
    """

    def __init__(self, lo: int, total: int, recycle: Callable[[Value], None] | None = None) -> None:
        self._next = lo
        self._total = total
        self._recycle = recycle
        self._entries: list[tuple[Node, Value]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, leaf: Value) -> None:
        """Take the next rank's leaf. The stack owns it from now on and may add to it in place."""
        if self._next >= self._total:
            raise ValueError(f"rank {self._next} does not exist among {self._total}")
        self._entries.append(((self._next, self._next + 1), leaf))
        self._next += 1
        self._fold()

    def waiting(self) -> Value | None:
        """The value that the next leaf would be added to at once, if there is one.

        Whoever adds the leaf to it in place, instead of making a value to push, says so by `added`.
        """
        hi = self._next + 1
        if self._entries and hi <= self._total and self._makes_a_node(self._entries[-1][0], hi):
            return self._entries[-1][1]
        return None

    def added(self) -> None:
        """The next rank's leaf has been added to `waiting()`."""
        (lo, _), value = self._entries.pop()
        self._next += 1
        self._entries.append(((lo, self._next), value))
        self._fold()

    def _fold(self) -> None:
        while len(self._entries) > 1 and self._makes_a_node(self._entries[-2][0], self._next):
            _, right = self._entries.pop()
            (lo, _), left = self._entries.pop()
            self._entries.append(((lo, self._next), add_into_left(left, right)))
            if self._recycle is not None:
                self._recycle(right)

    def _makes_a_node(self, left: Node, hi: int) -> bool:
        """Whether the left node's right sibling ends at `hi`."""
        lo, mid = left
        return split(lo, hi) == mid and nodes_of(lo, hi, self._total) == [(lo, hi)]

    def nodes(self) -> dict[Node, Value]:
        """What has been summed so far: the range's largest complete nodes, in rank order."""
        return dict(self._entries)


def finish(nodes: Mapping[Node, Value], total: int) -> Value:
    """The root's value from nodes that cover `0..total-1`. The given tensors are not changed.

    Raises:
        ValueError: some rank is covered by no node of the tree.
    """
    return _value(nodes, 0, total, total)[0]


def _value(nodes: Mapping[Node, Value], lo: int, hi: int, total: int) -> tuple[Value, bool]:
    """A node's value, and whether its memory is ours to write to."""
    given = nodes.get((lo, hi))
    if given is not None:
        return given, False
    if hi - lo == 1:
        raise ValueError(f"the gradient of rank {lo} is missing among {total}: given are {sorted(nodes)}")
    mid = split(lo, hi)
    left, left_is_ours = _value(nodes, lo, mid, total)
    right, right_is_ours = _value(nodes, mid, hi, total)
    if left_is_ours:
        return add_into_left(left, right), True
    if right_is_ours:  # left + right still, in this order: which operand's NaN survives depends on it
        return [torch.add(a, b, out=b) for a, b in zip(left, right, strict=True)], True
    return [torch.add(a, b) for a, b in zip(left, right, strict=True)], True


def mean(nodes: Mapping[Node, Value], total: int, out: Value) -> bool:
    """The root's value, as by `finish`, divided by `total`; block by block, while the block is in the cache.

    Args:
        nodes: cover `0..total-1`; they are not changed, but for those that `out` shares memory with.
        out: gets it; may be one of the nodes.

    Returns:
        Whether all of it is finite.

    Raises:
        ValueError: some rank is covered by no node of the tree.
    """
    finite = True
    for at, result in enumerate(out):
        wide = torch.float32 if result.itemsize < torch.float32.itemsize else result.dtype
        size = max(1, result.numel()) if result.is_cuda else BLOCK
        sums = []
        for lo in range(0, result.numel(), size):
            (root,) = finish({node: [value[at][lo : lo + size]] for node, value in nodes.items()}, total)
            block = result[lo : lo + size]
            _divide(root, total, block)
            sums.append(block.sum(dtype=wide))
        # a sum may also be too large, or be of an infinity and its opposite
        finite &= not sums or bool(torch.stack(sums).sum().isfinite()) or not has_nonfinite(result)
    return finite


def _divide(root: Tensor, total: int, out: Tensor) -> None:
    if total > 1 and not root.is_cuda:
        torch.div(root, total, out=out)
        return
    if root.data_ptr() != out.data_ptr():
        out.copy_(root)
    if total > 1:  # div() would multiply by 1 / total on a GPU
        torch._foreach_div_([out], total)
