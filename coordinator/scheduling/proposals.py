"""The scheduler of the EasyScale paper (SC'23), as its text and its artifact's simulator say it works; our own code.

Every round each job proposes, for each kind of device, the growth by that kind that gains it most per device. Jobs that
have nothing get their smallest proposal, in order of arrival; then the best proposals win. Nobody shrinks for others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .jobs import NOTHING, Devices, Job, by_precedence, devices, take, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .policy import Plan

MOST_WASTE = 0.30
"""Share of the devices' time that may be idle because ESTs do not divide evenly."""


class Proposals:
    """Greedy proposals."""

    name, rigid, at_once, every = "paper", False, False, 60.0

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:  # noqa: ARG002
        """See `Policy`."""
        free = dict(capacity)
        order = by_precedence(jobs)
        plan = _held(free, order)
        for job in order:
            if job.name not in plan and (first := _smallest(job, free)):
                plan[job.name] = first
                take(free, first)
        offers = [offer for job in order if job.name in plan for offer in _proposals(job, plan[job.name], free)]
        offers.sort(key=lambda offer: (-offer[0], -offer[1], offer[2], offer[3]))
        grown = set()
        for _, more, name, kind in offers:
            if name not in grown and free[kind] >= more:
                counts = dict(plan[name])
                plan[name] = devices(counts | {kind: counts.get(kind, 0) + more})
                free[kind] -= more
                grown.add(name)
        return plan


def _held(free: dict[str, int], jobs: Sequence[Job]) -> Plan:
    """What jobs have, less what has been taken away: they shrink onto the rest, if they can run on it."""
    plan: Plan = {}
    for job in jobs:
        left = devices({kind: min(count, free.get(kind, 0)) for kind, count in job.given})
        if left and job.seconds(left) < float("inf"):
            plan[job.name] = left
            take(free, left)
    return plan


def _smallest(job: Job, free: Mapping[str, int]) -> Devices:
    """On devices of one kind; of one class, if no kind has enough."""
    able = [kind for kind, _ in job.shape.rates.paces if free.get(kind, 0) > 0]
    of_class = replace(job.shape, mixes=False).groups(able)
    ways = [_first(group, free, job.shape.least) for group in [*([kind] for kind in able), *of_class]]
    seconds, given = min(((job.seconds(given), given) for given in ways), default=(float("inf"), NOTHING))
    return given if seconds < float("inf") else NOTHING


def _first(kinds: Sequence[str], free: Mapping[str, int], count: int) -> Devices:
    """So many devices, as many of each of these kinds as there are, or all of them."""
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = min(free[kind], count - sum(counts.values()))
    return devices(counts)


def _proposals(job: Job, given: Devices, free: Mapping[str, int]) -> Iterator[tuple[float, int, str, str]]:
    """The best growth by each kind: its worth, devices more, the job, the kind."""
    shape, had, before = job.shape, total(given), job.shape.step_seconds(given)
    counts = dict(given)
    for kind, there in sorted(free.items()):
        best: tuple[float, int] | None = None
        for more in range(1, min(there, had, shape.most - had) + 1):
            grown = devices(counts | {kind: counts.get(kind, 0) + more})
            seconds = shape.step_seconds(grown)
            if seconds < before and _waste(job, grown) <= MOST_WASTE:
                worth = (before / seconds - 1) / more
                best = max(best or (0.0, 0), (worth, more))
        if best is not None:
            yield best[0], best[1], job.name, kind


def _waste(job: Job, given: Devices) -> float:
    """Share of the devices' time in which they wait for the slowest."""
    paces = [(pace, count) for kind, count in given if (pace := job.shape.rates.pace(kind)) is not None]
    seconds = job.shape.step_seconds(given) - job.shape.rates.exchange * (total(given) - 1) / total(given)
    return 1 - job.shape.ests / (seconds * sum(count / pace.est for pace, count in paces))
