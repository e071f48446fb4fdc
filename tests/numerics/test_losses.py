"""Cross entropy: its sum runs over batch and positions in the specified order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numerics import reference
from numerics.test_reductions import same, values
from torch.nn import functional

IGNORED = -100


def targets(*shape, classes):
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, classes, shape, generator=generator)
    target[torch.rand(shape, generator=generator) < 0.1] = IGNORED
    return target


def loss(scores, target, weight, reduction, gradient):
    """Scores (n, classes, positions) and targets (n, positions): the loss, and the gradient of the scores."""
    counted = target != IGNORED
    where = np.where(counted, target, 0)
    w = np.where(counted, weight[where], np.float32(0))
    picked = np.take_along_axis(scores, where[:, None], 1)[:, 0]
    terms = np.where(counted, -(w * picked), np.float32(0))
    total = reference.reduce(w.reshape(-1))
    if reduction == "none":
        result, share = terms, gradient
    else:
        result = reference.reduce(terms.reshape(-1))
        share = np.broadcast_to(gradient, target.shape)
        if reduction == "mean":
            result, share = result / total, share / total
    out = np.zeros_like(scores)
    np.put_along_axis(out, where[:, None], -(w * share)[:, None], 1)
    return result, np.where(out == 0, np.float32(0), out)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 3), (50, 10), (1500, 4), (3, 5, 7), (2, 5, 30, 21)])
def test_the_loss_of_picked_scores_is_as_specified(isa, shape, weighted, reduction):
    scores = values(*shape).log_softmax(1)
    target = targets(shape[0], *shape[2:], classes=shape[1])
    weight = torch.rand(shape[1], generator=torch.Generator().manual_seed(2)) if weighted else None
    leaf = scores.clone().requires_grad_()
    result = functional.nll_loss(leaf, target, weight, reduction=reduction)
    gradient = values(*result.shape, seed=3) if result.dim() else torch.tensor(0.7)
    result.backward(gradient)
    three = (shape[0], shape[1], -1)
    expected, grad = loss(
        scores.numpy().reshape(three),
        target.numpy().reshape(shape[0], -1),
        np.ones(shape[1], np.float32) if weight is None else weight.numpy(),
        reduction,
        gradient.numpy().reshape(shape[0], -1) if reduction == "none" else gradient.numpy(),
    )
    assert same(result.detach(), np.asarray(expected).reshape(result.shape))
    assert same(leaf.grad + 0.0, grad.reshape(shape))


def test_cross_entropy_is_log_softmax_and_the_loss(exact):
    x, target = values(30, 7), targets(30, classes=7)
    composed = functional.nll_loss(x.log_softmax(1), target)
    assert same(functional.cross_entropy(x, target), composed.numpy())
    smooth = functional.cross_entropy(x.requires_grad_(), target, label_smoothing=0.1)
    smooth.backward()
    assert torch.isfinite(x.grad).all()
    assert functional.cross_entropy(x, x.softmax(1)).item() > 0
    out = torch.empty(()), torch.empty(())
    torch.ops.aten.nll_loss_forward.output(
        x.log_softmax(1).detach(), target, None, 1, IGNORED, output=out[0], total_weight=out[1]
    )
    assert same(out[0], composed.numpy())
    half = functional.cross_entropy(x.detach().bfloat16(), target)
    assert half.dtype == torch.bfloat16


def test_single_samples_empty_batches_and_bad_targets(exact):
    x = values(5)
    assert functional.nll_loss(x, torch.tensor(3)).item() == -x[3].item()
    assert functional.nll_loss(torch.empty(0, 5), torch.empty(0, dtype=torch.long)).isnan()
    assert functional.nll_loss(torch.empty(0, 5), torch.empty(0, dtype=torch.long), reduction="sum").item() == 0
    assert functional.nll_loss(x[None], torch.tensor([IGNORED])).isnan()
    for bad in (5, -1):
        with pytest.raises(IndexError, match="out of bounds"):
            functional.nll_loss(x[None], torch.tensor([bad]))
    with pytest.raises(ValueError, match="batch_size"):
        functional.nll_loss(values(3, 5), torch.tensor([1]))
    with pytest.raises(RuntimeError, match="not exact"):
        functional.nll_loss(x[None].double(), torch.tensor([1]))
