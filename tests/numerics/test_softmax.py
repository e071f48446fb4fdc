"""Softmax and its logarithm, and their gradients: specified along any axis, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference
from numerics.reference_functions import exp, log
from numerics.test_reductions import hostile, same, values

SHAPES = [((1,), 0), ((5, 1), 1), ((3, 16), 1), ((4, 5, 33), 1), ((33, 300), 0), ((3, 1025), 1), ((2, 2100, 3), 1)]


def products(gradient, output):
    """The terms' sum, by fma."""
    pairs = np.stack([gradient, output], -2)
    return reference_dot(pairs)


def reference_dot(pairs):
    blocks = []
    for start in range(0, pairs.shape[-1], 1024):
        lanes = [np.zeros(pairs.shape[:-2], np.float32) for _ in range(16)]
        for i in range(start, min(start + 1024, pairs.shape[-1])):
            lanes[i % 16] = reference.fma(pairs[..., 0, i], pairs[..., 1, i], lanes[i % 16])
        while len(lanes) > 1:
            lanes = [lanes[i] + lanes[i + len(lanes) // 2] for i in range(len(lanes) // 2)]
        blocks.append(lanes[0])
    return reference.pairwise(blocks)


def softmax(x):
    with np.errstate(all="ignore"):
        e = exp(x - largest(x))
        return e / reference.reduce(e)[..., None]


def log_softmax(x):
    with np.errstate(all="ignore"):
        total = reference.reduce(exp(x - largest(x)))
        return (x - largest(x)) - log(total)[..., None]


def largest(x):
    return np.where(np.isnan(x), np.float32(-np.inf), x).max(-1)[..., None]


def softmax_gradient(g, y):
    with np.errstate(all="ignore"):
        return (g - products(g, y)[..., None]) * y


def log_softmax_gradient(g, y):
    return reference.fma(-exp(y), reference.reduce(g)[..., None], g)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("make", [values, hostile])
def test_softmax_is_as_specified_along_any_axis(isa, threads, shape, dim, make):
    x, g = make(*shape), values(*shape, seed=1)
    for operator, forward, backward in (
        (torch.softmax, softmax, softmax_gradient),
        (torch.log_softmax, log_softmax, log_softmax_gradient),
    ):
        leaf = x.clone().requires_grad_()
        y = operator(leaf, dim)
        y.backward(g)
        rows, gradients, outputs = (np.moveaxis(t.detach().numpy(), dim, -1) for t in (x, g, y))
        assert same(y.detach(), np.moveaxis(forward(rows), -1, dim))
        assert same(leaf.grad, np.moveaxis(backward(gradients, outputs), -1, dim))


def test_layouts_and_variants_do_not_matter(exact):
    x = values(4, 6, 8, 5)
    y, log = x.softmax(1), x.log_softmax(1)
    for laid in (x.contiguous(memory_format=torch.channels_last), x.transpose(0, 3).contiguous().transpose(0, 3)):
        assert same(laid.softmax(1), y.numpy())
        assert same(laid.log_softmax(1), log.numpy())
    out = torch.empty(5, 8, 6, 4).permute(3, 2, 1, 0)
    assert same(torch.ops.aten._softmax.out(x, 1, False, out=out), y.numpy())
    assert same(torch.ops.aten._log_softmax.out(x, 1, False, out=out), log.numpy())
    assert same(torch.ops.aten._safe_softmax(x, 1), y.numpy())
    assert same(torch.ops.aten._safe_softmax(torch.full((2, 3), -torch.inf), 1), np.zeros((2, 3), np.float32))
    same_memory = x.clone()
    assert same(torch.ops.aten._softmax.out(same_memory, 1, False, out=same_memory), y.numpy())
    assert torch.empty(0, 3).softmax(1).shape == (0, 3)
    assert torch.tensor(2.0).softmax(0).item() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_once(exact, dtype):
    x = values(5, 300).to(dtype)
    assert same(x.softmax(1).float(), torch.from_numpy(softmax(x.float().numpy())).to(dtype).float().numpy())
    assert same(x.softmax(1, dtype=torch.float32), softmax(x.float().numpy()))
    assert same(x.log_softmax(1, dtype=torch.float32), log_softmax(x.float().numpy()))


def test_other_types_are_refused(exact):
    for operator in (torch.softmax, torch.log_softmax):
        with pytest.raises(RuntimeError, match="not exact"):
            operator(values(3, 4).double(), 1)


def test_softmax_is_as_accurate_as_stock():
    x, g = 4 * values(200, 700), values(200, 700, seed=1)

    def results(operator, x):
        leaf = x.clone().requires_grad_()
        y = operator(leaf, 1)
        y.backward(g.to(x.dtype))
        return y.detach().double(), leaf.grad.double()

    for operator in (torch.softmax, torch.log_softmax):
        want, stock = results(operator, x.double()), results(operator, x)
        with library.exact():
            ours = results(operator, x)
        for true, theirs, mine in zip(want, stock, ours, strict=True):
            assert (mine - true).abs().max() <= 1.5 * (theirs - true).abs().max() + 1e-9
