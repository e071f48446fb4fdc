"""Which lane the members of a generation use, and which workers can be members together. Pure.

All members of a generation use the same lane, so it is the plan that names it. Peers exchange directly when nothing
speaks against it; the object store serves whoever is left, unless one of them insists on direct exchanges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from . import records
    from .attempts import Alive

Pair = frozenset[str]
"""Ids of two workers."""


def choose(workers: Sequence[str], alive: Alive, apart: Collection[Pair]) -> records.LaneKind:
    """The lane of a generation of these workers.

    Args:
        apart: pairs whose connection broke a short while ago, nobody knows why.
    """
    return "store" if _obstacle(_records(workers, alive), apart) else "peer"


def fitting(workers: Sequence[str], alive: Alive, apart: Collection[Pair]) -> tuple[list[str], str]:
    """Those that can be members together, earlier ones first, and why not all of them: "" if they can.

    Only who insists on direct exchanges may stand in the way.
    """
    obstacle = _clash(_records(workers, alive), apart)
    if not obstacle:
        return list(workers), ""
    fit: list[records.WorkerRecord] = []
    for record in _records(workers, alive):
        if not _clash([*fit, record], apart):
            fit.append(record)
    return [record.id for record in fit], obstacle


def _records(workers: Sequence[str], alive: Alive) -> list[records.WorkerRecord]:
    return [alive[worker] for worker in workers if worker in alive]


def _clash(here: Sequence[records.WorkerRecord], apart: Collection[Pair]) -> str:
    insisting = [record.name for record in here if record.lane == "peer"]
    obstacle = _obstacle(here, apart) if insisting and len(here) > 1 else ""
    return f"{insisting[0]} insists on exchanging with peers (--lane peer), but {obstacle}" if obstacle else ""


def _obstacle(here: Sequence[records.WorkerRecord], apart: Collection[Pair]) -> str:
    """What keeps these from direct exchanges: "" if nothing does."""
    names = {record.id: record.name for record in here}
    for record in here:
        if record.lane == "store":
            return f"{record.name} uses the object store only (--lane store)"
        if not record.address:
            return f"{record.name} has no address where peers could reach it"
        for other in record.unreached:
            if other in names:
                return f"{record.name} cannot connect to {names[other]}"
    for pair in apart:
        if pair <= names.keys():
            return f"the connection of {' and '.join(sorted(names[w] for w in pair))} broke a short while ago"
    return ""
