"""Bags of embeddings: sums in order of the positions, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference
from numerics import reference_scatter as ours
from torch.nn import functional as F  # noqa: N812

OFFSETS = [0, 3, 3, 10, 30]
ROWS, WIDTH, COUNT = 11, 21, 40


def numbers(seed, *shape, dtype=torch.float32):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-8, 8, shape)
    return torch.from_numpy(x.astype(np.float32)).to(dtype)


def halves(x, dtype):
    return torch.from_numpy(np.asarray(x)).to(dtype).float().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted", "sum by frequency", "mean by frequency", "last offset"])
@pytest.mark.parametrize("padding", [None, 2])
def test_sums_of_bags_and_their_gradients_are_chains(isa, threads, dtype, mode, padding):
    index = torch.from_numpy(np.random.default_rng(1).integers(0, ROWS, COUNT))
    table = numbers(2, ROWS, WIDTH, dtype=dtype).requires_grad_()
    weights = numbers(3, COUNT, dtype=dtype).requires_grad_() if mode == "weighted" else None
    arguments = {"mode": "mean" if "mean" in mode else "sum", "scale_grad_by_freq": "frequency" in mode}
    last = mode == "last offset"
    offsets = torch.tensor([*OFFSETS, COUNT] if last else OFFSETS)
    y = F.embedding_bag(
        index, table, offsets, per_sample_weights=weights, padding_idx=padding, include_last_offset=last, **arguments
    )
    kept = [p for p in range(COUNT) if index[p] != padding]
    bag = [sum(start <= p for start in OFFSETS) - 1 for p in range(COUNT)]
    size = np.bincount([bag[p] for p in kept], minlength=len(OFFSETS)).astype(np.float32)
    rows = table.detach().float().numpy()
    scale = [weights.detach().float()[p].item() for p in kept] if weights is not None else None
    wanted = ours.put(
        np.zeros((len(OFFSETS), WIDTH), np.float32), [bag[p] for p in kept], [rows[index[p]] for p in kept], scale=scale
    )
    if "mean" in mode:
        wanted /= np.maximum(size, 1)[:, None]
    assert reference.same(y.detach().float().numpy(), halves(wanted, dtype))

    grad = numbers(4, *y.shape, dtype=dtype)
    y.backward(grad)
    each = grad.float().numpy()
    factor = np.array(scale if scale else np.ones(len(kept)), np.float32)
    if "frequency" in mode:
        factor = factor / np.bincount(index.numpy()).astype(np.float32)[index[kept].numpy()]
    if "mean" in mode:
        factor = factor / size[[bag[p] for p in kept]]
    back = ours.put(
        np.zeros((ROWS, WIDTH), np.float32), index[kept].tolist(), [each[bag[p]] for p in kept], scale=factor
    )
    assert reference.same(table.grad.float().numpy(), halves(back, dtype))
    if weights is not None:
        products = [
            reference.contract(each[None, bag[p]], rows[index[p]][:, None])[0, 0] if p in kept else np.float32(0)
            for p in range(COUNT)
        ]
        assert reference.same(weights.grad.float().numpy(), halves(products, dtype))


def test_without_gradients_a_bag_is_the_same(isa):
    index, table = torch.tensor([[1, 2, 2], [0, 3, 1]]), numbers(1, 5, 9)
    for mode in ("sum", "mean", "max"):
        with_gradients = F.embedding_bag(index, table.clone().requires_grad_(), mode=mode)
        assert torch.equal(F.embedding_bag(index, table, mode=mode), with_gradients)
    assert F.embedding_bag(torch.empty(0, dtype=torch.long), table, torch.tensor([0, 0])).tolist() == [[0.0] * 9] * 2


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_describes_bags_is_what_pytorch_says_and_so_are_maxima(mode, last, padding, kind):
    index = torch.from_numpy(np.random.default_rng(1).integers(0, ROWS, COUNT)).to(kind)
    table = numbers(2, ROWS, WIDTH)
    table[3, 4] = torch.nan
    for count, starts in ((COUNT, OFFSETS), (0, [0, 0])):
        offsets = torch.tensor([*starts, count] if last else starts, dtype=kind)
        arguments = table, index[:count], offsets, False, mode, False, None, last, padding
        for operator in (torch._embedding_bag, torch._embedding_bag_forward_only):
            stock = operator(*arguments)
            with library.exact():
                ours = operator(*arguments)
            first = 0 if mode == 2 else 1 if len(stock[1]) else 2  # PyTorch leaves out the bags of some sums
            for mine, theirs in zip(ours[first:], stock[first:], strict=True):
                assert mine.dtype == theirs.dtype
                assert mine.shape == theirs.shape
                assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())


def test_bags_that_cannot_be_are_refused_in_pytorchs_words(exact):
    table, index = numbers(1, 5, 9), torch.tensor([1, 2, 2])
    with pytest.raises(RuntimeError, match=r"offsets\[0\] has to be 0.*However, got 1"):
        F.embedding_bag(index, table, torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"greater than input's length 3 but got offsets\[-1\] of 4"):
        F.embedding_bag(index, table, torch.tensor([0, 4]))
    with pytest.raises(RuntimeError, match="Expected idx >= 0 && idx < num_embeddings but found idx to be 7"):
        F.embedding_bag(torch.tensor([1, 7, 9]), table, torch.tensor([0]))


def test_the_gradient_of_a_maximum_goes_to_the_first_row_that_has_it(isa, threads):
    index = torch.from_numpy(np.random.default_rng(1).integers(0, ROWS, (50, 8)))
    table, grad = numbers(2, ROWS, WIDTH).requires_grad_(), numbers(3, 50, WIDTH)
    F.embedding_bag(index, table, mode="max").backward(grad)
    rows = table.detach().numpy()[index.numpy()]  # bag, position, column
    best = index.numpy()[np.arange(50)[:, None], rows.argmax(1)]
    wanted = ours.scatter(np.zeros((ROWS, WIDTH), np.float32), 0, best, grad.numpy())
    assert reference.same(table.grad.numpy(), wanted)


def test_float64_is_refused(exact):
    with pytest.raises(RuntimeError, match="not exact"):
        F.embedding_bag(torch.tensor([[0, 1]]), torch.zeros(3, 4, dtype=torch.float64))
