"""Prints a digest of what PyTorch's own kernels give for the operators that exact mode leaves to them.

Run by test_pointwise_ieee.py under one ATEN_CPU_CAPABILITY after the other. Each operator also has to give every
element the same bits alone, in a vector and with a stride: PyTorch computes those by different code.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import torch
import torch.nn.functional as nn

F = torch.float32
OPERATORS = {
    "abs": lambda x, y: x.abs(),
    "neg": lambda x, y: -x,
    "reciprocal": lambda x, y: x.reciprocal(),
    "sign": lambda x, y: x.sign(),
    "sgn": lambda x, y: x.sgn(),
    "floor": lambda x, y: x.floor(),
    "ceil": lambda x, y: x.ceil(),
    "round": lambda x, y: x.round(),
    "trunc": lambda x, y: x.trunc(),
    "frac": lambda x, y: x.frac(),
    "nan_to_num": lambda x, y: x.nan_to_num(),
    "add": lambda x, y: x + y,
    "add number": lambda x, y: x + 0.3,
    "sub": lambda x, y: x - y,
    "rsub number": lambda x, y: 0.3 - x,
    "mul": lambda x, y: x * y,
    "mul number": lambda x, y: x * 0.3,
    "div": lambda x, y: x / y,
    "div number": lambda x, y: x / 0.3,
    "div of number": lambda x, y: 0.3 / x,
    "heaviside": torch.heaviside,
    "nextafter": torch.nextafter,
    "where": lambda x, y: torch.where(x > y, x, y),
    "lt": lambda x, y: (x < y).to(x.dtype),
    "eq": lambda x, y: (x == y).to(x.dtype),
    "isnan": lambda x, y: x.isnan().to(x.dtype),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.3),
    "leaky_relu": lambda x, y: nn.leaky_relu(x, 0.3),
    "leaky_relu_backward": lambda x, y: torch.ops.aten.leaky_relu_backward(x, y, 0.3, False),
    "prelu": lambda x, y: torch.ops.aten._prelu_kernel(x, y),
    "prelu_backward": lambda x, y: torch.cat(torch.ops.aten._prelu_kernel_backward(x, y, x.flip(0))),
    "threshold": lambda x, y: nn.threshold(x, 0.3, 0.7),
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.3),
    "hardshrink": lambda x, y: nn.hardshrink(x, 0.3),
    "frexp": lambda x, y: x if x.dtype != F else torch.frexp(x).mantissa,
    "unscale": lambda x, y: unscaled(x),
    "to halves": lambda x, y: x.to(torch.bfloat16).float() + x.to(torch.float16).float(),
    "to float64": lambda x, y: x.double().to(x.dtype),
}


def unscaled(x):
    y = x.clone()
    torch._amp_foreach_non_finite_check_and_unscale_([y], torch.zeros(1), torch.tensor([0.3]))
    return y


def digest(x):
    x = x.contiguous().clone()
    x[x.isnan()] = float("nan")
    return hashlib.sha256(x.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def numbers(seed, dtype):
    random = np.random.default_rng(seed)
    if dtype == torch.float64:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.3, -0.3, 5e-324, 1.0, -2.5]
        x = np.concatenate(
            [random.integers(0, 2**64, 500, np.uint64).view(np.float64), random.normal(0, 2, 513), special]
        )
        return torch.from_numpy(x)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.3, -0.3, 2**-149, 1.0, -2.5]
    words = random.integers(0, 2**32, 500, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([words, random.normal(0, 2, 513).astype(np.float32), np.array(special, np.float32)])
    return torch.from_numpy(x).to(dtype)


def main():
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x, y = numbers(1, dtype), numbers(2, dtype)
        order = torch.from_numpy(np.random.default_rng(3).permutation(len(y)))
        x, y = torch.cat([x, x]), torch.cat([y, y[order]])
        for name, operator in OPERATORS.items():
            if dtype == torch.float64 and name not in (
                "abs",
                "neg",
                "reciprocal",
                "add",
                "sub",
                "mul",
                "div",
                "lt",
                "where",
            ):
                continue
            whole = digest(operator(x, y))
            if name not in ("prelu_backward",):
                wide = [torch.zeros(len(x), 3, dtype=dtype) for _ in range(2)]
                wide[0][:, 1], wide[1][:, 1] = x, y
                strided = digest(operator(wide[0][:, 1], wide[1][:, 1]))
                alone = digest(torch.cat([operator(x[i : i + 1], y[i : i + 1]) for i in range(0, len(x), 3)]))
                same = whole == strided and alone == digest(operator(x, y)[::3])
            else:
                same = True
            found[f"{name} {str(dtype)[6:]}"] = whole if same else f"{whole} differs by place"
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
