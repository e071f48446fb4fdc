"""exp and log of docs/numerics.md in numpy, one rounding per line, for the references of softmax and losses."""

from __future__ import annotations

import numpy as np
from numerics.reference import fma

EXP = ["0x1.6a4e74p-10", "0x1.123980p-7", "0x1.5558aep-5", "0x1.555492p-3", "0x1.fffffcp-2"]
LOG = [
    *("-0x1.07e40ep-3", "0x1.1e7642p-3", "-0x1.f32302p-4", "0x1.1ed3e6p-3", "-0x1.559d06p-3"),
    *("0x1.99d05ep-3", "-0x1.fffef6p-3", "0x1.555506p-2"),
]


def number(text):
    return np.float32(float.fromhex(text))


def polynomial(coefficients, x):
    result = np.full_like(x, number(coefficients[0]))
    for coefficient in coefficients[1:]:
        result = fma(result, x, number(coefficient))
    return result


def exponential(x):
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        y = np.clip(np.nan_to_num(x, nan=0), np.float32(-104), np.float32(89))
        shift = np.float32(12582912)
        k = fma(y, number("0x1.715476p+0"), shift) - shift
        r = fma(k, number("-0x1.62e400p-1"), y)
        r = fma(k, number("-0x1.7f7d1cp-20"), r)
        one_more = np.float32(1) + r
        one_more = one_more + fma(r * r, polynomial(EXP, r), r - (one_more - np.float32(1)))
        k = k.astype(np.int64)
        result = (
            one_more * np.float32(2) ** (k >> 1).astype(np.float32) * np.float32(2) ** (k - (k >> 1)).astype(np.float32)
        )
    return np.where(np.isnan(x), x, result.astype(np.float32))


def logarithm(x):
    """Of what is at least 1, or NaN."""
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        word = np.nan_to_num(x, nan=1, posinf=1).view(np.uint32).astype(np.int64)
        exponent = (word - 0x3F2AAAAB) & 0xFF800000
        m = (word - exponent).astype(np.uint32).view(np.float32) - np.float32(1)
        k = (exponent >> 23).astype(np.float32)
        p = fma(polynomial(LOG, m), m, np.float32(-0.5))
        p = fma(p, m * m, m)
        result = fma(k, number("0x1.62e430p-1"), p)
    return np.where(np.isfinite(x), result, x)
