"""Lookups and scatters: values that meet are combined one after the other, in the index's row-major order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numerics import reference
from numerics import reference_scatter as ours
from torch.nn import functional as F  # noqa: N812

HALVES = [torch.float32, torch.bfloat16, torch.float16]


def numbers(seed, *shape, dtype=torch.float32):
    """Of many magnitudes, so that another order gives other bits."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-8, 8, shape)
    return torch.from_numpy(x.astype(np.float32)).to(dtype)


def indices(seed, end, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, end, shape))


def floats(x):
    return x.detach().float().numpy().copy()


def rounded(x, dtype):
    return torch.from_numpy(np.asarray(x)).to(dtype).float().numpy()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(7, 5, (60,)), (300, 33, (40, 30)), (4, 1, (3, 0)), (3, 64, (800,))]
)
def test_gradients_of_an_embedding_are_added_in_order_of_the_indices(isa, threads, dtype, rows, width, shape):
    index = indices(1, rows, *shape)
    weight = numbers(2, rows, width, dtype=dtype).requires_grad_()
    grad = numbers(3, *shape, width, dtype=dtype)
    F.embedding(index, weight, padding_idx=1).backward(grad)
    flat = floats(grad).reshape(-1, width)
    kept = [p for p, row in enumerate(index.flatten().tolist()) if row != 1]
    wanted = ours.put(np.zeros((rows, width), np.float32), [int(index.flatten()[p]) for p in kept], flat[kept])
    assert reference.same(floats(weight.grad), rounded(wanted, dtype))


def test_gradients_of_an_embedding_by_frequency_have_a_factor_each(isa):
    index, grad = indices(1, 9, 200), numbers(3, 200, 20)
    weight = numbers(2, 9, 20).requires_grad_()
    F.embedding(index, weight, scale_grad_by_freq=True).backward(grad)
    count = np.bincount(index.numpy(), minlength=9).astype(np.float32)
    scale = np.float32(1) / count[index.numpy()]
    wanted = ours.put(np.zeros((9, 20), np.float32), index.tolist(), grad.numpy(), scale=scale)
    assert reference.same(weight.grad.numpy(), wanted)


def variants(x):
    """The same values in several layouts."""
    yield x.clone()
    yield x.clone().mT.contiguous().mT if x.dim() > 1 else x.clone()
    yield torch.stack([x, x], -1)[..., 1]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
def test_a_scatter_combines_in_order_of_the_index(isa, how, dim, dtype):
    target, index, source = numbers(1, 4, 5, 6), indices(2, 4, 3, 4, 5), numbers(3, 4, 5, 6)
    target, source = target.to(dtype), source.to(dtype)
    wanted = rounded(ours.scatter(floats(target), dim % 3, index.numpy(), floats(source), how), dtype)
    for self, at, values in zip(variants(target), variants(index), variants(source), strict=True):
        assert reference.same(floats(self.scatter_reduce(dim, at, values, how)), wanted)
        if how == "sum":
            assert reference.same(floats(self.scatter_add(dim, at, values)), wanted)
            assert reference.same(floats(self.scatter(dim, at, values, reduce="add")), wanted)
            out = torch.empty(0, dtype=dtype)
            torch.scatter_add(self, dim, at, values, out=out)
            assert reference.same(floats(out), wanted)
        self.scatter_reduce_(dim, at, values, how)
        assert reference.same(floats(self), wanted)


@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("include", [True, False])
def test_a_scatter_by_one_index_for_whole_rows_is_the_same_as_by_one_for_each(isa, threads, how, include):
    target, source, column = numbers(1, 50, 40), numbers(3, 3000, 40), indices(2, 30, 3000)
    wide = column[:, None].expand(3000, 40)
    one = target.scatter_reduce(0, wide, source, how, include_self=include)
    assert torch.equal(one, target.scatter_reduce(0, wide.contiguous(), source, how, include_self=include))
    held = floats(target)
    if not include:
        held[:30] = {"prod": 1, "amax": -np.inf, "amin": np.inf}.get(how, 0)
    wanted = ours.put(held, column.tolist(), source.numpy(), "sum" if how == "mean" else how)
    if how == "mean":
        count = np.bincount(column.numpy(), minlength=50) + include
        wanted /= np.maximum(count, 1).astype(np.float32)[:, None]
    assert reference.same(one.numpy(), wanted)


def test_a_scatter_of_a_vector_and_of_numbers(isa, threads):
    target, index, source = numbers(1, 13), indices(2, 13, 40_000), numbers(3, 40_000)
    wanted = ours.scatter(floats(target), 0, index.numpy(), source.numpy())
    assert reference.same(target.scatter_add(0, index, source).numpy(), wanted)
    wanted = ours.scatter(floats(target), 0, index.numpy()[:9], np.full(9, 0.3, np.float32), "prod")
    assert reference.same(target.scatter(0, index[:9], 0.3, reduce="multiply").numpy(), wanted)
    assert torch.tensor(2.0).scatter_add(0, torch.tensor([0, 0]), torch.tensor([1.0, 3.0])) == 6


@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
def test_scatters_of_hostile_values(isa, how):
    hostile = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, -1e-45, 3e38, 3e38])
    index, source = indices(5, 6, 90), hostile[indices(6, 9, 90)]
    for start in hostile:
        target = torch.full((6,), float(start))
        wanted = ours.scatter(floats(target), 0, index.numpy(), source.numpy(), how)
        got = target.scatter_reduce(0, index, source, how).numpy()
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        assert np.array_equal(np.nan_to_num(got, nan=0), np.nan_to_num(wanted, nan=0))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("alpha", [1, 0.3])
def test_rows_are_added_by_one_fma_each(isa, threads, dtype, dim, alpha):
    target = numbers(1, 5, 6, 7, dtype=dtype)
    shape = [5, 6, 7]
    shape[dim] = 50
    source, index = numbers(2, *shape, dtype=dtype), indices(3, 5, 50)
    wanted = np.moveaxis(floats(target), dim, 0).copy()
    ours.put(wanted, index.tolist(), np.moveaxis(floats(source), dim, 0), scale=np.full(50, alpha))
    wanted = rounded(np.moveaxis(wanted, 0, dim), dtype)
    for self, values in zip(variants(target), variants(source), strict=True):
        assert reference.same(floats(self.index_add(dim, index, values, alpha=alpha)), wanted)
        out = torch.empty(0, dtype=dtype)
        torch.index_add(self, dim, index, values, alpha=alpha, out=out)
        assert reference.same(floats(out), wanted)
        self.index_add_(dim, index, values, alpha=alpha)
        assert reference.same(floats(self), wanted)


def cases():
    i, j = indices(1, 5, 4, 20), indices(2, 6, 20)
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[1, 2:] = mask[3, :2] = True
    yield (i,)
    yield (i, j)
    yield (slice(None), j)
    yield (slice(None), j, i)
    yield (i, slice(None), j)
    yield (i - 5, slice(None), slice(None))
    yield (i.mT,)
    yield (mask,)
    yield (torch.tensor(3), slice(None), j)


@pytest.mark.parametrize("case", range(9))
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_index_put_adds_or_keeps_the_last_in_row_major_order_of_the_index(isa, threads, case, accumulate, dtype):
    where = list(cases())[case]
    target = numbers(1, 5, 6, 7, dtype=dtype)
    arguments = [x if torch.is_tensor(x) else None for x in where]
    cells = torch.ops.aten.index(torch.arange(5 * 6 * 7).view(5, 6, 7), arguments)
    values = numbers(2, *cells.shape, dtype=dtype)
    # Row-major order of the index alone: what it does not index lies inside, which changes nothing for a cell.
    front = case in (2, 3)
    index_first = np.moveaxis(cells.numpy(), 0, -1) if front else cells.numpy()
    values_first = np.moveaxis(floats(values), 0, -1) if front else floats(values)
    wanted = floats(target).reshape(-1)
    ours.put(wanted, index_first.flatten(), values_first.flatten(), "sum" if accumulate else "assign")
    wanted = rounded(wanted.reshape(5, 6, 7), dtype)
    for self, given in zip(variants(target), variants(values), strict=True):
        assert reference.same(floats(torch.ops.aten.index_put(self, arguments, given, accumulate)), wanted)
        torch.ops.aten.index_put_(self, arguments, given, accumulate)
        assert reference.same(floats(self), wanted)


def test_index_put_of_one_value_and_of_other_types(isa):
    x = torch.zeros(4, 5)
    x[torch.tensor([1, 1, 3])] = 2.5
    assert x.sum() == 25
    x[x > 0] = -1.0
    assert x.sum() == -10
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.float64, torch.complex64, torch.int16):
        y = torch.zeros(6).to(dtype)
        y[torch.tensor([4, 2, 4])] = torch.tensor([1, 0, 1]).to(dtype)
        assert y.nonzero().tolist() == [[4]]
    total = torch.zeros(3, dtype=torch.int64).index_put(
        (torch.tensor([0, 0, 2]),), torch.tensor([1, 2, 3]), accumulate=True
    )
    assert total.tolist() == [3, 0, 3]
    with pytest.raises(IndexError):
        x[torch.tensor([4])] = 0.0
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[torch.tensor([1, 2])] = torch.zeros(3, 5)


@pytest.mark.parametrize("accumulate", [True, False])
def test_put_goes_through_the_flattened_tensor(isa, threads, accumulate):
    target, index, source = numbers(1, 5, 8), indices(2, 40, 30, 10) - 3, numbers(3, 30, 10)
    wanted = floats(target).reshape(-1)
    ours.put(wanted, index.flatten().tolist(), source.flatten().numpy(), "sum" if accumulate else "assign")
    for self, values in zip(variants(target), variants(source), strict=True):
        assert reference.same(self.put(index, values, accumulate).numpy().reshape(-1), wanted)
        self.put_(index, values, accumulate)
        assert reference.same(floats(self).reshape(-1), wanted)


@pytest.mark.parametrize("dtype", HALVES)
def test_backward_passes_of_lookups_add_in_order(isa, threads, dtype):
    index, pick = indices(1, 30, 800), indices(2, 30, 90, 12)
    for look, places in [
        (lambda x: x[index], None),
        (lambda x: x.index_select(0, index), None),
        (lambda x: F.embedding(index, x), None),
        (lambda x: x.gather(0, pick), pick),
    ]:
        x = numbers(4, 30, 12, dtype=dtype).requires_grad_()
        y = look(x)
        grad = numbers(5, *y.shape, dtype=dtype)
        y.backward(grad)
        zero = np.zeros((30, 12), np.float32)
        if places is None:
            wanted = ours.put(zero, index.tolist(), floats(grad))
        else:
            wanted = ours.scatter(zero, 0, places.numpy(), floats(grad))
        assert reference.same(floats(x.grad), rounded(wanted, dtype))
    x = numbers(4, 30, 12, dtype=dtype).requires_grad_()
    y = x.take(pick)
    grad = numbers(5, *y.shape, dtype=dtype)
    y.backward(grad)
    wanted = ours.put(np.zeros(360, np.float32), pick.flatten().tolist(), floats(grad).flatten())
    assert reference.same(floats(x.grad).reshape(-1), rounded(wanted, dtype))


@pytest.mark.parametrize(
    "add",
    [
        lambda x, i: x.index_add(0, i, x),
        lambda x, i: x.scatter_add(0, i[:, None], x),
        lambda x, i: x.index_put((i,), x, accumulate=True),
        lambda x, i: torch.ops.aten.embedding_dense_backward(x, i, 3, -1, False),
        lambda x, i: x.put(i, x[:, 0], accumulate=True),
    ],
)
def test_other_types_are_refused(exact, add):
    x, i = torch.ones(3, 2), torch.tensor([0, 1, 1])
    add(x, i)
    with pytest.raises(RuntimeError, match="not exact"):
        add(x.double(), i)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.float64, torch.complex128]
)
def test_of_what_is_scattered_to_one_place_the_last_stays_whatever_its_type(isa, threads, dtype):
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 5, (3, 200, 4), generator=generator)
    x, src = (torch.randint(0, 2 if dtype == torch.bool else 99, (3, n, 4), generator=generator) for n in (9, 201))
    x, src = x.to(dtype), src.to(dtype)
    wanted, numbers = x.clone(), x.clone()
    for i in np.ndindex(3, 200, 4):
        wanted[i[0], index[i], i[2]] = src[i]
        numbers[i[0], index[i], i[2]] = 1
    assert torch.equal(x.scatter(1, index, src), wanted)
    assert torch.equal(x.transpose(0, 2).scatter(1, index.transpose(0, 2), src.transpose(0, 2)), wanted.transpose(0, 2))
    assert torch.equal(x.scatter(1, index, 1), numbers)
