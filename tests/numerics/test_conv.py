"""Convolutions: bits against the reference, every variant and layout, accuracy, refusals."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference, reference_conv
from numerics.reference_conv import simple
from torch.nn import functional

CASES = {
    "pointwise": simple(2, 20, 33, (5, 7), 1),
    "pointwise over one chunk": simple(1, 513, 5, (3, 3), 1),
    "pointwise, every second": simple(2, 6, 8, (7, 6), 1, stride=2),
    "three by three": simple(2, 5, 17, (9, 35), 3, padding=1),
    "exactly one chunk": simple(1, 128, 3, (4, 4), 2),
    "just over a chunk": simple(1, 57, 3, (4, 5), 3, padding=1),
    "three chunks": simple(2, 131, 2, (3, 4), 3, padding=1),
    "strided": simple(2, 4, 15, (11, 12), 3, stride=2, padding=1),
    "first layer": simple(2, 3, 8, (23, 21), 7, stride=2, padding=3),
    "uneven": simple(2, 3, 4, (9, 20), (3, 2), stride=(1, 3), padding=(2, 0), dilation=(2, 1)),
    "dilated and strided alike": simple(1, 3, 4, (13, 15), 3, stride=2, padding=2, dilation=2),
    "dilated by more than the stride": simple(1, 2, 3, (14, 13), 3, stride=(4, 2), padding=3, dilation=(2, 3)),
    "padded by more than the kernel": simple(1, 2, 3, (3, 2), 2, padding=3),
    "groups": simple(2, 3, 5, (6, 7), 3, padding=1, groups=3),
    "depthwise": simple(2, 1, 1, (9, 20), 3, padding=1, groups=19),
    "depthwise, strided": simple(2, 1, 1, (9, 14), 3, stride=2, padding=1, groups=18),
    "depthwise, five, doubled": simple(1, 1, 2, (12, 37), 5, padding=2, groups=5),
    "weights over chunks": simple(5, 2, 3, (11, 19), 3, padding=1),
    "weights, exactly a chunk": simple(2, 1, 2, (16, 16), 1),
    "depthwise, weights over chunks": simple(3, 1, 1, (17, 19), 3, padding=1, groups=17),
    "one dimension": simple(2, 4, 6, (30,), 5, padding=2),
    "one dimension, causal": simple(1, 2, 3, (40,), 3, padding=8, dilation=4),
    "three dimensions": simple(2, 2, 3, (4, 5, 6), 3, stride=(1, 2, 1), padding=1),
    "transposed": simple(2, 4, 3, (5, 6), 3, stride=2, padding=1, extra=1),
    "transposed, groups": simple(1, 2, 4, (4, 7), (2, 3), stride=(3, 1), padding=0, groups=2, extra=0),
    "transposed, dilated": simple(1, 3, 2, (4, 5), 3, stride=2, padding=1, dilation=3, extra=(1, 2)),
    "transposed, one dimension": simple(2, 3, 2, (9,), 4, stride=2, padding=1, extra=0),
    "transposed, three dimensions": simple(1, 2, 2, (2, 3, 3), 2, stride=2, extra=1),
    "weights shared by threads": simple(3, 3, 40, (30, 30), 2),
    "several blocks": simple(1, 58, 115, (20, 20), 3, padding=1),
    "several blocks of the input": simple(1, 130, 40, (21, 21), 3, stride=2, padding=1),
    "nothing in the batch": simple(0, 3, 4, (5, 5), 3),
}


def random_case(seed):
    draw = np.random.default_rng(seed)
    dims = int(draw.integers(1, 4))
    several = lambda low, high: tuple(int(x) for x in draw.integers(low, high, dims))  # noqa: E731
    stride, dilation, kernel = several(1, 4), several(1, 3), several(1, 4)
    extra = tuple(int(draw.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True))
    low = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = tuple(int(x + draw.integers(0, 40 // dims**2)) for x in low)
    transposed = bool(draw.random() < 0.3)
    return reference_conv.Case(
        int(draw.integers(1, 4)),
        int(draw.integers(1, 6)),
        int(draw.integers(1, 20)),
        size,
        kernel,
        stride,
        (0,) * dims if transposed else several(0, 3),
        dilation,
        groups=int(draw.integers(1, 4)),
        extra=extra if transposed else None,
    )


CASES |= {f"random {seed}": random_case(seed) for seed in range(12)}


def tensors(case, dtype=torch.float32, seed=0):
    """Input, weight, bias, gradient."""
    generator = torch.Generator().manual_seed(seed)
    x, w, y = case.shapes()
    return [torch.randn(shape, generator=generator).to(dtype) for shape in (x, w, (y[1],), y)]


def hostile(tensor, seed):
    """With NaN, infinities, zeros of both signs, subnormals and very large numbers here and there."""
    draw = np.random.default_rng(seed)
    special = [0.0, -0.0, 1e-40, -1e-45, 1e-20, -1e-20, 1e38, -3e38, float("inf"), float("-inf"), float("nan")]
    x = tensor.numpy().copy()
    at = draw.random(x.shape) < 0.3
    x[at] = draw.choice(np.array(special[: 6 if seed % 2 else None], np.float32), int(at.sum()))
    return torch.from_numpy(x)


def run(case, x, w, b, dy, mask=(True, True, True)):
    y = torch.ops.aten.convolution(x, w, b, *case.arguments())
    return (
        y,
        *torch.ops.aten.convolution_backward(dy, x, w, [w.shape[0]], *case.arguments(), list(mask)),
    )


@cache
def expected(name, kind=""):
    """Inputs of a case, and its four results by the reference."""
    case = CASES[name]
    inputs = tensors(case)
    if kind:
        inputs = [hostile(t, 2 * i + (kind == "tiny")) for i, t in enumerate(inputs)]
    x, w, b, dy = (t.numpy() for t in inputs)
    return inputs, (reference_conv.forward(case, x, w, b), *reference_conv.backward(case, dy, x, w))


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_the_specified_sums(isa, threads, name):
    inputs, wanted = expected(name)
    for got, want in zip(run(CASES[name], *inputs), wanted, strict=True):
        assert reference.same(got.numpy(), want)


HOSTILE = ["three by three", "just over a chunk", "strided", "depthwise", "depthwise, strided", "transposed"]


@pytest.mark.parametrize("kind", ["huge", "tiny"])
@pytest.mark.parametrize("name", HOSTILE)
def test_nan_infinities_zeros_and_subnormals_take_part_like_any_number(isa, name, kind):
    inputs, wanted = expected(name, kind)
    for got, want in zip(run(CASES[name], *inputs), wanted, strict=True):
        assert reference.same(got.numpy(), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["pointwise", "strided", "depthwise", "depthwise, strided", "transposed", "random 5"])
def test_half_types_are_widened_and_rounded_once(isa, name, dtype):
    case = CASES[name]
    inputs = tensors(case, dtype)
    wide = run(case, *[t.float() for t in inputs])
    for got, want in zip(run(case, *inputs), wide, strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, want.to(dtype))


def layouts(tensor):
    """The same numbers in other places."""
    yield "offset", torch.cat([tensor.flatten(), torch.ones(3)])[: tensor.numel()].view(tensor.shape)
    if tensor.dim() == 4:
        yield "channels last", tensor.contiguous(memory_format=torch.channels_last)
    yield "transposed", tensor.transpose(0, -1).contiguous().transpose(0, -1)
    yield "sliced", torch.stack([tensor, -tensor], -1)[..., 0]


NAMES = ["pointwise", "three by three", "strided", "groups", "depthwise", "depthwise, strided", "one dimension"]
NAMES += ["three dimensions", "transposed", "first layer", "weights over chunks"]


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_of_what_comes_in_is_not_seen_in_the_bits(exact, name):
    case = CASES[name]
    inputs = tensors(case)
    wanted = run(case, *inputs)
    for which in (0, 1, 3):
        for _, other in layouts(inputs[which]):
            changed = [*inputs[:which], other, *inputs[which + 1 :]]
            for got, want in zip(run(case, *changed), wanted, strict=True):
                assert reference.same(got.numpy(), want.numpy())
    everything = [dict(layouts(t)).get("channels last", t) for t in inputs]
    for got, want in zip(run(case, *everything), wanted, strict=True):
        assert reference.same(got.contiguous().numpy(), want.numpy())


def test_an_expanded_gradient_is_its_numbers(exact):
    case = CASES["three by three"]
    x, w, b, dy = tensors(case)
    one = dy[:1, :1, :1, :1].expand(dy.shape)
    for got, want in zip(run(case, x, w, b, one), run(case, x, w, b, one.contiguous()), strict=True):
        assert reference.same(got.numpy(), want.numpy())


@pytest.mark.parametrize("name", ["three by three", "three dimensions", "transposed", "depthwise", "one dimension"])
@pytest.mark.parametrize("last", [(), (0,), (1,), (0, 1, 3)])
def test_results_are_laid_out_as_pytorch_does(name, last):
    case = CASES[name]
    inputs = tensors(case)
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(inputs[0].dim(), torch.contiguous_format)
    for i in last:
        inputs[i] = inputs[i].contiguous(memory_format=memory)
    stock = [t.stride() for t in run(case, *inputs)[:2]]
    with library.exact():
        assert [t.stride() for t in run(case, *inputs)[:2]] == stock


@pytest.mark.parametrize("name", ["three by three", "strided", "depthwise", "transposed"])
def test_a_sample_does_not_see_the_batch_that_it_is_in(exact, name):
    case = CASES[name]
    x, w, b, dy = tensors(case)
    y, dx, *_ = run(case, x, w, b, dy)
    alone_y, alone_dx, *_ = run(case, x[1:2], w, b, dy[1:2])
    assert reference.same(y[1:2].numpy(), alone_y.numpy())
    assert reference.same(dx[1:2].numpy(), alone_dx.numpy())


ACCURACY = [
    "three by three",
    "three chunks",
    "strided",
    "depthwise",
    "weights over chunks",
    "transposed",
    "first layer",
]


@pytest.mark.parametrize("name", ACCURACY)
def test_errors_are_no_larger_than_those_of_pytorch(name):
    case = CASES[name]
    inputs = tensors(case)
    exactly = run(case, *[t.double() for t in inputs])
    stock = run(case, *inputs)
    with library.exact():
        ours = run(case, *inputs)
    for true, theirs, got in zip(exactly, stock, ours, strict=True):
        error, allowed = (got - true).pow(2).mean().sqrt(), (theirs - true).pow(2).mean().sqrt()
        assert error <= 1.5 * allowed + 1e-7 * true.abs().max()


def test_every_way_to_convolve_comes_down_to_the_same_kernels(exact):
    x, w, b, _ = tensors(CASES["three by three"])
    y = functional.conv2d(x, w, b, padding=1)
    assert torch.equal(functional.conv2d(x, w, b, padding="same"), y)
    assert torch.equal(functional.conv2d(x[0], w, b, padding=1), y[0])
    assert torch.equal(torch.convolution(x, w, b, [1], [1], [1], False, [0], 1), y)
    assert torch.equal(
        torch._convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, True, True, True), y
    )
    assert torch.equal(functional.conv2d(x, w, b, padding=1), functional.conv2d(x, w, padding=1) + b[:, None, None])
    padded = functional.pad(x, (1, 1, 1, 1), mode="circular")
    module = torch.nn.Conv2d(5, 17, 3, padding=1, padding_mode="circular")
    module.load_state_dict({"weight": w, "bias": b})
    assert torch.equal(module(x), functional.conv2d(padded, w, b))
    with torch.inference_mode():
        assert torch.equal(functional.conv2d(x, w, b, padding=1), y)


def test_out_variants_write_what_the_others_return(exact):
    case = CASES["strided"]
    x, w, b, dy = tensors(case)
    results = run(case, x, w, b, dy)
    aten, out = torch.ops.aten, [torch.empty(0) for _ in range(4)]
    aten.convolution.out(x, w, b, *case.arguments(), out=out[0])
    more = dict(zip(("out0", "out1", "out2"), out[1:], strict=True))
    aten.convolution_backward.out(dy, x, w, [w.shape[0]], *case.arguments(), [True] * 3, **more)
    assert all(torch.equal(a, b) for a, b in zip(out, results, strict=True))
    aten._convolution.out(x, w, b, *case.arguments(), False, True, True, True, out=out[0])
    assert torch.equal(out[0], results[0])


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3])
def test_only_the_gradients_that_are_asked_for_are_computed(exact, mask):
    case = CASES["strided"]
    inputs = tensors(case)
    wanted = run(case, *inputs)[1:]
    for got, want, asked in zip(run(case, *inputs, mask=mask)[1:], wanted, mask, strict=True):
        assert (got is not None) == asked
        assert got is None or torch.equal(got, want)


@pytest.mark.parametrize("name", ["strided", "transposed", "groups", "one dimension", "three dimensions"])
def test_autograd_reaches_the_same_kernels_twice(exact, name):
    case = CASES[name]
    x, w, b, dy = tensors(case)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    y = torch.ops.aten.convolution(x, w, b, *case.arguments())
    gradients = torch.autograd.grad(y, leaves, dy, create_graph=True)
    wanted = run(case, *[t.detach() for t in leaves], dy)[1:]
    assert all(torch.equal(g, want) for g, want in zip(gradients, wanted, strict=True))
    again = torch.autograd.grad((gradients[0] * 2).sum(), [w])[0]
    close = [t.detach().double().requires_grad_() for t in (x, w, b)]
    library.disable()
    y = torch.ops.aten.convolution(*close, *case.arguments())
    first = torch.autograd.grad(y, close, dy.double(), create_graph=True)
    true = torch.autograd.grad((first[0] * 2).sum(), [close[1]])[0]
    assert (again - true).abs().max() <= 1e-4 * true.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_types_are_refused(exact, dtype):
    inputs = tensors(CASES["strided"], dtype)
    with pytest.raises(RuntimeError, match="not exact: convolution: it is not specified"):
        torch.ops.aten.convolution(*inputs[:3], *CASES["strided"].arguments())
    with pytest.raises(RuntimeError, match="not exact: convolution_backward"):
        torch.ops.aten.convolution_backward(
            inputs[3], *inputs[:2], None, *CASES["strided"].arguments(), [True, True, False]
        )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_are_pytorchs_own(dtype):
    x, w = torch.arange(50, dtype=dtype).view(1, 2, 5, 5), torch.arange(36, dtype=dtype).view(2, 2, 3, 3)
    wanted = functional.conv2d(x.double(), w.double(), torch.ones(2).double(), padding=1)
    with library.exact():
        assert torch.equal(functional.conv2d(x, w, torch.ones(2, dtype=dtype), padding=1), wanted.to(dtype))


def test_types_that_do_not_go_together_are_an_error(exact):
    x, w, b, _ = tensors(CASES["strided"])
    with pytest.raises(RuntimeError, match="should be the same"):
        torch.ops.aten.convolution(x.half(), w, b, *CASES["strided"].arguments())
    with pytest.raises(RuntimeError, match="bias type"):
        torch.ops.aten.convolution(x, w, b.half(), *CASES["strided"].arguments())


X, W = torch.ones(1, 4, 5, 5), torch.ones(2, 4, 3, 3)
WRONG = {
    "channels": lambda: functional.conv2d(X, torch.ones(2, 3, 3, 3)),
    "groups": lambda: functional.conv2d(X, torch.ones(3, 2, 3, 3), groups=2),
    "a kernel larger than the input": lambda: functional.conv2d(X, torch.ones(2, 4, 6, 6)),
    "a stride of 0": lambda: functional.conv2d(X, W, stride=0),
    "a dilation of 0": lambda: functional.conv2d(X, W, dilation=0),
    "a negative padding": lambda: functional.conv2d(X, W, padding=-1),
    "a bias of another length": lambda: functional.conv2d(X, W, torch.ones(3)),
    "an output padding that is too large": lambda: functional.conv_transpose2d(
        X, torch.ones(4, 2, 3, 3), output_padding=1
    ),
    "a gradient of another shape": lambda: torch.ops.aten.convolution_backward(
        torch.ones(1, 2, 5, 5), X, W, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_pytorch_finds_wrong_is_wrong(what):
    with library.exact(), pytest.raises(RuntimeError):
        WRONG[what]()
    with pytest.raises(RuntimeError):
        WRONG[what]()
