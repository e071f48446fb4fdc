"""Curves that fit on a screen: many steps drawn as few points, none of which hides a spike. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .archive import Past, Span

MOST_POINTS = 2000
"""Points that can be asked for."""

SHOWN_METRICS = 12
"""Metrics of commits that are told, by name."""


def curves(past: Past, points: int) -> dict[str, Any]:
    """Loss and learning rate by step, and metrics by commit.

    Steps are put together in at most `points` buckets of as many steps each.

    Returns:
        `step` (the first of each bucket), `loss` (mean), `low` and `high` (extremes), `lr` (last); None where no number
        is finite. `nonfinite`: steps whose loss was not. `metrics`: name -> `[[step, value], ...]`. `commits`: their
        steps, of too many every k-th.
    """
    numbers: NDArray[np.int64] = np.concatenate(
        [np.arange(span.first, span.first + len(span.loss), dtype=np.int64) for span in past.spans]
        or [np.empty(0, int)]
    )
    loss = _joined([span.loss for span in past.spans])
    lr = _joined([span.lr for span in past.spans])
    answer: dict[str, Any] = {"step": [], "loss": [], "low": [], "high": [], "lr": []}
    if len(numbers):
        width = -(-len(numbers) // points)
        starts = np.arange(0, len(numbers), width)
        finite = np.isfinite(loss)
        count = np.add.reduceat(finite, starts, dtype=np.int64)
        total = np.add.reduceat(np.where(finite, loss, 0.0), starts)
        answer = {
            "step": numbers[starts].tolist(),
            "loss": _plain(np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0)),
            "low": _plain(np.minimum.reduceat(np.where(finite, loss, np.inf), starts)),
            "high": _plain(np.maximum.reduceat(np.where(finite, loss, -np.inf), starts)),
            "lr": _plain(lr[np.minimum(starts + width, len(lr)) - 1]),
        }
        answer["nonfinite"] = int(len(loss) - finite.sum())
    every = max(1, -(-len(past.spans) // points))
    shown = past.spans[::-every][::-1]  # counted from the newest
    steps = [span.commit.step for span in shown]
    return {"nonfinite": 0} | answer | {"commits": steps, "metrics": _metrics(shown)}


def _joined(parts: list[Any]) -> NDArray[np.float64]:
    return np.concatenate([np.frombuffer(part) for part in parts if len(part)] or [np.empty(0)])


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    """As JSON has it; six digits are more than can be seen."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _metrics(spans: Sequence[Span]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for span in spans:
        for name, value in span.commit.metrics.items():
            number = float(value)
            if math.isfinite(number):
                found.setdefault(name, []).append((span.commit.step, number))
    return {name: found[name] for name in sorted(found)[:SHOWN_METRICS]}
