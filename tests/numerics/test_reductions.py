"""Reductions are accumulated in the specified order, whatever the layout, threads and instruction set."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
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


HOSTILE = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38]


def hostile(*shape, seed=0):
    """Among ordinary values all that are not."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    which = torch.randint(0, 4 * len(HOSTILE), shape, generator=generator)
    for i, value in enumerate(HOSTILE):
        x[which == i] = value
    return x


def larger(a, b):
    zeros = np.where(np.signbit(a) & np.signbit(b), np.float32(-0.0), np.float32(0))
    return np.where((a == 0) & (b == 0), zeros, np.maximum(a, b))


def smaller(a, b):
    return -larger(-a, -b)


def extreme(x, choose):
    result = x[..., 0]
    for i in range(x.shape[-1]):
        result = choose(result, x[..., i])
    return result


def lanes(x, init, step, combine):
    """As reference.reduce, with another operation."""
    blocks = []
    for start in range(0, x.shape[-1], 1024):
        lane = [np.full(x.shape[:-1], init, np.float32) for _ in range(16)]
        for i in range(start, min(start + 1024, x.shape[-1])):
            lane[i % 16] = step(lane[i % 16], x[..., i])
        while len(lane) > 1:
            lane = [combine(lane[i], lane[i + len(lane) // 2]) for i in range(len(lane) // 2)]
        blocks.append(lane[0])
    while len(blocks) > 1:
        pairs = [combine(blocks[i], blocks[i + 1]) for i in range(0, len(blocks) - 1, 2)]
        blocks = pairs + blocks[len(blocks) - len(blocks) % 2 :]
    return blocks[0]


def squares(total, x):
    return reference.fma(x, x, total)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", [(1,), (7, 3), (20, 33), (2, 1500), (1500, 19), (2, 5, 3, 40)])
def test_hostile_values_are_reduced_as_specified(isa, shape):
    for x in layouts(hostile(*shape)):
        for dims in reduced_dims(x):
            r = rows(x, dims)
            assert same(x.sum(dims), reference.reduce(r))
            assert same(x.nansum(dims), reference.reduce(np.where(np.isnan(r), np.float32(0), r)))
            assert same(x.amax(dims), extreme(r, larger))
            assert same(x.amin(dims), extreme(r, smaller))
            assert same(torch.linalg.vector_norm(x, 1, dims), reference.reduce(np.abs(r)))
            euclidean = np.sqrt(reference.reduce(r, squares)) if r.shape[-1] > 1 else np.abs(r[..., 0])
            assert same(torch.linalg.vector_norm(x, 2, dims), euclidean)
            assert same(torch.linalg.vector_norm(x, 0, dims), reference.reduce((r != 0).astype(np.float32)))
            assert same(torch.linalg.vector_norm(x, float("inf"), dims), extreme(np.abs(r), larger))
            assert same(torch.linalg.vector_norm(x, -float("inf"), dims), extreme(np.abs(r), smaller))
        assert same(x.max(), extreme(x.numpy().reshape(-1), larger))
        assert same(x.min(), extreme(x.numpy().reshape(-1), smaller))
        assert [same(a, b) for a, b in zip(x.aminmax(), (x.min(), x.max()), strict=True)] == [True, True]
        assert [same(a, b) for a, b in zip(x.aminmax(dim=0), (x.amin(0), x.amax(0)), strict=True)] == [True, True]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1023, 1024, 1025, 4200])
def test_products_and_norms_have_the_order_of_sums(isa, threads, length):
    x = values(3, length)
    near_one = 1 + x / 100
    expected = lanes(near_one.numpy(), np.float32(1), np.multiply, np.multiply)
    assert same(near_one.prod(1), expected)
    assert same(near_one.t().contiguous().prod(0), expected)
    norms = np.sqrt(reference.reduce(x.numpy(), squares))
    assert same(x.norm(dim=1), norms)
    assert [t.item() for t in torch._foreach_norm(list(x))] == norms.tolist()
    assert same(x.norm(), np.sqrt(reference.reduce(x.numpy().reshape(-1), squares)))


@pytest.mark.parametrize("length", [1, 2, 1023, 1024, 1025, 3000])
def test_running_sums_are_chains_within_blocks(isa, length):
    x = values(2, length).numpy()
    for dim, laid in ((1, torch.from_numpy(x)), (0, torch.from_numpy(x.T.copy()))):
        for operator, init, combine in (("cumsum", 0, np.add), ("cumprod", 1, np.multiply)):
            result = getattr(laid, operator)(dim).numpy()
            before = chain = np.full(2, init, np.float32)
            for i in range(length):
                if i and i % 1024 == 0:
                    before, chain = combine(before, chain), np.full(2, init, np.float32)
                chain = combine(chain, x[:, i])
                assert reference.same(result[:, i] if dim else result[i], combine(before, chain))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(2, 1), (3, 1500), (1500, 20), (2, 3, 40, 5)])
def test_a_variance_is_that_of_the_distances_from_the_mean(isa, shape):
    for x in layouts(values(*shape) + 3):
        for dims in reduced_dims(x):
            r = rows(x, dims)
            n = np.float32(r.shape[-1])
            mean = reference.reduce(r) / n
            total = reference.reduce(r - mean[..., None], squares)
            with np.errstate(all="ignore"):
                for correction in (0, 1):
                    expected = total / np.float32(max(0, n - correction))
                    assert same(x.var(dims, correction=correction), expected)
                    assert same(x.std(dims, correction=correction), np.sqrt(expected))
                    both = torch.var_mean(x, dims, correction=correction)
                    assert same(both[0], expected)
                    assert same(both[1], mean)
            assert x.std(dims, keepdim=True).shape == x.sum(dims, keepdim=True).shape


def test_every_variant_gives_the_same_bits(exact):
    x = values(40, 50, 3)
    for operator in ("sum", "mean", "prod", "nansum", "amax", "amin", "var", "std", "cumsum", "cumprod"):
        function = getattr(torch, operator)
        result = function(x, 1)
        out = function(x, 1, out=torch.empty_like(result))
        assert same(out, result.numpy()), operator
    out = torch.linalg.vector_norm(x, 2, 1, out=torch.empty(40, 3))
    assert same(out, torch.linalg.vector_norm(x, 2, 1).numpy())
    assert same(x.clone().cumsum_(1), x.cumsum(1).numpy())
    square = values(30, 30)
    assert same(square.trace(), square.diagonal().sum().numpy())
    assert same(torch.std_mean(x, 1)[0], x.std(1).numpy())
    assert same(x.bfloat16().var(1).float(), x.bfloat16().float().var(1).bfloat16().float().numpy())


def test_the_largest_of_a_dimension_is_the_first_of_equals(isa):
    x = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0], [1, float("nan"), float("nan")]])
    for function in (torch.max, torch.min):
        found = function(x, 1)
        assert found.indices.tolist() == [0, 0, 1]
        assert same(found.values, x.numpy()[[0, 1, 2], [0, 0, 1]])
    assert x.argmax(1).tolist() == [0, 0, 1]


def test_gradients_pass_through(exact):
    x = values(6, 7).requires_grad_()
    total = (
        x.sum()
        + x.mean(1).prod()
        + x.norm()
        + x.var(0).sum()
        + x.amax(1).sum()
        + x.cumsum(0).std()
        + x.logsumexp(1).sum()
    )
    total.backward()
    assert torch.isfinite(x.grad).all()


def test_integers_are_as_ever_and_other_types_are_refused(exact):
    x = torch.arange(24).view(4, 6)
    assert x.sum().item() == 276
    assert x.prod(1)[0].item() == 0
    assert x.cumsum(1)[0].tolist() == [0, 1, 3, 6, 10, 15]
    assert (x.amax(), x.min(), (x > 5).sum(), (x > 5).any()) == (23, 0, 18, True)
    x = hostile(30).nan_to_num(0.0).double()
    assert same(x.max(), np.float64(extreme(x.numpy(), larger)))
    assert same(x.amin(0), np.float64(extreme(x.numpy(), smaller)))
    assert values(3, 4).sum(dtype=torch.float64).dtype == torch.float64
    for call in (torch.prod, torch.var, torch.norm, torch.nansum):
        with pytest.raises(RuntimeError, match="not exact"):
            call(values(4).double())
    with pytest.raises(RuntimeError, match="not exact"):
        values(4).cfloat().sum()


def test_sums_are_as_accurate_as_stock():
    x = values(50, 20000)
    true = x.double()
    for function in (
        lambda x: x.sum(1),
        lambda x: x.sum(0),
        lambda x: x.mean(1),
        lambda x: x.norm(dim=1),
        lambda x: x.var(1),
    ):
        want = function(true)
        stock = (function(x).double() - want).abs().max()
        with library.exact():
            ours = (function(x).double() - want).abs().max()
        assert ours <= 1.5 * stock + 1e-7 * want.abs().max()
