"""Pools, nearest upsampling, padding and folding: each sum is a chain in the written order, in every layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
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


def drawn_pools(seed):
    """Pools, upsampling and padding of all kinds with drawn windows, as functions of x; and a shape that suits them."""
    draw = np.random.default_rng(seed)
    for d in (1, 2, 3):
        kernel = [int(k) for k in draw.integers(1, 4, d)]
        stride = [int(s) for s in draw.integers(1, 4, d)]
        pads = [int(draw.integers(0, k // 2 + 1)) for k in kernel]
        dilation = [int(t) for t in draw.integers(1, 3, d)]
        shape = [int(n) for n in draw.integers(7, 24 if d < 3 else 12, d)]
        target = [int(n) for n in draw.integers(1, 9, d)]
        ceil, include = bool(draw.integers(2)), bool(draw.integers(2))
        around = [int(n) for n in draw.integers(-2, 4, 2 * d)]
        pool = {"kernel_size": kernel, "stride": stride, "padding": pads, "ceil_mode": ceil}
        functions = [
            lambda x, d=d, pool=pool, include=include: getattr(F, f"avg_pool{d}d")(
                x, count_include_pad=include, **pool
            ),
            lambda x, d=d, pool=pool, dilation=dilation: getattr(F, f"max_pool{d}d")(
                x, return_indices=True, **pool, dilation=dilation
            ),
            lambda x, d=d, target=target: getattr(F, f"adaptive_avg_pool{d}d")(x, [n + 1 for n in target]),
            lambda x, d=d, target=target: getattr(F, f"adaptive_max_pool{d}d")(x, target, return_indices=True),
            lambda x, target=target: F.interpolate(x, size=[4 * n for n in target]),
            lambda x, shape=shape: F.interpolate(x, size=[2 * n for n in shape]),
            lambda x, target=target: F.interpolate(x, size=[3 * n for n in target], mode="nearest-exact"),
            lambda x, around=around: F.pad(x, around, mode="reflect"),
            lambda x, around=around: F.pad(x, around, mode="replicate"),
        ]
        if d == 2:
            functions.append(
                lambda x, pool=pool: F.unfold(x, *list(pool.values())[:1], 1, pool["padding"], pool["stride"])
            )
        yield shape, functions


def given_and_gradient(function, x, grads):
    """What it gives, and the gradient for grads (drawn at the first call, and kept)."""
    leaf = x.detach().requires_grad_()
    found = function(leaf)
    values, *where = found if isinstance(found, tuple) else (found,)
    if not grads:
        grads.append(numbers(7, *values.shape))
    values.backward(grads[0])
    return [values.detach(), *where, leaf.grad]


@pytest.mark.parametrize("seed", range(3))
def test_float32_is_what_pytorch_s_own_loops_give_whatever_the_windows(threads, seed):
    """They are loops without products: there is one way to write them. With channels last PyTorch itself divides
    adaptive averages in another way where it uses vectors, and has another index for a volume's maximum if all is -inf.
    """
    for shape, functions in drawn_pools(seed):
        for lead in ((3, 5), (1, 20), (7,)):
            if len(lead) == len(shape) == 1:
                continue  # not all of these take one line
            values = torch.round(numbers(seed, *lead, *shape) * 4) / 4  # some are equal
            values.view(-1)[::37] = float("nan")
            values.view(-1)[::41] = -float("inf")
            for function in functions:
                grads: list[torch.Tensor] = []
                some = [x for x in layouts(values) if len(lead) == 2 or takes_one(function, x)]
                wanted = given_and_gradient(function, some[0], grads) if some else []
                for x in some:
                    strides = [one.stride() for one in given_and_gradient(function, x, grads)]
                    with library.exact():
                        found = given_and_gradient(function, x, grads)
                    assert all(map(same, found, wanted))
                    assert [one.stride() for one in found] == strides


def takes_one(function, x):
    """Whether it takes a picture without a batch."""
    try:
        function(x)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def same(one, other):
    return one.dtype == other.dtype and torch.equal(torch.nan_to_num(one, 1e30), torch.nan_to_num(other, 1e30))


def test_given_tensors_are_filled(exact):
    """The operators that have no stub."""
    x, aten = numbers(1, 2, 3, 6, 8, 8), torch.ops.aten
    y, where = aten.adaptive_max_pool3d(x, [2, 3, 3])
    window = ([2, 2, 2], [2, 2, 2], [0, 0, 0])
    calls = [
        ("avg_pool3d.out", (x, *window), "out", 1),
        (
            "avg_pool3d_backward.grad_input",
            (aten.avg_pool3d(x, *window), x, *window, False, True, None),
            "grad_input",
            1,
        ),
        ("adaptive_avg_pool3d.out", (x, [2, 3, 3]), "out", 1),
        ("adaptive_avg_pool3d_backward.grad_input", (y, x), "grad_input", 1),
        ("adaptive_max_pool3d.out", (x, [2, 3, 3]), "out indices", 2),
        ("adaptive_max_pool3d_backward.grad_input", (y, x, where), "grad_input", 1),
        ("col2im.out", (numbers(2, 2, 36, 30), [9, 11], [3, 3], [1, 1], [1, 1], [2, 2]), "out", 1),
    ]
    for name, arguments, given, count in calls:
        base, overload = name.split(".")
        functional = {"adaptive_avg_pool3d": "_adaptive_avg_pool3d"}.get(
            base, base.replace("adaptive_avg", "_adaptive_avg")
        )
        wanted = getattr(aten, functional)(*arguments)
        wanted = wanted if count == 2 else (wanted,)
        into = [torch.empty(0, dtype=one.dtype) for one in wanted]
        getattr(getattr(aten, base), overload)(*arguments, **dict(zip(given.split(), into, strict=True)))
        assert all(map(torch.equal, into, wanted))


@pytest.mark.parametrize("dims", [2, 3])
def test_gradients_of_maxima_go_where_indices_say_and_nowhere_if_there_is_no_such_place(exact, dims):
    """Whatever a user makes of the indices."""
    x = numbers(1, 1, 1, *[4] * dims)
    y, where = getattr(F, f"max_pool{dims}d")(x, 2, return_indices=True)
    where = torch.full_like(where, 5)
    where.view(-1)[1], where.view(-1)[2] = -1, x.numel()
    sizes = [[2] * dims, [2] * dims, [0] * dims, [1] * dims]
    backward = getattr(torch.ops.aten, f"max_pool{dims}d_with_indices_backward")
    wanted = torch.zeros_like(x)
    chain = np.float32(0)
    for value in [y.view(-1)[0], *y.view(-1)[3:]]:
        chain = chain + value.numpy()
    wanted.view(-1)[5] = float(chain)
    assert torch.equal(backward(y, x, *sizes, False, where), wanted)
    assert torch.equal(backward.grad_input(y, x, *sizes, False, where, grad_input=torch.empty(0)), wanted)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: F.avg_pool3d(x, 2, padding=2), "pad should be at most half"),
        (lambda x: F.adaptive_avg_pool3d(x[:, :, :0], 2), "non-zero size"),
        (lambda x: torch.ops.aten._adaptive_avg_pool3d(x[0, 0], [2, 2, 2]), "4D or 5D"),
        (lambda x: F.max_pool3d(x, 9), "too small"),
        (lambda x: F.adaptive_max_pool3d(x[0, 0], 2), "4D or 5D"),
        (lambda x: F.fold(x[0, 0], (5, 5), 3), "Expected size of input's dimension"),
        (
            lambda x: torch.ops.aten.max_pool3d_with_indices_backward(x, x, [2], [2], [0], [1], False, x[0].long()),
            "size",
        ),
        (
            lambda x: torch.ops.aten.max_pool2d_with_indices_backward(
                x[0], x[0], [2], [2], [0], [1], False, x[0].long()
            ),
            "size",
        ),
    ],
)
def test_what_does_not_fit_is_told(exact, function, told):
    with pytest.raises(RuntimeError, match=told):
        function(numbers(1, 1, 2, 6, 7, 8))
