"""What a coordinator has seen with its own eyes and its own clock: since when a thing has been as it is, who lives,
who said that it leaves. A successor starts with nothing, so no decision may be wrong for want of it, only later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import keys

if TYPE_CHECKING:
    from . import records
    from .views import JobView, View


@dataclass(slots=True)
class _Seen:
    """A value and since when it has been like that, on our own clock."""

    value: object
    since: float


@dataclass(slots=True)
class Observed:
    """The memory of a planner.

    Args:
        stale: seconds after which a worker whose record does not change is taken for gone, whatever its lease says.
    """

    stale: float
    left: set[str] = field(default_factory=set)
    """Workers that were leaving when they were last seen: their end is no death."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _claimed: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    _passed_over: dict[tuple[str, str], float] = field(default_factory=dict)
    _losses: dict[tuple[str, int], float] = field(default_factory=dict)

    def since(self, what: str, value: object, now: float) -> float:
        """Seconds for which `what` has had this value, as far as we have seen."""
        seen = self._seen.get(what)
        if seen is None or seen.value != value:
            seen = self._seen[what] = _Seen(value, now)
        return now - seen.since

    def alive(self, view: View, now: float) -> dict[str, records.WorkerRecord]:
        """Workers that show that they live; whatever else is remembered of workers is brought up to date."""
        alive = {
            worker: entry.value
            for worker, entry in view.workers.items()
            if self.since(entry.kv.key, entry.kv.mod_revision, now) < self.stale
        }
        self._forget(view)
        self.left |= {worker for worker, record in alive.items() if record.leaving or record.away}
        return alive

    def last_sign(self, worker: str) -> float | None:
        """When a worker was last seen to change its record."""
        seen = self._seen.get(keys.worker(worker))
        return seen.since if seen else None

    def claimed(self, job: JobView) -> set[int]:
        """Slots of the current generation that were claimed at some time."""
        generation, slots = self._claimed.get(job.name, (0, set()))
        if generation != job.generation:
            slots = set()
        slots |= {s for s, c in job.claims.items() if c.value.worker == job.members[s].worker}
        self._claimed[job.name] = job.generation, slots
        return slots

    def pass_over(self, job: str, worker: str, now: float) -> None:
        """This worker did not claim what this job gave it."""
        self._passed_over[job, worker] = now

    def passed_over(self, job: str, worker: str, patience: float, now: float) -> bool:
        """Whether that was less than `patience` seconds ago."""
        return now - self._passed_over.get((job, worker), float("-inf")) < patience

    def loss_began(self, job: str, loss: records.Loss, now: float) -> float:
        """When a loss happened, on our clock; one that a predecessor noticed counts from when we first saw it."""
        return self._losses.setdefault((job, loss.generation), now - loss.seconds)

    def _forget(self, view: View) -> None:
        """Nothing need be remembered of what is gone."""
        served = {member.worker for job in view.jobs.values() for member in job.members} | view.assigned.keys()
        known = {keys.worker(worker) for worker in served | view.workers.keys()}
        for key in [key for key in self._seen if key.startswith(keys.WORKERS) and key not in known]:
            del self._seen[key]
        self.left &= served
        for pair in [p for p in self._passed_over if p[0] not in view.jobs or p[1] not in view.workers]:
            del self._passed_over[pair]
        over = [at for at in self._losses if (job := view.jobs.get(at[0])) is None or job.over]
        for at in over:
            del self._losses[at]
        for name in [name for name in self._claimed if name not in view.jobs]:
            del self._claimed[name]
