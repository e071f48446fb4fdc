"""PyTorch's own kernels of the operators that exact mode leaves as they are: a digest of what each gives.

Those of single elements also have to give each the same bits alone, in a vector and with a stride: PyTorch computes
these by different code.
"""

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
    **{name: getattr(torch, name) for name in ("sign", "sgn", "isnan", "isinf", "isneginf", "isposinf", "nan_to_num")},
    "frexp": lambda x: torch.frexp(x).mantissa,
    "exponent": lambda x: torch.frexp(x).exponent,
    "add a number": lambda x: x + 0.3,
    "number minus": lambda x: 0.3 - x,
    "mul by a number": lambda x: x * 0.3,
    "div by a number": lambda x: x / 0.3,
    "number by": lambda x: 0.3 / x,
    "threshold": lambda x: functional.threshold(x, 0.3, 0.7),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.3),
    "hardshrink": lambda x: functional.hardshrink(x, 0.3),
    "prelu by a number": lambda x: functional.prelu(x, torch.tensor([0.3], dtype=x.dtype)),
    "to float": lambda x: x.float(),
    "to bfloat16": lambda x: x.bfloat16(),
    "to half": lambda x: x.half(),
    "to double": lambda x: x.double(),
    "bucketize": lambda x: torch.bucketize(x.contiguous(), torch.tensor([-1.0, 0.0, 0.25, 1.0], dtype=x.dtype)),
    "unscale": lambda x: unscaled(x)[0],
}

BINARY = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "nextafter", "heaviside", "eq", "lt", "ge")},
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.3),
    "logical_xor": torch.logical_xor,
    "prelu": lambda x, y: torch.ops.aten._prelu_kernel(x, y),
    "prelu_backward": lambda x, y: torch.ops.aten._prelu_kernel_backward(x, y, x)[0],
    "prelu_backward, weight": lambda x, y: torch.ops.aten._prelu_kernel_backward(x, y, x)[1],
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.3),
    "leaky_relu_backward": lambda x, y: torch.ops.aten.leaky_relu_backward(x, y, 0.3, False),
}

WHOLE = {
    "sort": lambda x, y: torch.cat([part.to(x.dtype) for part in x.sort(stable=True)]),
    "argmax": lambda x, y: x.view(1, -1).argmax(1),
    "argmin": lambda x, y: x.view(1, -1).argmin(1),
    "argmax of all": lambda x, y: x.argmax().view(1),
    "cummax": lambda x, y: torch.cat([part.to(x.dtype) for part in x.cummax(0)]),
    "cummin": lambda x, y: torch.cat([part.to(x.dtype) for part in x.cummin(0)]),
    "count_nonzero": lambda x, y: x.count_nonzero().view(1),
    "nonzero": lambda x, y: torch.nonzero(x),
    "any": lambda x, y: torch.stack([x.any(), x.all()]),
    "isin": lambda x, y: torch.isin(x, y[:7]),
    "searchsorted": lambda x, y: torch.searchsorted(torch.nan_to_num(y).sort().values, x.contiguous()),
    "amp": lambda x, y: torch.cat([part.float() for part in unscaled(x)]),
}
"""Of which an element's result depends on the others."""

ELEMENTWISE = {name: lambda x, y, run=run: run(x) for name, run in UNARY.items()} | BINARY


def unscaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a GradScaler does: the gradients, whether some are not finite, the new scale."""
    x, found = x.clone(), torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, torch.tensor([0.3]))
    scale = torch._amp_update_scale_(torch.tensor([65536.0]), torch.tensor([1], dtype=torch.int32), found, 2.0, 0.5, 2)
    return x, found, scale


def pieces(x: torch.Tensor) -> list[torch.Tensor]:
    """The same values as they may lie in memory, and some of them alone or with others."""
    apart = torch.zeros(2 * len(x), dtype=x.dtype)[::2].copy_(x)
    turned = x[: len(x) // 4 * 4].view(-1, 4).t().reshape(-1)
    return [x, x[3:], apart, turned, *(x[:n] for n in (1, 7, 17, 35)), *(x[i : i + 1] for i in range(0, len(x), 3))]


def outcome(run, x: torch.Tensor, y: torch.Tensor, elementwise: bool) -> str:
    """Digest of all pieces' results."""
    try:
        results = [run(*some) for some in zip(pieces(x), pieces(y), strict=True)]
    except (RuntimeError, NotImplementedError) as error:
        return f"failed: {str(error)[:60]}"
    by_place = elementwise and [digest([part]) for part in results] != [digest([part]) for part in pieces(results[0])]
    return digest(results) + (" differs by place" if by_place else "")


def main() -> dict[str, str]:
    """Digests by operator and type."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = values(1500, dtype)
        y = x.roll(701)
        for table in (ELEMENTWISE, WHOLE):
            for name, run in table.items():
                found[f"{name} {dtype}"] = outcome(run, x, y, table is ELEMENTWISE)
    return found
