"""What others do, to be compared with: a job gets as many devices as it has ESTs, of one kind, or none.

They are told what no scheduler knows: how long each job will still take, to the second. `srtf` needs that, and
`backfill` does, to hold up nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .jobs import NOTHING, by_precedence, fits, take

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .jobs import Devices, Job
    from .policy import Plan


def _ways(job: Job, there: Mapping[str, int]) -> list[tuple[float, Devices]]:
    """Seconds until it is done on each kind of which there are enough, the fastest first."""
    ways = [
        (job.seconds(given), given)
        for kind, _ in job.shape.rates.paces
        if there.get(kind, 0) >= job.shape.ests and (given := ((kind, job.shape.ests),))
    ]
    return sorted(way for way in ways if way[0] < float("inf"))


def _keep(free: dict[str, int], jobs: Sequence[Job]) -> Plan:
    """Jobs that run keep what they have, as far as it is still there, those that go first before others."""
    plan: Plan = {}
    for job in by_precedence(jobs):
        if job.given and fits(free, job.given):
            plan[job.name] = job.given
            take(free, job.given)
    return plan


class Fifo:
    """In order of arrival, and whoever is next holds up all others."""

    name, rigid, at_once, every = "fifo", True, True, float("inf")

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:  # noqa: ARG002
        """See `Policy`."""
        free = dict(capacity)
        plan = _keep(free, jobs)
        for job in by_precedence(jobs):
            if job.name in plan:
                continue
            ways = _ways(job, free)
            if not ways:
                if _ways(job, capacity):
                    break
                continue  # it would wait for ever
            plan[job.name] = ways[0][1]
            take(free, ways[0][1])
        return plan


class Backfill:
    """First come, first served; and later ones may go first if the next in turn starts no later for it (EASY)."""

    name, rigid, at_once, every = "backfill", True, True, float("inf")

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:  # noqa: ARG002
        """See `Policy`."""
        free = dict(capacity)
        plan = _keep(free, jobs)
        promised: tuple[float, str, int] | None = None
        for job in by_precedence(jobs):
            if job.name in plan:
                continue
            for seconds, given in _ways(job, free):
                (kind, count), *_ = given
                if promised is not None and kind == promised[1] and seconds > promised[0]:
                    if count > promised[2]:
                        continue
                    promised = promised[0], kind, promised[2] - count
                plan[job.name] = given
                take(free, given)
                break
            else:
                if promised is None and _ways(job, capacity):
                    ends = sorted((one.seconds(plan[one.name]), plan[one.name]) for one in jobs if one.name in plan)
                    promised = self._promise(job, capacity, free, ends)
        return plan

    @staticmethod
    def _promise(
        job: Job, capacity: Mapping[str, int], free: Mapping[str, int], ends: list[tuple[float, Devices]]
    ) -> tuple[float, str, int]:
        """When, and on which kind, the next in turn can start, and how many devices of it are left over then."""
        starts = []
        for seconds, ((kind, count), *_) in _ways(job, capacity):
            there, at = free.get(kind, 0), 0.0
            for at_end, given in ends:
                if there >= count:
                    break
                there, at = there + dict(given).get(kind, 0), at_end
            starts.append((at + seconds, at, kind, there - count))
        _, at, kind, over = min(starts)
        return at, kind, over


class Srtf:
    """Shortest remaining time first: it stops the longer for the shorter."""

    name, rigid, at_once, every = "srtf", True, True, float("inf")

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:  # noqa: ARG002
        """See `Policy`."""
        free = dict(capacity)
        best = {job.name: min((seconds for seconds, _ in _ways(job, capacity)), default=0.0) for job in jobs}
        plan: Plan = {}
        for job in sorted(jobs, key=lambda job: (-job.priority, best[job.name], job.arrived, job.name)):
            ways = _ways(job, free)
            if job.given != NOTHING and fits(free, job.given):
                ways = [(job.seconds(job.given), job.given)]  # to move would cost a start
            if ways:
                plan[job.name] = ways[0][1]
                take(free, ways[0][1])
        return plan
