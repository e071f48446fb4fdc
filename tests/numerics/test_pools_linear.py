"""Linear, bilinear and trilinear upsampling: the specified weights and order, forward and backward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numerics import reference
from torch.nn import functional as F  # noqa: N812

MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
SIZES = {1: (9,), 2: (5, 7), 3: (3, 4, 5)}
HOW = [{"scale_factor": 2.3}, {"scale_factor": 0.6}, {"size": 11}, {"size": 1}, {"size": 8, "align_corners": True}]


def numbers(seed, *shape, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


def between(length, count, how):
    """For each output of one dimension: the two neighbours and their weights."""
    f, align = np.float32, how.get("align_corners", False)
    if align:
        scale = f(length - 1) / f(count - 1) if count > 1 else f(0)
    else:
        scale = f(1 / how["scale_factor"]) if "scale_factor" in how else f(length) / f(count)
    for i in range(count):
        at = scale * f(i) if align else scale * (f(i) + f(0.5)) - f(0.5)
        at = max(at, f(0))
        low = min(int(at), length - 1)
        weight = min(at - f(low), f(1))
        yield [(low, f(1) - weight), (min(low + 1, length - 1), weight)]


def forward(x, corners):
    if not corners:
        return x
    (low, low_weight), (high, high_weight) = corners[0]
    a, b = forward(x[:, low], corners[1:]), forward(x[:, high], corners[1:])
    return reference.fma(high_weight, b, low_weight * a)


CASES = [(d, how) for d in MODES for how in HOW]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("d", "how"), CASES)
def test_upsampling_is_the_specified_one(isa, d, how, dtype):
    values = numbers(1, 2, 3, *SIZES[d], dtype=dtype)
    y = F.interpolate(values, mode=MODES[d], **how)
    grad = numbers(2, *y.shape, dtype=dtype)
    outputs = list(itertools.product(*(list(between(s, n, how)) for s, n in zip(SIZES[d], y.shape[2:], strict=True))))
    x, g = values.float().numpy().reshape(6, *SIZES[d]), grad.float().numpy().reshape(6, -1)
    wanted = np.stack([forward(x, corners) for corners in outputs], 1).reshape(y.shape)
    back = np.zeros_like(x)
    for output, corners in enumerate(outputs):
        for choice in itertools.product(*corners):
            weight = np.float32(1)
            for _, factor in choice:
                weight = weight * factor
            place = (slice(None), *(at for at, _ in choice))
            back[place] = reference.fma(weight, g[:, output], back[place])
    for given in (values, values.mT.contiguous().mT):
        leaf = given.detach().requires_grad_()
        out = F.interpolate(leaf, mode=MODES[d], **how)
        out.backward(grad)
        assert reference.same(out.detach().float().numpy(), torch.from_numpy(wanted).to(dtype).float().numpy())
        gradient = torch.from_numpy(back.reshape(values.shape)).to(dtype).float().numpy()
        assert reference.same(leaf.grad.float().numpy(), gradient)


@pytest.mark.parametrize("d", MODES)
def test_its_error_is_that_of_stock(d):
    from easyscale.pipeline.numerics import library

    x, how = numbers(1, 2, 3, *SIZES[d]), {"size": 13, "mode": MODES[d]}
    true, stock = F.interpolate(x.double(), **how), F.interpolate(x, **how)
    with library.exact():
        ours = F.interpolate(x, **how)
    assert (ours - true).abs().max() <= 1.5 * (stock - true).abs().max() + 1e-7


def test_float64_is_refused(exact):
    with pytest.raises(RuntimeError, match="not exact"):
        F.interpolate(torch.zeros(1, 1, 3, 3, dtype=torch.float64), scale_factor=2, mode="bilinear")
