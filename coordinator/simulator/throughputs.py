"""How fast models are on kinds of device: Gavel's table, and what follows from it for kinds that it does not have."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ...errors import UserError
from ..scheduling.jobs import Rates
from .lines import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RELATIVES = {
    "V100M32": ("v100", 1.0),
    "V100M16": ("v100", 1.0),
    "P100": ("p100", 1.0),
    "T4": ("p100", 0.9),
    "A10": ("v100", 1.2),
    "G2": ("v100", 1.0),
    "G3": ("v100", 2.0),
}
"""Kinds in Alibaba's cluster: as fast as which of Gavel's, and how many times. They are guesses: nobody has published
Gavel's table for them, and Alibaba does not say what G2 and G3 are, but that G3 is the newer one."""


@dataclass(frozen=True, slots=True)
class Throughputs:
    """`models`: rates by model, as the table names them."""

    models: Mapping[str, Rates]

    @staticmethod
    def read(path: Path) -> Throughputs:
        """Read Gavel's JSON: kind of device -> "('model', devices)" -> "null" (nobody beside it) -> mini-batches per
        second of all devices together, each with its own mini-batch.

        Raises:
            UserError: it cannot be read, or has a rate that is none.
        """
        with opened(path) as lines:
            text = "".join(lines)
        try:
            found = _parse(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
            raise UserError(f"{path} is no table of throughputs as Gavel has them: {error}") from error
        models = {model: rates for model, by_kind in found.items() if (rates := _rates(by_kind)).paces}
        if not models:
            raise UserError(f"{path} has no throughputs")
        return Throughputs(models)

    def on(self, kinds: Iterable[str]) -> Throughputs:
        """The same for these kinds of device only.

        Raises:
            UserError: one of them is unknown.
        """
        known = {kind for rates in self.models.values() for kind, _ in rates.paces}
        like = {}
        for kind in kinds:
            like[kind] = RELATIVES.get(kind, (kind, 1.0))
            if like[kind][0] not in known:
                raise UserError(
                    f"how fast a device of kind {kind!r} is, is not known",
                    f"use {', '.join(sorted(known | RELATIVES.keys()))}, or another table (--throughputs)",
                )
        models = {}
        for model, rates in self.models.items():
            paces = {kind: pace.est for kind, pace in rates.paces}
            est = {kind: paces[base] / times for kind, (base, times) in like.items() if base in paces}
            models[model] = Rates.of(est, rates.exchange)
        return Throughputs(models)


def _parse(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, dict[int, float]]]:
    """Model -> kind -> devices -> mini-batches per second."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for kind, rows in table.items():
        if kind.endswith("_unconsolidated"):  # devices that are spread over several hosts
            continue
        for key, row in rows.items():
            model, count = ast.literal_eval(key)
            rate = float(row["null"])
            if not 0 <= rate < float("inf"):
                raise ValueError(f"{key} on {kind} has the rate {rate}; it must be at least 0")
            if rate:  # 0: the model does not fit there
                found.setdefault(str(model), {}).setdefault(kind, {})[int(count)] = rate
    return found


def _rates(by_kind: Mapping[str, Mapping[int, float]]) -> Rates:
    """One device with one EST is measured; what many devices take longer is the exchange."""
    est = {kind: 1 / counts[1] for kind, counts in by_kind.items() if 1 in counts}
    exchanges = [
        (count / rate - est[kind]) * count / (count - 1)
        for kind, counts in by_kind.items()
        for count, rate in counts.items()
        if count > 1 and kind in est
    ]
    return Rates.of(est, max(0.0, median(exchanges)) if exchanges else 0.0)
