"""Layer, group and batch norm: statistics, outputs, gradients and running statistics, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference
from numerics.test_reductions import hostile, same, squares, values
from torch.nn import functional

F32 = np.float32
EPSILON = 1e-5
fma = reference.fma


def dot(a, b):
    """The sum of a * b over the last axis, by fma."""
    a, b = np.broadcast_arrays(a, b)
    blocks = []
    for start in range(0, a.shape[-1], 1024):
        lanes = [np.zeros(a.shape[:-1], F32) for _ in range(16)]
        for i in range(start, min(start + 1024, a.shape[-1])):
            lanes[i % 16] = fma(a[..., i], b[..., i], lanes[i % 16])
        while len(lanes) > 1:
            lanes = [lanes[i] + lanes[i + len(lanes) // 2] for i in range(len(lanes) // 2)]
        blocks.append(lanes[0])
    return reference.pairwise(blocks)


def statistics(x):
    """Mean, squared distances and inverse deviation of each row."""
    n = F32(x.shape[-1])
    mean = reference.reduce(x) / n
    total = reference.reduce(x - mean[..., None], squares)
    return mean, total, F32(1) / np.sqrt(total / n + F32(EPSILON))


def normal(x, mean, inverse):
    return (x - mean[..., None]) * inverse[..., None]


def gradient(g, normals, scale):
    n = F32(g.shape[-1])
    total, product = reference.reduce(g) / n, dot(g, normals) / n
    return fma(-normals, product[..., None], g - total[..., None]) * scale[..., None]


def quiet(function):
    def run(*args):
        with np.errstate(all="ignore"):
            return function(*args)

    return run


@quiet
def layer_norm(x, weight, bias, g):
    mean, _, inverse = statistics(x)
    normals = normal(x, mean, inverse)
    dx = gradient(g * weight, normals, inverse)
    return fma(normals, weight, bias), dx, dot(g.T, normals.T), reference.reduce(g.T)


@quiet
def channel_norm(x, weight, bias, g, fixed=None):
    """Of rows by channel: batch norm. `fixed`: mean and variance that are not computed."""
    mean, _, inverse = statistics(x)
    if fixed is not None:
        mean, inverse = fixed[0], F32(1) / np.sqrt(fixed[1] + F32(EPSILON))
    normals = normal(x, mean, inverse)
    scale = inverse * weight
    dx = g * scale[:, None] if fixed is not None else gradient(g, normals, scale)
    return fma(normals, weight[:, None], bias[:, None]), dx, dot(g, normals), reference.reduce(g)


def channels(x):
    """(batch, channels, ...) as a row for each channel."""
    return np.ascontiguousarray(np.moveaxis(x, 1, 0).reshape(x.shape[1], -1))


def images(rows, shape):
    return np.moveaxis(rows.reshape(shape[1], shape[0], *shape[2:]), 0, 1)


def run(function, x, weight, bias, g):
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves)
    y.backward(g)
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def all_same(results, expected):
    assert [same(a, np.asarray(b, F32)) for a, b in zip(results, expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("make", [values, hostile])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (7, 33), (1100, 19), (2, 1300)])
def test_layer_norm_is_as_specified(isa, threads, shape, make):
    x, weight, bias, g = make(*shape), values(shape[1], seed=1), values(shape[1], seed=2), values(*shape, seed=3)
    results = run(lambda x, w, b: functional.layer_norm(x, shape[1:], w, b), x, weight, bias, g)
    all_same(results, layer_norm(*(t.numpy() for t in (x, weight, bias, g))))


def layouts(x):
    yield x
    yield x.transpose(0, 1).contiguous().transpose(0, 1)
    if x.dim() > 3:
        yield x.contiguous(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()])


BATCHES = [(5, 3), (40, 20), (2, 3, 7), (3, 2, 5, 9), (2, 5, 33, 35), (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("make", [values, hostile])
@pytest.mark.parametrize("shape", BATCHES)
def test_batch_norm_is_as_specified_in_every_layout(isa, threads, shape, make):
    x, g = make(*shape), values(*shape, seed=3)
    weight, bias = values(shape[1], seed=1), values(shape[1], seed=2)
    mean, variance = values(shape[1], seed=4), values(shape[1], seed=5) ** 2
    rows, g_rows = channels(x.numpy()), channels(g.numpy())
    trained = channel_norm(rows, weight.numpy(), bias.numpy(), g_rows)
    fixed = channel_norm(rows, weight.numpy(), bias.numpy(), g_rows, (mean.numpy(), variance.numpy()))
    with np.errstate(all="ignore"):
        now, total, _ = statistics(rows)
        momentum, rest = F32(0.3), F32(1 - 0.3)
        next_mean = fma(momentum, now, rest * mean.numpy())
        next_variance = fma(momentum, total / F32(rows.shape[1] - 1), rest * variance.numpy())
    for laid in layouts(x):
        for training, (y, dx, dweight, dbias) in ((True, trained), (False, fixed)):
            running = mean.clone(), variance.clone()
            results = run(
                lambda x, w, b, r=running, t=training: functional.batch_norm(x, *r, w, b, t, 0.3), laid, weight, bias, g
            )
            all_same(results, (images(y, shape), images(dx, shape), dweight, dbias))
            if training:
                all_same(running, (next_mean, next_variance))


@pytest.mark.parametrize("make", [values, hostile])
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 5), 3), ((3, 4, 7, 9), 2), ((2, 4, 20, 30), 1), ((2, 3), 3)])
def test_group_norm_is_as_specified_in_every_layout(isa, threads, shape, groups, make):
    x, g = make(*shape), values(*shape, seed=3)
    weight, bias = values(shape[1], seed=1), values(shape[1], seed=2)
    wide = (shape[0] * groups, -1)
    by_channel = (1, -1, *[1] * (len(shape) - 2))
    with np.errstate(all="ignore"):
        mean, _, inverse = statistics(x.numpy().reshape(wide))
        normals = normal(x.numpy().reshape(wide), mean, inverse)
        y = fma(normals.reshape(shape), weight.numpy().reshape(by_channel), bias.numpy().reshape(by_channel))
        weighted = (g.numpy() * weight.numpy().reshape(by_channel)).reshape(wide)
        dx = gradient(weighted, normals, inverse).reshape(shape)
        dweight = dot(channels(g.numpy()), channels(normals.reshape(shape)))
    expected = y, dx, dweight, reference.reduce(channels(g.numpy()))
    for laid in (
        x,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        *([x.contiguous(memory_format=torch.channels_last)] if x.dim() == 4 else []),
    ):
        all_same(run(lambda x, w, b: functional.group_norm(x, groups, w, b), laid, weight, bias, g), expected)


def test_a_missing_weight_is_one_and_a_missing_bias_zero(exact):
    x = values(4, 6, 5, 5)
    one, zero = torch.ones(6), torch.zeros(6)
    for weight, bias in ((None, None), (one, None), (None, zero)):
        assert same(functional.group_norm(x, 2, weight, bias), functional.group_norm(x, 2, one, zero).numpy())
        trained = functional.batch_norm(x, None, None, one, zero, training=True)
        assert same(functional.batch_norm(x, None, None, weight, bias, training=True), trained.numpy())
    assert same(functional.layer_norm(x, (5,)), functional.layer_norm(x, (5,), torch.ones(5), torch.zeros(5)).numpy())


def test_every_variant_gives_the_same_bits(exact):
    ops = torch.ops.aten
    x, g = values(4, 6, 5, 5), values(4, 6, 5, 5, seed=1)
    weight, bias = values(6, seed=2), values(6, seed=3)
    stats = [torch.zeros(6), torch.ones(6)]

    def fresh():
        return [t.clone() for t in stats]

    y, mean, inverse = ops.native_batch_norm(x, weight, bias, *fresh(), True, 0.1, EPSILON)
    expected = [t.numpy() for t in (y, mean, inverse)]
    out = [torch.empty(0) for _ in range(3)]
    all_same(ops._native_batch_norm_legit(x, weight, bias, *fresh(), True, 0.1, EPSILON), expected)
    all_same(ops._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, EPSILON), expected)
    all_same(ops._batch_norm_with_update(x, weight, bias, *fresh(), 0.1, EPSILON)[:3], expected)
    named = dict(zip(("out", "save_mean", "save_invstd"), out, strict=True))
    all_same(ops.native_batch_norm.out(x, weight, bias, *fresh(), True, 0.1, EPSILON, **named), expected)
    fixed = ops.native_batch_norm(x, weight, bias, *fresh(), False, 0.1, EPSILON)[0].numpy()
    assert same(ops._native_batch_norm_legit_no_training(x, weight, bias, *fresh(), 0.1, EPSILON)[0], fixed)
    gradients = ops.native_batch_norm_backward(g, x, weight, *stats, mean, inverse, True, EPSILON, [True] * 3)
    reserve = torch.empty(0, dtype=torch.uint8)
    again = ops.batch_norm_backward(g, x, weight, *stats, mean, inverse, True, EPSILON, [True] * 3, reserve)
    all_same(again, [t.numpy() for t in gradients])
    only = ops.native_batch_norm_backward(g, x, weight, *stats, mean, inverse, True, EPSILON, [False, True, False])
    assert only[0] is None or not only[0].numel()
    assert same(only[1], gradients[1].numpy())
    instance = functional.instance_norm(x)
    assert same(instance, functional.batch_norm(x.view(1, 24, 5, 5), None, None, training=True).view_as(x).numpy())
    y, mean, inverse = ops.native_layer_norm(x, [5], None, None, EPSILON)
    dx = ops.native_layer_norm_backward(g, x, [5], mean, inverse, None, None, [True, False, False])[0]
    leaf = x.clone().requires_grad_()
    functional.layer_norm(leaf, (5,)).backward(g)
    assert same(leaf.grad, dx.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_once_beside_single_precision_weights(exact, dtype):
    x = values(4, 6, 5, 5).to(dtype)
    weight, bias = values(6, seed=2), values(6, seed=3)
    cases = [
        lambda x: functional.batch_norm(x, torch.zeros(6), torch.ones(6), weight, bias, training=True),
        lambda x: functional.batch_norm(x, torch.zeros(6), torch.ones(6), weight, bias),
        lambda x: functional.group_norm(x, 2, weight, bias),
        lambda x: functional.layer_norm(x, (5,), weight[:5], bias[:5]),
        lambda x: functional.layer_norm(x, (5,)),
    ]
    for case in cases:
        assert case(x).dtype == dtype
        assert torch.equal(case(x), case(x.float()).to(dtype))


def test_weight_and_rms_norm_run(exact):
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4))
    v, g = values(4, 3), values(4, 1, seed=1)
    w, norm = torch.ops.aten._weight_norm_interface(v, g, 0)
    assert same(norm, v.norm(dim=1, keepdim=True).numpy())
    assert same(w, (v * (g / norm)).numpy())
    v_last = v.t().contiguous()
    assert same(torch.ops.aten._weight_norm_interface(v_last, g.t().contiguous(), 1)[0], w.t().numpy())
    layer.weight.sum().backward()
    gradient = layer.parametrizations.weight.original1.grad
    assert torch.isfinite(gradient).all()


def test_other_types_are_refused(exact):
    x = values(2, 4, 3).double()
    for call in (
        lambda: functional.layer_norm(x, (3,)),
        lambda: functional.group_norm(x, 2),
        lambda: functional.batch_norm(x, None, None, training=True),
    ):
        with pytest.raises(RuntimeError, match="not exact"):
            call()


def test_norms_are_as_accurate_as_stock():
    x, g = 1 + values(16, 32, 12, 12), values(16, 32, 12, 12, seed=1)
    for function in (
        lambda x, w, b: functional.layer_norm(
            x, (12, 12), w.sum() * torch.ones_like(x[0, 0]), b.sum() * torch.ones_like(x[0, 0])
        ),
        lambda x, w, b: functional.group_norm(x, 4, w, b),
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
    ):
        weight, bias = values(32, seed=2), values(32, seed=3)
        want = run(function, x.double(), weight.double(), bias.double(), g.double())
        stock = run(function, x, weight, bias, g)
        with library.exact():
            ours = run(function, x, weight, bias, g)
        for true, theirs, mine in zip(want, stock, ours, strict=True):
            slack = 2e-7 * true.abs().max()
            assert (mine - true).abs().max() <= 1.5 * (theirs - true).abs().max() + slack
