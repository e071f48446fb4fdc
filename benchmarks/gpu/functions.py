"""Every function of one number on all 2^32 of them, against the hashes in tests/numerics/exhaustive.json.

What csrc/exhaustive does on a CPU, with PyTorch's operators on the GPU: the hash of a lane, h = h * prime + word, is a
sum of words times powers of the prime, in integers, so its order is free.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .checks import Options, Teller

PRIME = 0x9E3779B97F4A7C15
PART, LANES = 1 << 16, 8
TOGETHER = 1 << 26
"""Numbers at a time, at most."""

FEW = ("power_scalar",)


def functions() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """By the names of csrc/exact/pointwise.h, with the numbers of csrc/exhaustive/main.cc."""
    import torch
    from torch.nn import functional as F  # noqa: N812 - as everywhere

    plain = (
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "erf", "erfc", "erfinv", "rsqrt"),
        *("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sinc"),
        "square",
    )
    aten = torch.ops.aten
    return {name: getattr(torch, name) for name in plain} | {
        "entr": torch.special.entr,
        "logit": lambda x: torch.logit(x, 0.25),
        "silu": F.silu,
        "log_sigmoid": F.logsigmoid,
        "mish": F.mish,
        "softplus": lambda x: F.softplus(x, beta=0.25, threshold=0.75),
        "elu": lambda x: aten.elu(x, 1 / 3, 0.75, 1.0),  # of which the product is 0.25
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "hardsigmoid": F.hardsigmoid,
        "hardswish": F.hardswish,
        "softshrink": lambda x: F.softshrink(x, 0.25),
        "clamp_both": lambda x: torch.clamp(x, 0.25, 0.75),
        "clamp_below": lambda x: torch.clamp(x, min=0.25),
        "clamp_above": lambda x: torch.clamp(x, max=0.25),
        "cube": lambda x: torch.pow(x, 3),
        "power_scalar": lambda x: torch.pow(x, 0.25),
        "inverse_square": lambda x: torch.pow(x, -2),
        "exp_of_minus_abs": lambda x: aten.log_sigmoid_forward(x)[1],
    }


def kind(options: Options) -> str:
    """Which of the recorded hashes."""
    return "sample" if options.quick or options.tiny else "all"


def chosen(options: Options) -> dict[str, str]:
    """Hashes that were recorded, by name."""
    from numerics import exhaustive

    recorded: dict[str, str] = json.loads(exhaustive.RECORD.read_text())[kind(options)]
    return {name: recorded[name] for name in FEW} if options.tiny else recorded


def plan(options: Options) -> list[Planned]:
    """What will be looked at."""
    return [Planned(f"functions on 2^{24 if kind(options) == 'sample' else 32} numbers", len(chosen(options)))]


def run(options: Options, tell: Teller) -> None:
    """Hash each function."""
    from easyscale.pipeline import determinism

    determinism.configure(1, "exact", "cuda")
    all_functions = functions()
    count, step = (1 << 24, 257) if kind(options) == "sample" else (1 << 32, 1)
    for name, recorded in chosen(options).items():
        try:
            found = swept(all_functions[name], count, step, "cuda")
        except RuntimeError as error:
            tell(Check(name, Outcome.failed, str(error).splitlines()[0][:300]))
        else:
            tell.compare(name, found, recorded)


def swept(function: Callable[[torch.Tensor], torch.Tensor], count: int, step: int, where: str) -> str:
    """Hash of a function on the words 0, step, 2 * step ...; `count` of them. NaN is one word."""
    import torch

    rows = PART // LANES
    powers, power = [], 1
    for _ in range(rows):
        powers.append(power - (1 << 64) if power >> 63 else power)
        power = power * PRIME % (1 << 64)
    weights = torch.tensor(powers[::-1], dtype=torch.int64, device=where).view(1, rows, 1)
    hashes = []
    for begin in range(0, count, TOGETHER):
        length = min(TOGETHER, count - begin)
        words = torch.arange(begin, begin + length, dtype=torch.int64, device=where) * step
        x = words.to(torch.int32).view(torch.float32)  # the lower half
        y = function(x)
        words = y.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        words = torch.where(y != y, 0x7FC00000, words)
        lanes = (words.view(-1, rows, LANES) * weights).sum(1)
        hashes.append(lanes.cpu().numpy().view(np.uint64))
    parts = np.zeros(count // PART, np.uint64)
    with np.errstate(over="ignore"):
        for lane in np.concatenate(hashes).T:
            parts = (parts ^ (lane >> np.uint64(32))) * np.uint64(PRIME) + lane
    return f"{fold(parts):016x}"


def fold(hashes: Any) -> int:
    """Of all parts, one after the other."""
    whole = 0
    for one in hashes.tolist():
        whole = ((whole ^ (one >> 32)) * PRIME + one) % (1 << 64)
    return whole
