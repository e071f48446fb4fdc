"""Which workers serve which job, and the assignments that say so. Pure.

How many workers a job has is dealt out evenly, or says a policy (`dealer.py`).
Workers stay where they are unless another job is entitled to them. An assignment to a job stands for an attempt at it:
one whose worker has died is removed by the job that counts the death (`attempts.py`), never here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import keys, ranges
from .kv import Compare, Delete, Put, absent, unchanged
from .transactions import Txn
from .willing import kinds, willing

if TYPE_CHECKING:
    from . import records
    from .dealer import Dealer
    from .views import JobView, View


def allot(
    view: View,
    jobs: list[JobView],
    alive: dict[str, records.WorkerRecord],
    dealer: Dealer | None = None,
    now: float = 0.0,
) -> dict[str, list[str]]:
    """Workers by job.

    Args:
        jobs: those that have a specification, in order of precedence.
        dealer: asks a policy; None: workers are dealt out evenly.
    """
    pool = sorted(worker for worker, record in alive.items() if not record.leaving and not record.away)
    runnable = [job for job in jobs if not job.over and job.desired == "running"]
    allotted: dict[str, list[str]] = {job.name: [] for job in jobs}
    for job in jobs:  # a paused job keeps its workers until its members have committed and let go
        if job.desired == "paused" and not job.over and job.claims:
            allotted[job.name] = [member.worker for member in job.members if member.worker in alive]
    taken = {worker for workers in allotted.values() for worker in workers}
    free = [worker for worker in pool if worker not in taken]
    if dealer is None:
        counts = _evenly(runnable, pool, alive)
        _hand_out(view, runnable, counts, free, alive, allotted)
        return allotted
    kind = kinds(free, runnable, alive)
    dealt = dealer.deal(runnable, kind, alive, view.assigned, now)
    for name in sorted(set(kind.values())):
        counts = [dealt[job.name][name] for job in runnable]
        _hand_out(view, runnable, counts, [w for w in free if kind[w] == name], alive, allotted)
    return allotted


def _evenly(runnable: list[JobView], pool: list[str], alive: dict[str, records.WorkerRecord]) -> list[int]:
    """How many workers each job should have, if they are all alike."""
    wants = []
    for job in runnable:
        spec = job.record
        able = sum(1 for worker in pool if willing(alive[worker], job))
        most = min(spec.ests, spec.max_workers or spec.ests, able)
        wants.append((spec.min_workers, most) if most >= spec.min_workers else (0, 0))
    return ranges.shares(len(pool), wants)


def _hand_out(
    view: View,
    runnable: list[JobView],
    counts: list[int],
    pool: list[str],
    alive: dict[str, records.WorkerRecord],
    allotted: dict[str, list[str]],
) -> None:
    """Choose so many of these workers for each job: those that serve it already, then any."""
    taken: set[str] = set()
    mine: list[list[str]] = [[] for _ in runnable]
    for keep in (True, False):
        for job, count, has in zip(runnable, counts, mine, strict=True):
            order = [member.worker for member in job.members] if keep else []
            rest = [w for w in pool if not keep or _assigned(view, w) == job.name]
            rest.sort(key=lambda w: alive[w].only is None)  # those that can serve nobody else come first
            for worker in [w for w in order if w in rest] + rest:
                if len(has) >= count:
                    break
                if worker not in taken and willing(alive[worker], job):
                    has.append(worker)
                    taken.add(worker)
    for job, has in zip(runnable, mine, strict=True):
        allotted[job.name] += has


def assign(view: View, allotted: dict[str, list[str]], alive: dict[str, records.WorkerRecord]) -> list[Txn]:
    """Bring the assignments to what is allotted."""
    wanted = {worker: job for job, workers in allotted.items() for worker in workers}
    txns = []
    for worker in sorted(wanted.keys() | view.assigned.keys()):
        entry, job = view.assigned.get(worker), wanted.get(worker)
        if (entry.value if entry else None) == job:
            continue
        if worker not in alive and _counted_elsewhere(view, worker):
            continue
        key = keys.assigned(worker)
        compares = [unchanged(entry.kv) if entry else absent(key)]
        if worker in alive:  # one that has gone meanwhile is not assigned, nor is its attempt forgotten
            compares.append(Compare(keys.worker(worker), "create", view.workers[worker].kv.create_revision))
        txns.append(Txn(f"assign {worker}", tuple(compares), (Put(key, job.encode()) if job else Delete(key),)))
    return txns


def _counted_elsewhere(view: View, worker: str) -> bool:
    """Whether a job will count the death of this worker, and remove its assignment."""
    entry = view.assigned.get(worker)
    return any(
        job.counts and (job.name == (entry.value if entry else None) or job.slot_of(worker) is not None)
        for job in view.jobs.values()
    )


def _assigned(view: View, worker: str) -> str | None:
    entry = view.assigned.get(worker)
    return entry.value if entry else None
