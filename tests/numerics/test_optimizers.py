"""Optimizers: loops, foreach and fused are one, under every instruction set; numbers from Python need no C library."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library, scalars
from numerics import reference
from numerics.isas import ISAS
from numerics.reference import fma

SETTINGS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "dampening": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 1e-2}),
    (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "betas": (0.4, 0.7)}),
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 1e-2, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 1e-2, "weight_decay": 1e-2}),
]

OTHERS = [
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.9, "centered": True}),
    (torch.optim.Adamax, {"lr": 1e-2}),
    (torch.optim.NAdam, {"lr": 1e-2}),
    (torch.optim.RAdam, {"lr": 1e-2}),
    (torch.optim.Adadelta, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
]


@pytest.fixture(scope="module", autouse=True)
def installed():
    scalars.install()


def normal(shape, seed):
    """Numpy's, since PyTorch's are others in exact mode."""
    return torch.from_numpy(np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32))


def parameters(dtype=torch.float32):
    shapes = [(37, 41), (5,), (), (0, 3)]
    found = [normal(shape, 3 + i).to(dtype).requires_grad_() for i, shape in enumerate(shapes)]
    found.append(normal((20, 30), 9).to(dtype).t().requires_grad_())
    return found


def trained(kind, settings, dtype=torch.float32, steps=4, **how):
    weights = parameters(dtype)
    if dtype == torch.float16 and kind is not torch.optim.SGD:
        settings = settings | {"eps": 1e-4}
    optimizer = kind(weights, **settings, **how)
    for step in range(steps):
        for i, weight in enumerate(weights):
            weight.grad = normal(weight.shape, 100 * step + i).to(dtype) * 10.0 ** -(step + i)
        optimizer.step()
    return [weight.detach().float().numpy() for weight in weights]


def equal(a, b):
    return all(reference.same(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_fused_and_foreach_steps_have_the_bits_of_the_loop(isa, kind, settings, dtype):
    loop = trained(kind, settings, dtype, foreach=False, fused=False)
    assert equal(loop, trained(kind, settings, dtype, fused=True))
    if dtype == torch.float32:  # beside halves PyTorch's foreach rounds numbers to their type, and the loop does not
        assert equal(loop, trained(kind, settings, dtype, foreach=True))


@pytest.mark.parametrize(("kind", "settings"), SETTINGS + OTHERS)
def test_steps_are_the_same_for_all_instruction_sets_and_as_exact_as_stock(kind, settings):
    truth = trained(kind, settings, torch.float64)
    stock = trained(kind, settings)
    found = []
    for isa in ISAS:
        with library.exact(isa):
            found.append(trained(kind, settings))
    assert all(equal(found[0], other) for other in found[1:])
    for ours, theirs, true in zip(found[0], stock, truth, strict=True):
        if true.size:
            error, stocks = (np.abs(x - true.astype(np.float64)).max() for x in (ours, theirs))
            assert error <= 1.5 * stocks + 1e-6


def test_a_step_of_adam_is_its_formula(isa):
    generator = torch.Generator().manual_seed(1)
    weight, grad = (torch.randn(999, generator=generator) for _ in range(2))
    p, g = weight.numpy().copy(), grad.numpy().copy()
    weight.requires_grad_().grad = grad
    optimizer = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    m = v = np.zeros(999, np.float32)
    f = np.float32
    for step in range(1, 4):
        optimizer.step()
        p = p * f(1 - 1e-2 * 0.1)
        m = fma(f(1 - 0.9), g - m, m)
        v = fma(f(1 - 0.99) * g, g, v * f(0.99))
        root = f(math.sqrt(1 - scalars.power(0.99, float(step))))
        size = f(-(1e-2 / (1 - scalars.power(0.9, float(step)))))
        p = p + size * m / (np.sqrt(v) / root + f(1e-8))
        assert reference.same(weight.detach().numpy(), p)


def test_a_scaled_step_of_a_fused_optimizer_is_that_of_the_unscaled_gradients(exact):
    def run(scaled):
        weight = torch.linspace(-1, 1, 100).requires_grad_()
        optimizer = torch.optim.Adam([weight], fused=True)
        weight.grad = torch.linspace(3, -2, 100) * (1024 if scaled else 1)
        if scaled:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
        optimizer.step()
        return weight.detach().numpy()

    assert reference.same(run(True), run(False))


def test_a_gradient_scaler_unscales_and_skips(isa):
    weight = torch.ones(300).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    inverse = np.float32(1) / np.float32(3)
    assert (weight.detach().numpy() == np.float32(1) - np.float32(3) * inverse).all()
    weight.grad = torch.full((300,), math.inf)
    before = weight.detach().clone()
    scaler.step(optimizer)
    assert torch.equal(weight, before)


def test_clipping_by_value_and_averages_of_weights_are_covered(isa):
    weight = torch.linspace(-2, 2, 50).requires_grad_()
    weight.grad = torch.linspace(-2, 2, 50)
    torch.nn.utils.clip_grad_value_([weight], 0.5)
    assert weight.grad.abs().max() == 0.5
    average = torch.optim.swa_utils.AveragedModel(
        torch.nn.Linear(3, 3), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    model = torch.nn.Linear(3, 3)
    average.update_parameters(model)
    first = model.weight.detach().clone()
    model.weight.data.add_(1)
    average.update_parameters(model)
    expected = fma(np.float32(1 - 0.9), model.weight.detach().numpy() - first.numpy(), first.numpy())
    assert reference.same(average.module.weight.detach().numpy(), expected)


def test_float64_parameters_are_refused(exact):
    weight = torch.ones(3, dtype=torch.float64).requires_grad_()
    weight.grad = torch.ones_like(weight)
    for fused in (True, False):
        optimizer = torch.optim.Adam([weight], fused=fused, foreach=False)
        with pytest.raises(RuntimeError, match="easyscale: not exact"):
            optimizer.step()


# ---- numbers from Python


def test_a_power_is_a_product_of_rounded_products():
    expected, base, left = 1.0, 0.999, 1000
    while left:
        if left & 1:
            expected *= base
        base, left = base * base, left >> 1
    assert scalars.power(0.999, 1000.0) == expected
    assert scalars.power(2.0, -3.0) == 0.125
    assert scalars.power(2.0, 0.5) == math.sqrt(2)


def test_other_powers_and_cosines_are_correctly_rounded():
    random = np.random.default_rng(1)
    for base, exponent in zip(random.uniform(1e-3, 9, 200), random.uniform(-20, 20, 200), strict=True):
        assert abs(scalars.power(base, exponent) / base**exponent - 1) < 3e-16
    for x in random.uniform(-100, 100, 200):
        assert abs(scalars.cosine(x) - math.cos(x)) <= math.ulp(math.cos(x))
    assert scalars.cosine(0.0) == 1
    assert scalars.cosine(math.pi) == -1


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3),
    "several": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 9, 1.7),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, 20),
}


def rates(make, saved=False):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule, found = make(optimizer), []
    for step in range(8):
        optimizer.step()
        schedule.step()
        if saved and step == 4:
            states = copy.deepcopy((schedule.state_dict(), optimizer.state_dict()))
            schedule = make(optimizer)
            schedule.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.fixture(scope="module")
def stock_rates():
    script = "import sys, json; sys.path[:0] = sys.argv[1:]; import numerics.test_optimizers as t\n"
    script += "print(json.dumps({name: t.rates(make) for name, make in t.SCHEDULES.items()}))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, *sys.path], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_as_before_but_for_the_last_bits_and_keep_plain_numbers(name, stock_rates):
    found = rates(SCHEDULES[name])
    assert all(type(rate) is float for rate in found)
    assert np.allclose(found, stock_rates[name], rtol=1e-14)
    assert rates(SCHEDULES[name], saved=True) == found
