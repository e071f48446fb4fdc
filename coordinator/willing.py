"""Which workers would run which jobs, and may. Pure.

A policy counts devices by kind. There, a kind is a model of device, how much memory it has where that differs, and who
of the jobs may use it: a worker that serves one job only, or that a job keeps away from, is of another kind than its
like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import quarantine, throughput
from .room import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import records
    from .attempts import Alive
    from .views import JobView


def willing(record: records.WorkerRecord, job: JobView) -> bool:
    """Whether a worker would run this job, and may."""
    return not unwilling(record, job)


def unwilling(record: records.WorkerRecord, job: JobView) -> str:
    """Why a worker would not run this job, or may not: "" if it would."""
    if record.only not in (None, job.name, job.record.pipeline or job.name):
        return f"it serves {record.only!r} only (--only)"
    if job.record.spec in record.refusals:
        return record.refusals[job.record.spec] or "it refused this job"
    return quarantine.reason(record, job)


def kinds(pool: Sequence[str], jobs: Sequence[JobView], alive: Alive) -> dict[str, str]:
    """The kind of each worker."""
    sizes: dict[str, set[int]] = {}
    for worker in pool:
        sizes.setdefault(throughput.kind_of(alive[worker]), set()).add(_size(alive[worker]))
    found = {}
    for worker in pool:
        would = [job.name for job in jobs if willing(alive[worker], job)]
        kind = throughput.kind_of(alive[worker])
        if len(sizes[kind]) > 1:
            kind = f"{kind} of {shown(_size(alive[worker]))}"
        found[worker] = kind if len(would) == len(jobs) else f"{kind} for {', '.join(sorted(would)) or 'nobody'}"
    return found


def _size(record: records.WorkerRecord) -> int:
    """A worker's memory, rounded down to the next of four sizes from one power of two to its double."""
    step = 1 << max(0, record.memory.bit_length() - 3)
    return record.memory // step * step
