"""How many ESTs a device's memory has room for, by what is known of a job and of the device. Pure.

A job takes `memory + n * est_bytes` bytes of a device that runs n ESTs: see `pipeline/footprint.py` for what these are.
Leaves to others: how that is learned (`throughput.py`), and what follows from it (`arrangement.py`, `dealer.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .split import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from . import records
    from .attempts import Alive
    from .split import Pace

HEADROOM = 0.1
"""The part of a device's memory that is left free where it is given more than one EST: for what was not seen yet, for
partial sums of gradients (one more for each doubling of the ESTs), and because memory is in pieces. One EST needs none:
it is the least that was measured."""

SHOWN = 20
"""Workers that a sentence names."""


def room(rate: records.Rate, memory: int, ran: int = 0, most: int = UNLIMITED) -> int:
    """The most ESTs that a device can run.

    Args:
        rate: of its kind. memory: its bytes.
        ran: ESTs that it has run without running out of memory: it keeps room for as many.
        most: it ran out of memory with more.

    Returns:
        `UNLIMITED` if an EST more takes nothing, or if it is not known what the job takes; 0 if there is room for none.
    """
    found = UNLIMITED
    if rate.memory and rate.memory + rate.est_bytes > memory:
        found = 0
    elif rate.memory and rate.est_bytes:
        free = int(memory * (1 - HEADROOM)) - rate.memory
        found = min(UNLIMITED, max(1, free // rate.est_bytes))
    return min(max(found, ran), most)


def of_worker(rate: records.Rate, record: records.WorkerRecord, job: str, spec: str) -> int:
    """The same of a worker, by what its record says.

    Args:
        job, spec: name of the job, and digest of its specification.
    """
    told = record.progress.memory if record.progress is not None and record.job == job else None
    return room(rate, record.memory, told.ests if told else 0, record.rooms.get(spec, UNLIMITED))


def lacking(ests: int, paces: Mapping[str, Pace], alive: Alive) -> str:
    """Why these workers cannot run a job of so many ESTs together: "" if their memory has room for them."""
    if not paces or sum(pace.most for pace in paces.values()) >= ests:
        return ""
    some = sorted(paces, key=lambda worker: alive[worker].name)[:SHOWN]
    parts = [f"{alive[w].name} has room for {paces[w].most or 'none'} in {shown(alive[w].memory)}" for w in some]
    more = f", and {len(paces) - SHOWN} more workers" if len(paces) > SHOWN else ""
    return f"not enough memory for its {ests} ESTs: {', '.join(parts)}{more}"


def shown(size: int) -> str:
    """Bytes, for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"
