"""Gavel's traces and its table of throughputs (stanford-futuredata/gavel)."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ...errors import UserError
from ..scheduling.jobs import Rates, Shape
from .lines import number, whole
from .submissions import Submission

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Throughputs:
    """How fast models are: `rates` by model, as the table names them."""

    rates: Mapping[str, Rates]

    @staticmethod
    def read(path: Path) -> Throughputs:
        """Read Gavel's JSON: kind of device -> "('model', devices)" -> "null" (nobody beside it) -> mini-batches per
        second of all devices together, each with its own mini-batch.

        Raises:
            UserError: it cannot be read, or has a rate that is none.
        """
        try:
            table = json.loads(path.read_text())
            found: dict[str, dict[str, dict[int, float]]] = {}
            for kind, rows in table.items():
                if kind.endswith("_unconsolidated"):
                    continue
                for key, row in rows.items():
                    model, count = ast.literal_eval(key)
                    rate = float(row["null"])
                    if not 0 <= rate < float("inf"):
                        raise UserError(f"{path}: {key} on {kind} has the rate {rate}", "a rate is 0 or more")
                    if rate:  # 0: the model does not fit there
                        found.setdefault(model, {}).setdefault(kind, {})[int(count)] = rate
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
            raise UserError(f"{path} is no table of throughputs as Gavel has them: {error!r}") from error
        rates = {model: _rates(by_kind) for model, by_kind in found.items()}
        return Throughputs({model: one for model, one in rates.items() if one.paces})


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


def jobs(path: Path, throughputs: Throughputs, mixes: bool, skip: bool) -> Iterator[Submission]:
    """Jobs of a trace: tab separated: model, command, argument, needs data, steps, arrival in s, devices.

    Steps are mini-batches of one device; a job on n devices does n of them in a step of ours.

    Args:
        skip: leave broken lines out.

    Raises:
        UserError: a line is broken; names its number.
    """
    from .lines import rows

    for line, row in rows(path, "\t", 7, skip):
        with line:
            rates = throughputs.rates.get(row[0])
            if rates is None:
                raise ValueError(f"model {row[0]!r} is not in the table of throughputs")
            ests = whole(row[6], "devices", least=1)
            steps = number(row[4], "steps", above=0.0) / ests
            at = number(row[5], "arrival")
            yield Submission(f"job-{line.number}", at, Shape(rates, ests, 1, ests, mixes), max(1.0, steps))
