"""Numbers that optimizers and learning-rate schedules compute in Python, without the C library's `pow` and `cos`.

Those differ between hosts in the last bit. Here a power with an integer exponent is a product, by squaring from the
lowest bit of the exponent, each product rounded to float64; an exponent of one half is a square root; everything else
is computed in integers and rounded once. `install` puts them where `torch.optim` looks for its own.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

BITS = 160
"""Behind the point, of the integers that stand for real numbers."""

_ONE = 1 << BITS


def _exp(x: int) -> int:
    """e^x for |x| <= 1."""
    total = term = _ONE
    n = 1
    while term:
        term = term * x // (n << BITS)
        if term == -1:
            break
        total += term
        n += 1
    return total


def _log(x: int) -> int:
    """log x for x in [1/2, 2]: 2 artanh((x - 1) / (x + 1))."""
    s = ((x - _ONE) << BITS) // (x + _ONE)
    square = s * s >> BITS
    total, power, n = 0, s, 1
    while power not in (0, -1):
        total += power // n
        power = power * square >> BITS
        n += 2
    return 2 * total


_LN2 = _log(2 * _ONE)
_PI = 4 * sum(
    sign * sum((-1) ** n * (_ONE // (of ** (2 * n + 1) * (2 * n + 1))) for n in range(BITS // 4))
    for sign, of in ((4, 5), (-1, 239))
)
"""Machin's formula."""


def _fixed(x: float) -> int:
    numerator, denominator = x.as_integer_ratio()
    return (numerator << BITS) // denominator


@lru_cache(maxsize=4096)
def power(base: float, exponent: float) -> float:
    """`base ** exponent`; base >= 0 where the exponent is no integer.

    Raises:
        OverflowError, ZeroDivisionError: as for Python's own.
    """
    if exponent.is_integer() and abs(exponent) < 2**53:
        if exponent < 0:
            return 1.0 / power(base, -exponent)
        result, left = 1.0, int(exponent)
        while left:
            if left & 1:
                result *= base
            base *= base
            left >>= 1
        return result
    if exponent == 0.5:
        return math.sqrt(base)
    if not (0 < base < math.inf and math.isfinite(exponent)):
        return float(base**exponent)  # zeros, infinities, NaN and errors, which are the same everywhere
    mantissa, shift = math.frexp(base)
    y = (_fixed(exponent) * (_log(_fixed(mantissa)) + shift * _LN2)) >> BITS
    whole = y // _LN2
    return _float(_exp(y - whole * _LN2), whole)


def _float(x: int, shift: int) -> float:
    """x * 2^(shift - BITS), rounded once."""
    move = shift - BITS
    return float(Fraction(x << move if move >= 0 else x, 1 if move >= 0 else 1 << -move)) if move > -4000 else 0.0


@lru_cache(maxsize=4096)
def cosine(x: float) -> float:
    """`math.cos(x)`.

    Raises:
        ValueError: as for Python's own.
    """
    if not math.isfinite(x):
        return math.cos(x)
    numerator, denominator = x.as_integer_ratio()
    angle = (numerator << BITS) // denominator % (2 * _PI)
    term = total = _ONE
    square, n = angle * angle >> BITS, 1
    while term not in (0, -1):
        term = -term * square // ((n * (n + 1)) << BITS)
        total += term
        n += 2
    return _float(total, 0)


class Exact(float):
    """A number whose powers are `power`, and whose sums, products and quotients are such numbers again."""

    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        return Exact(power(float(self), float(exponent))) if _is_number(exponent) else float(self) ** exponent

    def __rpow__(self, base: Any, modulus: None = None) -> Any:
        return Exact(power(float(base), float(self))) if _is_number(base) else base ** float(self)


def _closed(name: str) -> Any:
    plain = getattr(float, name)

    def operation(self: Exact, *others: Any) -> Any:
        result = plain(self, *others)
        return Exact(result) if type(result) is float else result

    return operation


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Exact, f"__{_name}__", _closed(f"__{_name}__"))
    setattr(Exact, f"__r{_name}__", _closed(f"__r{_name}__"))
Exact.__neg__ = _closed("__neg__")  # type: ignore[method-assign]


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


class _Base:
    """An attribute of a schedule that is raised to powers. It is kept, and saved, as the float that it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        try:
            value = instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        return _Raised(value) if isinstance(value, float) else value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = float(value) if isinstance(value, _Raised) else value


class _Raised(float):
    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        return power(float(self), float(exponent)) if _is_number(exponent) else float(self) ** exponent

    def __rpow__(self, base: Any, modulus: None = None) -> Any:
        return power(float(base), float(self)) if _is_number(base) else base ** float(self)


def _exact_math() -> ModuleType:
    """`math`, but for the cosine."""
    module = ModuleType("math")
    module.__dict__.update({name: getattr(math, name) for name in dir(math) if not name.startswith("_")})
    module.__dict__["cos"] = cosine
    return module


def install() -> None:
    """Let the optimizers and schedules of `torch.optim` use these, for the whole process. Again: nothing.

    Covered: bias corrections of Adam, AdamW, NAdam, RAdam, Adamax, ASGD (from their `step` on, for loops and foreach);
    StepLR, MultiStepLR, ExponentialLR, PolynomialLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, OneCycleLR, SWALR.
    Not covered: Adafactor, and what users' own functions compute (LambdaLR).
    """
    from torch.optim import lr_scheduler, optimizer, swa_utils

    value = optimizer._get_value  # noqa: SLF001

    def exact_value(x: Any) -> Any:
        found = value(x)  # type: ignore[no-untyped-call]
        return Exact(found) if isinstance(found, (int, float)) else found

    if getattr(value, "easyscale", False):
        return
    exact_value.easyscale = True  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and getattr(module, "_get_value", None) is value:
            module._get_value = exact_value  # type: ignore[attr-defined]  # noqa: SLF001
    for schedule in (lr_scheduler.StepLR, lr_scheduler.MultiStepLR, lr_scheduler.ExponentialLR):
        schedule.gamma = _Base("gamma")  # type: ignore[assignment]
    lr_scheduler.PolynomialLR.power = _Base("power")  # type: ignore[assignment]
    lr_scheduler.math = swa_utils.math = _exact_math()  # type: ignore[attr-defined]
