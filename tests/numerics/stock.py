"""PyTorch's own kernels of the operators that exact mode leaves as they are: a digest of what each gives."""

from __future__ import annotations

import torch
from numerics.zoo import digest
from torch.nn import functional

HOSTILE = [
    *(0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-40, -1e-40, 2.0**-149, 2.0**-126, 3.4e38),
    *(-3.4e38, 0.5, -0.5, 1.5, 2.5, -2.5, 1 / 3, 0.1, 65504.0, 65520.0, 1e-7, 6e-8, 16777217.0, 8388607.5),
]
"""What kernels are likeliest to disagree about."""


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` of them, and others of all magnitudes, without a random generator."""
    words = [(i * 2654435761 + 12345) % 2**32 for i in range(count)]
    wild = torch.tensor([w - 2**32 if w >= 2**31 else w for w in words], dtype=torch.int32).view(torch.float32)
    tame = torch.tensor([(w % 8191 - 4095) / 1024 for w in words], dtype=torch.float32)
    hostile = torch.tensor([HOSTILE[w % len(HOSTILE)] for w in words], dtype=torch.float32)
    third = torch.tensor([w % 3 for w in words])
    return torch.where(third == 0, wild, torch.where(third == 1, tame, hostile)).to(dtype)


UNARY = {
    **{name: getattr(torch, name) for name in ("neg", "abs", "reciprocal", "ceil", "floor", "trunc", "round", "frac")},
    **{name: getattr(torch, name) for name in ("sign", "sgn", "isnan", "isinf", "isneginf", "isposinf")},
    "frexp": lambda x: torch.cat([part.to(x.dtype) for part in torch.frexp(x)]),
    "nan_to_num": torch.nan_to_num,
    "mul by a number": lambda x: x * 0.3,
    "div by a number": lambda x: x / 0.3,
    "number by": lambda x: 0.3 / x,
    "threshold": lambda x: functional.threshold(x, 0.1, 20.0),
    "leaky_relu": functional.leaky_relu,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "prelu": lambda x: functional.prelu(x, torch.tensor([0.3], dtype=x.dtype)),
    "threshold_backward": lambda x: torch.ops.aten.threshold_backward(x.flip(0), x, 0.0),
    "leaky_relu_backward": lambda x: torch.ops.aten.leaky_relu_backward(x.flip(0), x, 0.3, False),
    "hardtanh_backward": lambda x: torch.ops.aten.hardtanh_backward(x.flip(0), x, -1.0, 1.0),
    "hardshrink_backward": lambda x: torch.ops.aten.hardshrink_backward(x.flip(0), x, 0.5),
    "softshrink_backward": lambda x: torch.ops.aten.softshrink_backward(x.flip(0), x, 0.5),
    "prelu_backward": lambda x: torch.cat(torch.ops.aten._prelu_kernel_backward(x.flip(0), x, torch.full_like(x, 0.3))),
    "sort": lambda x: torch.cat([part.to(x.dtype) for part in x.sort(stable=True)]),
    "argmax": lambda x: x.view(1, -1).argmax(1),
    "argmin": lambda x: x.view(1, -1).argmin(1),
    "argmax of all": lambda x: x.argmax().view(1),
    "cummax": lambda x: torch.cat([part.to(x.dtype) for part in x.cummax(0)]),
    "cummin": lambda x: torch.cat([part.to(x.dtype) for part in x.cummin(0)]),
    "count_nonzero": lambda x: x.count_nonzero().view(1),
    "nonzero": torch.nonzero,
    "any": lambda x: torch.stack([x.any(), x.all()]),
    "to float": lambda x: x.float(),
    "to bfloat16": lambda x: x.bfloat16(),
    "to half": lambda x: x.half(),
    "to double": lambda x: x.double(),
    "bucketize": lambda x: torch.bucketize(x.contiguous(), torch.tensor([-1.0, 0.0, 0.25, 1.0], dtype=x.dtype)),
    "amp": lambda x: unscaled(x),
}

BINARY = {
    **{name: getattr(torch, name) for name in ("mul", "div", "nextafter", "heaviside", "eq", "lt", "ge")},
    "trunc div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "where": lambda x, y: torch.where(x > y, x, y),
    "isin": lambda x, y: torch.isin(x, y[:7]),
    "searchsorted": lambda x, y: torch.searchsorted(torch.nan_to_num(y).sort().values, x.contiguous()),
    "logical_xor": torch.logical_xor,
}


def unscaled(x: torch.Tensor) -> torch.Tensor:
    """What a GradScaler does."""
    x, found = x.clone(), torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, torch.tensor([0.3]))
    scale = torch._amp_update_scale_(torch.tensor([65536.0]), torch.tensor([1], dtype=torch.int32), found, 2.0, 0.5, 2)
    return torch.cat([x.float(), found, scale])


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The same values as they may lie in memory."""
    apart = torch.zeros(2 * len(x), dtype=x.dtype)[::2].copy_(x)
    return [x, x[3:], apart, x[: len(x) // 4 * 4].view(-1, 4).t().reshape(-1)]


def main() -> dict[str, str]:
    """Digests by operator and type."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = values(1500, dtype)
        y = x.flip(0).contiguous()
        runs = [(name, run, (x,)) for name, run in UNARY.items()] + [
            (name, run, (x, y)) for name, run in BINARY.items()
        ]
        for name, run, inputs in runs:
            several = [[*layouts(one), *(one[:n] for n in (1, 7, 17, 35))] for one in inputs]
            try:
                results = [run(*some) for some in zip(*several, strict=True)]
            except (RuntimeError, NotImplementedError) as error:
                found[f"{name} {dtype}"] = f"failed: {str(error)[:60]}"
                continue
            found[f"{name} {dtype}"] = digest(results)
    return found
