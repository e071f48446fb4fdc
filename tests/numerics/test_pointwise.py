"""Pointwise operators: the specified bits in every layout, type and variant, gradients through autograd, accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as nn
from easyscale.pipeline.numerics import library
from numerics import reference, stock
from numerics import reference_functions as specified
from numerics.isas import ISAS
from numerics.reference import fma
from numerics.test_functions import words

UNARY = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "rsqrt": torch.rsqrt,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_tanh": lambda x: nn.gelu(x, approximate="tanh"),
    "softplus": nn.softplus,
    "log_sigmoid": nn.logsigmoid,
}

SMOOTH = {
    **{name: function for name, function in UNARY.items() if name not in ("log", "log1p", "rsqrt")},
    "mish": nn.mish,
    "elu": lambda x: nn.elu(x, 0.7),
    "selu": nn.selu,
    "celu": lambda x: nn.celu(x, 1.3),
    "leaky_relu": nn.leaky_relu,
    "hardswish": nn.hardswish,
    "hardsigmoid": nn.hardsigmoid,
    "hardtanh": nn.hardtanh,
    "relu6": nn.relu6,
    "softsign": nn.softsign,
    "glu": nn.glu,
    "sin": torch.sin,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "square": torch.square,
    "cube": lambda x: x**3,
    "power": lambda x: (x.abs() + 0.1) ** 1.7,
    "logit": lambda x: torch.logit(x * 0.1 + 0.5, 1e-3),
    "mse": lambda x: nn.mse_loss(x, x.detach().flip(0), reduction="none"),
    "smooth_l1": lambda x: nn.smooth_l1_loss(x, x.detach().flip(0), reduction="none", beta=0.6),
    "huber": lambda x: nn.huber_loss(x, x.detach().flip(0), reduction="none", delta=0.8),
    "bce": lambda x: nn.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(x.detach().flip(0)), reduction="none"),
    "bce_logits": lambda x: nn.binary_cross_entropy_with_logits(x, torch.sigmoid(x.detach().flip(0)), reduction="none"),
    "lerp": lambda x: torch.lerp(x, x.detach().flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.detach().flip(0), value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.detach().flip(0).abs() + 1, value=-0.3),
    "add": lambda x: torch.add(x, x.detach().flip(0), alpha=0.3),
    "logaddexp": lambda x: torch.logaddexp(x, x.detach().flip(0)),
    "xlogy": lambda x: torch.xlogy(x, x.detach().abs() + 0.1),
    "hypot": lambda x: torch.hypot(x, x.detach().flip(0)),
    "atan2": lambda x: torch.atan2(x, x.detach().flip(0)),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "prelu": lambda x: nn.prelu(x, torch.tensor([0.2], dtype=x.dtype)),
    "softshrink": nn.softshrink,
    "hardshrink": nn.hardshrink,
}


def result_of(function, *inputs):
    with np.errstate(all="ignore"):
        return np.asarray(function(*inputs), np.float32)


def rounded(x, dtype):
    """As a tensor of that type, rounded once (PyTorch's conversion is right: one correctly rounded operation)."""
    return torch.from_numpy(np.array(x, np.float32)).to(dtype)


@pytest.mark.parametrize("name", UNARY)
def test_bits_are_the_specified_ones_in_every_layout_and_type(isa, name):
    whole = torch.from_numpy(np.concatenate([words(1100, 8), np.linspace(-9, 9, 1200, dtype=np.float32)])).view(46, 50)
    for x in (whole, whole.t(), whole[:, ::3], whole[3:4, 7:8].expand(5, 3), whole[2, 3], whole[:0]):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            y = x.to(dtype) if dtype != torch.float32 else x
            expected = rounded(result_of(getattr(specified, name), y.float().contiguous().numpy()), dtype)
            assert reference.same(UNARY[name](y).float().numpy(), expected.float().numpy()), (x.shape, dtype)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "rsqrt"])
def test_functional_in_place_and_out_variants_are_one(isa, name):
    x = torch.from_numpy(words(300, 9))
    functional = getattr(torch, name)(x)
    out = torch.empty(300)
    getattr(torch, name)(x, out=out)
    foreach = getattr(torch, f"_foreach_{name}")([x, x[::2]])
    in_place = getattr(x.clone(), f"{name}_")()
    for other in (out, in_place, foreach[0]):
        assert reference.same(functional.numpy(), other.numpy())
    assert reference.same(functional[::2].numpy(), foreach[1].numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_with_a_factor_and_interpolations_are_fused_multiply_adds(isa, dtype):
    a, b, c = (torch.from_numpy(words(999, seed)).to(dtype) for seed in (1, 2, 3))
    x, y, z = (tensor.float().numpy() for tensor in (a, b, c))
    third = np.float32(0.3)

    def check(result, expected):
        assert reference.same(result.float().numpy(), rounded(np.asarray(expected, np.float32), dtype).float().numpy())

    with np.errstate(all="ignore"):
        check(torch.add(a, b, alpha=0.3), fma(third, y, x))
        check(torch.sub(a, b, alpha=0.3), fma(-third, y, x))
        check(torch.rsub(a, b, alpha=0.3), fma(-third, x, y))
        check(a.clone().add_(b, alpha=0.3), fma(third, y, x))
        check(a + b, x + y)
        check(a - b, x - y)
        check(a * b, x * y)
        check(a / b, x / y)
        check(a * 0.3, x * third)
        check(a / 0.3, x / third)
        check(torch.addcmul(a, b, c, value=0.3), fma(third * y, z, x))
        check(torch.addcdiv(a, b, c, value=0.3), x + third * y / z)
        for weight in (0.3, 0.7):
            check(torch.lerp(a, b, weight), specified.lerp(x, y, np.float32(weight)))
        check(torch.lerp(a, b, c), specified.lerp(x, y, z))
        check(torch._foreach_lerp([a], [b], 0.3)[0], specified.lerp(x, y, third))
        check(torch._foreach_addcmul([a], [b], [c], 0.3)[0], fma(third * y, z, x))


def test_broadcast_and_transposed_operands_have_the_bits_of_contiguous_ones(isa, threads):
    a, b = torch.randn(60, 1, 70), torch.randn(50, 70).t()[None].expand(60, 70, 50).transpose(1, 2)
    whole = [tensor.expand(60, 50, 70).contiguous() for tensor in (a, b)]
    for function in (
        lambda x, y: torch.add(x, y, alpha=0.3),
        torch.logaddexp,
        torch.maximum,
        lambda x, y: torch.lerp(x, y, 0.2),
    ):
        assert reference.same(function(a, b).numpy(), function(*whole).numpy())


def test_maxima_and_minima_keep_nan_and_order_zeros(isa):
    numbers = np.array([0.0, -0.0, 1, -1, np.nan, np.inf, -np.inf, 2**-149], np.float32)
    x, y = (values.ravel().repeat(3) for values in np.meshgrid(numbers, numbers))
    nan = np.isnan(x) | np.isnan(y)
    equal = x == y
    words_of = [values.view(np.uint32) for values in (x, y)]
    larger = np.where(equal, (words_of[0] & words_of[1]).view(np.float32), np.where(x > y, x, y))
    smaller = np.where(equal, (words_of[0] | words_of[1]).view(np.float32), np.where(x < y, x, y))
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    for result in (torch.maximum(a, b), torch.clamp_min(a, b)):
        assert reference.same(result.numpy(), np.where(nan, np.float32(np.nan), larger))
    for result in (torch.minimum(a, b), torch.clamp_max(a, b)):
        assert reference.same(result.numpy(), np.where(nan, np.float32(np.nan), smaller))
    rectified = np.where(np.isnan(x), x, np.where(x > 0, x, np.float32(0)))
    for result in (torch.relu(a), a.clone().relu_(), a.clamp(min=0)):
        assert reference.same(result.numpy(), rectified)
    fmax = np.where(np.isnan(x), y, np.where(np.isnan(y), x, larger))
    assert reference.same(torch.fmax(a, b).numpy(), fmax)


@pytest.fixture(scope="module")
def ordinary():
    return torch.randn(4, 1030, generator=torch.Generator().manual_seed(1)) * 2


def outputs(function, x, dtype=None):
    x = x.to(dtype or x.dtype).requires_grad_()
    y = function(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    (gradient,) = torch.autograd.grad(y, x, weights)
    return y.detach(), gradient


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients_are_no_less_exact_than_stock(name, ordinary):
    truth = outputs(SMOOTH[name], ordinary, torch.float64)
    stock = outputs(SMOOTH[name], ordinary)
    with library.exact():
        ours = outputs(SMOOTH[name], ordinary)
    for ours_, stock_, truth_ in zip(ours, stock, truth, strict=True):
        size = truth_.abs() + 1e-2
        error, theirs = (((tensor - truth_).abs() / size).max().item() for tensor in (ours_, stock_))
        assert error <= 1.5 * theirs + 1e-7


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_the_same_for_all_instruction_sets_threads_and_places(name, dtype, ordinary):
    x = ordinary[:, :80].to(dtype)
    found = []
    for isa in ISAS:
        with library.exact(isa):
            found.append(outputs(SMOOTH[name], x))
            found.append([tensor.t().contiguous().t() for tensor in outputs(SMOOTH[name], x.t().contiguous().t())])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert reference.same(a.float().numpy(), b.float().numpy())


@pytest.mark.parametrize(
    "function",
    [
        torch.exp,
        torch.sigmoid,
        nn.gelu,
        lambda x: torch.add(x, x, alpha=0.5),
        lambda x: torch.lerp(x, x, 0.5),
        lambda x: x**2.5,
        lambda x: torch.addcmul(x, x, x),
        lambda x: nn.binary_cross_entropy(x.clamp(0, 1), x.clamp(0, 1)),
        lambda x: torch.maximum(x, x),
    ],
)
def test_float64_is_refused_where_a_kernel_is_needed(exact, function):
    with pytest.raises(RuntimeError, match="easyscale: not exact"):
        function(torch.ones(3, dtype=torch.float64))


def test_plain_float64_arithmetic_and_integers_pass(exact):
    x = torch.arange(1, 7, dtype=torch.float64)
    assert (x + x).sum() == 42
    assert (x * x / 3 - x).sqrt().isfinite().any()
    i = torch.arange(5)
    assert torch.equal(torch.add(i, i, alpha=3), i * 4)
    assert torch.equal(i.clamp(1, 3), torch.tensor([1, 1, 2, 3, 3]))
    assert torch.equal(i**2, i * i)


@pytest.mark.parametrize("function", [lambda x: x + x, lambda x: x * x, lambda x: x / x])
def test_complex_arithmetic_is_refused(exact, function):
    with pytest.raises(RuntimeError, match="complex"):
        function(torch.ones(3, dtype=torch.complex64))


def test_a_cross_entropy_of_what_is_no_probability_is_an_error(exact):
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        nn.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0]))


@pytest.mark.parametrize("start", [0, 1, 7])
def test_results_larger_than_a_cache_have_the_bits_of_small_ones(isa, threads, start):
    x = torch.linspace(-9, 9, 2_200_000)[start:]
    y = torch.empty(2_200_001)[start + 1 :]
    torch.add(x, x.flip(0), alpha=0.3, out=y)
    assert reference.same(y.numpy(), fma(np.float32(0.3), x.flip(0).numpy(), x.numpy()))
    z = x.clone()
    assert reference.same(z.add_(x.flip(0), alpha=0.3).numpy(), y.numpy())


def test_remainders_and_rounded_quotients_are_exact(isa):
    random = np.random.default_rng(5)
    words = random.integers(0, 2**32, (2, 3000), np.uint64).astype(np.uint32).view(np.float32)
    near = random.normal(0, 100, (2, 3000)).astype(np.float32)
    special = np.array([0, -0.0, 1, -1, 3, -3, 0.1, np.inf, -np.inf, np.nan, 2**-149, 3e38], np.float32)
    x, y = np.concatenate([words, near, np.stack([values.ravel() for values in np.meshgrid(special, special)])], 1)
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    with np.errstate(all="ignore"):
        assert reference.same(torch.fmod(a, b).numpy(), np.fmod(x, y))
        rest = np.fmod(x, y)
        moved = np.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)
        assert reference.same(torch.remainder(a, b).numpy(), moved)
        assert reference.same(torch.div(a, b, rounding_mode="trunc").numpy(), np.trunc(x / y))
        floor = torch.div(a, b, rounding_mode="floor").numpy()
        exact = np.isfinite(x) & np.isfinite(y) & (y != 0) & (np.abs(x / y) < 2**20)
        assert (floor[exact] == np.floor(x[exact].astype(np.float64) / y[exact].astype(np.float64))).mean() > 0.999
        assert reference.same(floor[exact], np.floor_divide(x[exact], y[exact]))


def test_shrinking_keeps_nan_and_takes_gradients_outside(isa):
    nan = float("nan")
    x = torch.tensor([nan, -1, -0.5, 0, 0.5, 1])
    grad = torch.arange(1.0, 7)
    assert reference.same(torch.nn.functional.softshrink(x).numpy(), np.array([nan, -0.5, 0, 0, 0, 0.5], np.float32))
    expected = np.array([1, 2, 0, 0, 0, 6], np.float32)
    assert reference.same(torch.ops.aten.softshrink_backward(grad, x, 0.5).numpy(), expected)
    assert reference.same(torch.ops.aten.hardshrink_backward(grad, x, 0.5).numpy(), expected)
    inside = np.array([1, 0, 0, 4, 0, 0], np.float32)
    assert reference.same(torch.ops.aten.hardtanh_backward(grad, x, -0.5, 0.5).numpy(), inside)


def test_a_remainder_does_not_depend_on_the_place_of_an_element(exact):
    """PyTorch's is another beside others than alone."""
    x, y = stock.values(1500, torch.float32), stock.values(1500, torch.float32).roll(701)
    alone = torch.cat([torch.remainder(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    assert reference.same(torch.remainder(x, y).numpy(), alone.numpy())
