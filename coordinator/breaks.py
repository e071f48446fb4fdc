"""Broken exchanges: whom the members of a generation say they have lost, and whose connections break though both live.

A member that is accused is out of the next generation at once, without waiting for its lease: fencing makes that safe.
It is counted when it reports, or when its lease ends, as it would be without the accusation. If it lives, it comes back
as soon as it shows that, and the two use the object store for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import records
    from .attempts import Alive
    from .lanes import Pair
    from .views import JobView, View

APART_SECONDS = 60.0
"""How long two that live use the object store after their connection broke; twice as long if it does so again."""

MOST_APART_SECONDS = 3600.0

CONFIRM_SECONDS = 2.5
"""How long one that alone holds the newest state gets to show that it lives, though it is accused: some beats."""

FORGOTTEN = 10.0
"""After so many times as long without a break the next one counts as the first."""


def told(job: JobView, alive: Alive) -> dict[str, records.Broken]:
    """What living members say of how the current generation's exchange broke. What they say of others is over."""
    words = {m.worker: alive[m.worker] for m in job.members if m.worker in alive}
    return {
        worker: record.broken
        for worker, record in words.items()
        if record.broken is not None and record.job == job.name and record.broken.generation == job.generation
    }


def accused(job: JobView, alive: Alive) -> dict[str, tuple[str, ...]]:
    """Members of the current generation that others have lost, and who says so.

    Not those that have something to tell themselves: they live, and only a connection broke.
    """
    words = told(job, alive)
    members = {member.worker for member in job.members}
    lost = {worker for broken in words.values() for worker in broken.lost if worker in members and worker not in words}
    return {worker: tuple(sorted(by for by, broken in words.items() if worker in broken.lost)) for worker in lost}


@dataclass(slots=True)
class _Apart:
    """Since when two have been apart, and how many times in a row."""

    since: float
    times: int = 1

    @property
    def seconds(self) -> float:
        return min(APART_SECONDS * 2.0 ** (self.times - 1), MOST_APART_SECONDS)


@dataclass(slots=True)
class Breaks:
    """What a planner remembers of broken exchanges. A successor starts with nothing: some are tried again too early."""

    _heard: dict[tuple[str, str], int] = field(default_factory=dict)
    _apart: dict[Pair, _Apart] = field(default_factory=dict)
    _accused: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """In which generation a worker was accused, and the revision of its record then, by job and worker."""
    _spared: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """In which generation a worker was last believed to live although it was accused, and when."""

    def hear(self, view: View, alive: Alive, now: float) -> None:
        """Take in what members say now, and forget what is explained: who was accused has reported, or is gone."""
        for job in view.jobs.values():
            for worker, broken in told(job, alive).items():
                if self._heard.get((job.name, worker)) != broken.generation:
                    self._heard[job.name, worker] = broken.generation
                    self._part(job, worker, broken.lost, now)
            for worker in [worker for worker in accused(job, alive) if worker in view.workers]:
                if self._accused.get((job.name, worker), (0, 0))[0] != job.generation:
                    self._accused[job.name, worker] = job.generation, view.workers[worker].kv.mod_revision
        self._forget(view)

    def apart(self, now: float) -> list[Pair]:
        """Pairs whose connection broke a short while ago, nobody knows why."""
        return [pair for pair, apart in self._apart.items() if now - apart.since < apart.seconds]

    def lives(self, job: JobView, view: View, worker: str, now: float) -> bool:
        """Whether an accused member has shown that it lives. Who is accused again soon is not believed again."""
        generation, at = self._spared.get((job.name, worker), (0, float("-inf")))
        if generation == job.generation:
            return True
        shown = view.workers[worker].kv.mod_revision > self._accused[job.name, worker][1]
        if not shown or now - at < APART_SECONDS:
            return False
        self._spared[job.name, worker] = job.generation, now
        return True

    def cleared(self, job: JobView, record: records.WorkerRecord, revision: int) -> bool:
        """Whether a worker may come (back) into a job: it is ready, and if it was accused it has shown that it lives.

        Args:
            revision: of the record.
        """
        return record.state == "ready" and revision > self._accused.get((job.name, record.id), (0, 0))[1]

    def _part(self, job: JobView, worker: str, lost: tuple[str, ...], now: float) -> None:
        """A connection between these broke; if it cannot tell which, it may have been any of them."""
        for other in lost or [member.worker for member in job.members]:
            if other == worker:
                continue
            pair = frozenset((worker, other))
            known = self._apart.get(pair)
            if known is None or now - known.since >= FORGOTTEN * known.seconds:
                self._apart[pair] = _Apart(now)
            elif now - known.since >= known.seconds:
                self._apart[pair] = _Apart(now, known.times + 1)

    def _forget(self, view: View) -> None:
        reported = {worker for job in view.jobs.values() for worker in job.reports}
        explained = {worker for pair in self._apart for worker in pair if worker not in view.workers} | reported
        for pair in [pair for pair in self._apart if pair & explained]:
            del self._apart[pair]
        for known in (self._heard, self._accused, self._spared):
            for at in [at for at in known if at[0] not in view.jobs or at[1] not in view.workers]:
                del known[at]
