"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from ..errors import UserError

UNITS = {"": 1, "B": 1, **{f"{prefix}{unit}": base ** (power + 1) for power, prefix in enumerate("KMGT")
         for unit, base in (("", 1024), ("B", 1000), ("iB", 1024))}}  # fmt: skip

PATTERN = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*")


def parse_size(text: str, option: str) -> int:
    """Bytes: `2GiB`, `500MB`, `1.5G` (of 1024), `1048576`.

    Raises:
        UserError: it is none, or nothing. Names the option.
    """
    match = PATTERN.fullmatch(text)
    unit = next((factor for name, factor in UNITS.items() if match and name.lower() == match[2].lower()), None)
    size = int(float(match[1]) * unit) if match and unit else 0
    if size <= 0:
        raise UserError(f"{option} {text!r} is no size", "write it like 6GiB, 500MB or 1048576")
    return size
