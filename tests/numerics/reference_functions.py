"""The scalar functions of docs/numerics.md in numpy: the same polynomials and orders, one rounding per operation."""

from __future__ import annotations

import numpy as np
from numerics.reference import fma

F = np.float32
SHIFT = F(12582912)


def hexes(*texts):
    return [F(float.fromhex(text)) for text in texts]


def horner(x, *coefficients):
    """Highest power first."""
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma(p, x, c)
    return p


def power_of_two(k):
    return ((np.asarray(k, np.int64) + 127) << 23).astype(np.uint32).view(F)


def scale(x, k):
    half = k >> 1
    return x * power_of_two(half) * power_of_two(k - half)


def split(x):
    shifted = fma(x, hexes("0x1.715476p+0")[0], SHIFT)
    k = shifted - SHIFT
    high, low = hexes("-0x1.62e400p-1", "-0x1.7f7d1cp-20")
    return np.nan_to_num(k).astype(np.int64), fma(k, low, fma(k, high, x))


def tail(r):
    return horner(r, *hexes("0x1.6a4e74p-10", "0x1.123980p-7", "0x1.5558aep-5", "0x1.555492p-3", "0x1.fffffcp-2"))


def core(r):
    return fma(r * r, tail(r), r)


def exp(x):
    k, r = split(np.clip(x, F(-104), F(89)))
    total = F(1) + r
    return np.where(np.isnan(x), x, scale(total + fma(r * r, tail(r), r - (total - F(1))), k))


def expm1(x):
    k, r = split(np.clip(x, F(-18), F(89)))
    p = horner(
        r, *hexes("0x1.9e6f62p-13", "0x1.6d3a40p-10", "0x1.1112dap-7", "0x1.5554f8p-5", "0x1.555554p-3", "0x1p-1")
    )
    t = power_of_two(k - 1)
    high = t - F(0.5)
    low = (t - high) - F(0.5)
    total = fma(t, r, high)
    half = total + fma(t, p * (r * r), fma(t, r, high - total) + low)
    return np.where((np.abs(x) < F(2**-25)) | np.isnan(x), x, half + half)


def log_end(p, m, k):
    p = fma(p, m, F(-0.5))
    return fma(k, hexes("0x1.62e430p-1")[0], fma(p, m * m, m))


def log(x):
    small = x < F(2**-126)
    y = np.where(small, x * F(2**23), x)
    word = y.view(np.int32)
    exponent = (word - 0x3F2AAAAB) & np.int32(-0x800000)
    m = (word - exponent).view(F) - F(1)
    k = fma(exponent.astype(F), F(2**-23), np.where(small, F(-23), F(0)))
    names = ("-0x1.07e40ep-3", "0x1.1e7642p-3", "-0x1.f32302p-4", "0x1.1ed3e6p-3", "-0x1.559d06p-3", "0x1.99d05ep-3")
    result = log_end(horner(m, *hexes(*names, "-0x1.fffef6p-3", "0x1.555506p-2")), m, k)
    result = np.where(x == np.inf, x, np.where(x == 0, F(-np.inf), result))
    return np.where((x < 0) | np.isnan(x), F(np.nan), result)


def log1p(x):
    word = (F(1) + x).view(np.int32)
    exponent = (word - 0x3F400000) & np.int32(-0x800000)
    k = exponent.astype(F) * F(2**-23)
    down = (0x40800000 - exponent).astype(np.int32).view(F)
    m = fma(x * F(0.25), down, fma(F(0.25), down, F(-1)))
    names = ("-0x1.71e34cp-5", "0x1.acf4b8p-4", "-0x1.0d98f2p-3", "0x1.28807ap-3", "-0x1.54ed96p-3", "0x1.99699ep-3")
    result = log_end(horner(m, *hexes(*names, "-0x1.00004ap-2", "0x1.5555a4p-2")), m, k)
    result = np.where((np.abs(x) < F(2**-25)) | (x == np.inf), x, np.where(x == -1, F(-np.inf), result))
    return np.where((x < -1) | np.isnan(x), F(np.nan), result)


def tanh(x):
    t = np.abs(x)
    s = t * t
    names = ("0x1.e85300p-14", "-0x1.aee1dep-11", "0x1.8f9ddep-9", "-0x1.18de78p-7", "0x1.64c0a2p-6", "-0x1.b9f6dep-5")
    p = horner(s, *hexes(*names, "0x1.11103cp-3", "-0x1.555552p-2"))
    k, r = split(np.minimum(t + t, F(20)))
    large = F(1) - F(2) / (F(1) + (F(1) + core(r)) * power_of_two(k))
    return np.where(np.isnan(x), x, np.copysign(np.where(t < 1, fma(p * s, t, t), large), x))


def sigmoid(x):
    k, r = split(np.maximum(-np.abs(x), F(-104)))
    c = core(r)
    one = F(1) + c
    high, low = scale(one, k), scale(c - (one - F(1)), k)
    d = F(1) + high
    rest = (high - (d - F(1))) + low
    n, n_low = np.where(x < 0, high, F(1)), np.where(x < 0, low, F(0))
    q = n / d
    remainder = (fma(-q, d, n) + n_low) - q * rest
    return np.where(np.isnan(x), x, fma(remainder, fma(d, F(-0.5), F(1.457)), q))


def erf(x):
    t = np.abs(x)
    s = t * t
    names = ("0x1.4771fep-14", "-0x1.a3515ep-11", "0x1.53f224p-8", "-0x1.b7f71ap-6", "0x1.ce2ce6p-4", "-0x1.81273ep-2")
    small = fma(horner(s, *hexes(*names, "0x1.06eba8p-3")), t, t)
    u = np.minimum(t, F(4))
    names = ("0x1.da2d04p-17", "-0x1.716d3ep-12", "0x1.ed6edep-9", "-0x1.89a1d8p-6", "0x1.b46cbep-4", "0x1.451942p-1")
    q = horner(u, *hexes(*names, "0x1.079260p-3"))
    k, r = split(-fma(q, u, u))
    power = power_of_two(k)
    large = fma(-power, core(r), F(1) - power)
    return np.where(np.isnan(x), x, np.copysign(np.where(t < 1, small, large), x))


def rsqrt(x):
    tiny = x < F(2**-100)
    y = np.where(tiny, x * F(2**48), x)
    root = np.sqrt(y)
    inverse = F(1) / root
    left = fma(-root, inverse, F(1)) - fma(-root, root, y) * inverse * inverse * F(0.5)
    result = np.where((y == 0) | (y == np.inf), inverse, fma(inverse, left, inverse))
    return np.where(tiny, result * F(2**24), result)


def sin_of(quadrant, r, low):
    s = r * r
    p = horner(s, *hexes("0x1.7c2c50p-19", "-0x1.a05954p-13", "0x1.111174p-7", "-0x1.555556p-3"))
    sine = r + fma(p, s * r, fma(low, s * F(-0.5), low))
    q = horner(s, *hexes("0x1.99e0eep-16", "-0x1.6c0c1ap-10", "0x1.55554ap-5"))
    half = s * F(0.5)
    one = F(1) - half
    cosine = one + fma(-low, r, fma(q, s * s, (F(1) - one) - half))
    y = np.where(quadrant & 1, cosine, sine)
    return np.where(quadrant & 2, -y, y)


def angle(x):
    """For |x| <= 71476."""
    shifted = fma(x, hexes("0x1.45f306p-1")[0], SHIFT)
    j = shifted - SHIFT
    one, two, three = hexes("-0x1.921fb0p+0", "-0x1.5110b4p-22", "-0x1.846988p-48")
    first = fma(j, one, x)
    second = j * two
    lost = fma(j, two, -second)
    total = first + second
    back = total - first
    third = fma(j, three, ((first - (total - back)) + (second - back)) + lost)
    r = total + third
    return j.astype(np.int64), r, third - (r - total)


def sin(x):
    return np.where(x == 0, x, sin_of(*angle(x)))


def cos(x):
    quadrant, r, low = angle(x)
    return sin_of(quadrant + 1, r, low)


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * F(0.5) * (F(1) + erf(x * hexes("0x1.6a09e6p-1")[0]))


def gelu_tanh(x):
    inner = hexes("0x1.988454p-1")[0] * fma(hexes("0x1.6e4e26p-5")[0], x * x * x, x)
    return x * F(0.5) * (F(1) + tanh(inner))


def softplus(x):
    return np.where(x > 20, x, log1p(exp(x)))


def log_sigmoid(x):
    return np.where(x < 0, x, F(0)) - np.where(np.isnan(x), x, log1p(exp(-np.abs(x))))


def lerp(x, end, weight):
    apart = end - x
    return np.where(np.abs(weight) < 0.5, fma(weight, apart, x), fma(-apart, F(1) - weight, end))
