"""What is kept of generations that are over: who ran which ESTs, and between which steps. Pure.

It is for people only, and nothing is decided from it. So it lies outside the prefix that the coordinator reads at each
decision: one key per generation, written in the transaction that plans the next one, and the oldest one removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CorruptError
from . import keys, records
from .kv import Delete, Put

if TYPE_CHECKING:
    from .attempts import Alive
    from .kv import KeyValueStore
    from .views import JobView

KEPT_GENERATIONS = 200
"""Generations of a job that are kept, the newest ones."""


def ended(job: JobView, alive: Alive) -> list[Put | Delete]:
    """The writes that keep a job's current generation, for the transaction that ends it."""
    plan = job.plan
    if plan is None:
        return []
    told = [record.progress for record in alive.values() if record.job == job.name and record.progress]
    told += [job.progress.value] if job.progress else []
    here = [progress for progress in told if progress.generation == job.generation]
    start = job.start_step() if not here else min(progress.started for progress in here)
    generation = records.Generation(
        generation=plan.value.generation,
        first=start,
        last=max((progress.step for progress in here), default=start),
        lane=plan.value.lane,
        members=plan.value.members,
        cause=plan.value.cause,
    )
    writes: list[Put | Delete] = [Put(keys.past(job.name, generation.generation), records.encode(generation))]
    oldest = generation.generation - KEPT_GENERATIONS
    return writes + ([Delete(keys.past(job.name, oldest))] if oldest > 0 else [])


def read(kv: KeyValueStore, job: str) -> list[records.Generation]:
    """The generations of a job that are kept, oldest first; what cannot be read is left out.

    Raises:
        UnavailableError: the store does not answer.
    """
    found = []
    for entry in kv.range(keys.generations(job)):
        try:
            found.append(records.decode(entry.value, records.Generation, entry.key))
        except CorruptError:
            continue
    return found
