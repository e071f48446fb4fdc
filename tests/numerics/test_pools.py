"""Pools, nearest upsampling, padding and folding: each sum is a chain in the written order, in every layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numerics import reference
from torch.nn import functional as F  # noqa: N812

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = {1: (23,), 2: (9, 11), 3: (5, 6, 7)}


def numbers(seed, *shape, dtype=torch.float32):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-6, 6, shape)
    return torch.from_numpy(x.astype(np.float32)).to(dtype)


def windows(size, kernel, stride, padding):
    """Of average pools: for each output the input positions and the size with padding, of one dimension."""
    for start in range(-padding, size + padding - kernel + 1, stride):
        end = min(start + kernel, size + padding)
        yield range(max(start, 0), min(end, size)), end - start


def parts(size, count):
    """Of adaptive pools."""
    for i in range(count):
        part = range(i * size // count, -(-(i + 1) * size // count))
        yield part, len(part)


def geometry(sizes, each_dimension, divisors):
    """For each output, in row-major order: the input positions in row-major order, and what is divided by."""
    for output in itertools.product(*each_dimension):
        inside = [np.ravel_multi_index(at, sizes) for at in itertools.product(*(part for part, _ in output))]
        yield inside, divisors([len(part) for part, _ in output], [whole for _, whole in output])


def picked(choose, sizes):
    """The geometry of what copies one input to each output: seen from what it does to numbers of positions."""
    numbers = torch.arange(np.prod(sizes), dtype=torch.float32).view(1, 1, *sizes)
    return [([int(at)], []) for at in choose(numbers).flatten()]


def divided(x, divisors):
    for divisor in divisors:
        x = x / np.float32(divisor)
    return x


def forward(x, outputs):
    """x: (lines, positions)."""
    columns = []
    for inside, divisors in outputs:
        chain = np.zeros(len(x), np.float32)
        for at in inside:
            chain = chain + x[:, at]
        columns.append(divided(chain, divisors))
    return np.stack(columns, 1)


def backward(grad, outputs, positions):
    result = np.zeros((len(grad), positions), np.float32)
    for output, (inside, divisors) in enumerate(outputs):
        for at in inside:
            result[:, at] += divided(grad[:, output], divisors)
    return result


def average(d, include=True, override=None):
    def divisors(inside, whole):
        return [override or np.prod(whole if include else inside)]

    outputs = geometry(SIZES[d], [list(windows(size, 3, 2, 1)) for size in SIZES[d]], divisors)
    arguments = {"count_include_pad": include} | ({"divisor_override": override} if override else {})
    return (lambda x: getattr(F, f"avg_pool{d}d")(x, 3, 2, 1, **arguments)), list(outputs)


def adaptive(d):
    outputs = geometry(SIZES[d], [list(parts(size, 4)) for size in SIZES[d]], lambda inside, _: inside)
    return (lambda x: getattr(F, f"adaptive_avg_pool{d}d")(x, (4,) * d)), list(outputs)


def copies(d, choose):
    return choose, picked(choose, SIZES[d])


def padding(d, mode):
    return copies(d, lambda x: F.pad(x, (3, 2, 2, 4, 1, 3)[: 2 * d], mode=mode))


def nearest(d, mode, factor):
    return copies(d, lambda x: F.interpolate(x, scale_factor=factor, mode=mode))


CASES = {
    **{f"average {d}": (d, average(d)) for d in (1, 2, 3)},
    **{f"average {d} without padding": (d, average(d, include=False)) for d in (1, 2, 3)},
    **{f"average {d} by 5": (d, average(d, override=5)) for d in (2, 3)},
    **{f"adaptive {d}": (d, adaptive(d)) for d in (1, 2, 3)},
    **{f"{mode} {d}": (d, padding(d, mode)) for d in (1, 2, 3) for mode in ("reflect", "replicate")},
    **{
        f"{mode} {d} by {factor}": (d, nearest(d, mode, factor))
        for d in (1, 2, 3)
        for mode in ("nearest", "nearest-exact")
        for factor in (2.3, 0.4)
    },
}


def layouts(x):
    yield x
    yield x.mT.contiguous().mT
    if x.dim() > 3:
        yield x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_sums_over_windows_are_chains_in_row_major_order_and_gradients_in_order_of_the_outputs(
    threads, exact, case, dtype
):
    d, (function, outputs) = CASES[case]
    values = numbers(1, 2, 5, *SIZES[d], dtype=dtype)
    y = function(values)
    grad = numbers(2, *y.shape, dtype=dtype)
    wanted = torch.from_numpy(forward(values.float().numpy().reshape(10, -1), outputs)).to(dtype).view(y.shape)
    back = backward(grad.float().numpy().reshape(10, -1), outputs, int(np.prod(SIZES[d])))
    back = torch.from_numpy(back).to(dtype).view(values.shape)
    for x in layouts(values):
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        y.backward(grad)
        assert reference.same(y.detach().float().numpy(), wanted.float().numpy())
        assert reference.same(leaf.grad.float().numpy(), back.float().numpy())


MAXIMA = {
    **{f"{d}": (d, lambda x, d=d: getattr(F, f"max_pool{d}d")(x, 3, 1, 1, return_indices=True)) for d in (1, 2, 3)},
    **{f"adaptive {d}": (d, lambda x, d=d: getattr(F, f"adaptive_max_pool{d}d")(x, 4, True)) for d in (1, 2, 3)},
    "dilated 2": (2, lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", MAXIMA)
def test_gradients_of_maxima_are_added_in_order_of_the_outputs(threads, exact, case, dtype):
    d, function = MAXIMA[case]
    values = numbers(1, 2, 5, *SIZES[d], dtype=dtype)
    y, where = function(values)
    flat = values.view(2, 5, -1)
    assert torch.equal(flat.gather(2, where.flatten(2)), y.flatten(2))
    grad = numbers(2, *y.shape, dtype=dtype)
    lines, at = grad.float().numpy().reshape(10, -1), where.numpy().reshape(10, -1)
    back = np.zeros((10, flat.shape[2]), np.float32)
    for output in range(lines.shape[1]):
        back[np.arange(10), at[:, output]] += lines[:, output]
    back = torch.from_numpy(back).to(dtype).float().numpy().reshape(values.shape)
    for x in layouts(values):
        leaf = x.detach().requires_grad_()
        out, again = function(leaf)
        out.backward(grad)
        assert torch.equal(again, where)
        assert reference.same(leaf.grad.float().numpy(), back)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["2", "dilated 2"])
def test_a_maximum_is_the_first_of_equals_and_a_nan_if_there_is_one(exact, case, dtype):
    _, function = MAXIMA[case]
    for x in map(torch.clone, list(layouts(torch.zeros(1, 20, *SIZES[2], dtype=dtype)))):
        y, where = function(x)
        assert int(where[0, 0, 0, 0]) == (0 if case == "2" else 12), "the first that lies inside"
        assert (y == 0).all()
        x[..., 3, 5] = float("nan")
        y, where = function(x)
        hit = torch.isnan(y)
        assert hit.any()
        assert (where[hit] == 3 * 11 + 5).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_folding_adds_in_order_of_the_kernel_and_unfolding_backward_too(threads, exact, dtype):
    columns = numbers(1, 2, 4 * 9, 30, dtype=dtype)
    x = columns.float().numpy().reshape(2, 4, 3, 3, 5, 6)
    wanted = np.zeros((2, 4, 11, 13), np.float32)
    for i, j in itertools.product(range(3), range(3)):
        wanted[:, :, i : i + 9 : 2, j : j + 11 : 2] += x[:, :, i, j]
    wanted = torch.from_numpy(wanted[:, :, 1:-1, 1:-1].copy()).to(dtype)
    assert torch.equal(F.fold(columns, (9, 11), 3, 1, 1, 2), wanted)
    leaf = torch.zeros(2, 4, 9, 11, dtype=dtype, requires_grad=True)
    F.unfold(leaf, 3, 1, 1, 2).backward(columns)
    assert torch.equal(leaf.grad, wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 2).sum().backward(),
        lambda x: F.pad(x[0], (1, 1), mode="reflect").sum().backward(),
        lambda x: F.fold(x[0], (5, 5), 3, 1, 1),
    ],
)
def test_other_types_are_refused(exact, function):
    with pytest.raises(RuntimeError, match="not exact"):
        function(torch.zeros(1, 1, 9, 25, dtype=torch.float64, requires_grad=True))
