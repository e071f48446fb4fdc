"""One job in the simulation: what it has, since when, how far it is, and what changes have cost it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from ..scheduling.jobs import NOTHING, Devices, Job, Shape, devices, total
from ..split import split

if TYPE_CHECKING:
    from ..scheduling.policy import Costs
    from .submissions import Submission


@lru_cache(maxsize=1 << 16)
def useful(shape: Shape, given: Devices) -> float:
    """Device seconds of a step in which ESTs are computed, on these devices."""
    groups = [(pace, count) for kind, count in given if (pace := shape.rates.pace(kind)) is not None]
    found = split(shape.ests, groups)
    assert found is not None, "it runs on them"
    seconds = sum(pace.est * each * count for (pace, count), each in zip(groups, found.each, strict=True))
    return seconds + groups[found.group][0].est * found.extra


@dataclass(slots=True)
class Running:
    """A job's way through the simulation. Times are on the simulation's clock.

    Args:
        left: steps to be done, at `at`. slow, ready: while newcomers get ready it goes on at the pace of those who were
            there (`meanwhile` seconds a step), until `slow`; then nothing happens until `ready`.
        first: when it had devices for the first time. changes, stops: how often it was given others, or none.
        ran: seconds in which it had devices. served: device seconds that it had, by kind; worked: those in which ESTs
        were computed. version: counts what it was given.
    """

    job: Submission
    left: float
    at: float
    given: Devices = NOTHING
    meanwhile: float = float("inf")
    slow: float = 0.0
    ready: float = 0.0
    first: float | None = None
    changes: int = 0
    stops: int = 0
    ran: float = 0.0
    worked: float = 0.0
    version: int = 0
    served: dict[str, float] = field(default_factory=dict)

    def as_job(self) -> Job:
        """As policies see it."""
        it = self.job
        return Job(it.name, it.shape, max(self.left, 0.0), it.priority, it.tenant, it.at, self.ran, self.given)

    @property
    def step(self) -> float:
        """Seconds of a step on what it has."""
        return self.job.shape.step_seconds(self.given)

    def advance(self, now: float) -> None:
        """Do the steps until now."""
        if self.given:
            early = max(0.0, min(now, self.slow) - self.at) / self.meanwhile
            late = max(0.0, now - max(self.at, self.ready)) / self.step
            self.left -= early + late
            self.ran += now - self.at
            self.worked += (early + late) * useful(self.job.shape, self.given)
            for kind, number in self.given:
                self.served[kind] = self.served.get(kind, 0.0) + number * (now - self.at)
        self.at = now

    def ends(self) -> float:
        """When it will be done, if nothing changes."""
        early = max(0.0, self.slow - self.at) / self.meanwhile
        if early >= self.left:
            return self.at + self.left * self.meanwhile
        return max(self.at, self.ready) + (self.left - early) * self.step

    def step_ends(self) -> float:
        """Seconds until the step that it is in is done."""
        if self.at < self.ready:
            return 0.0
        done = self.job.steps - self.left
        return (1 - done % 1.0) * self.step

    def give(self, given: Devices, now: float, costs: Costs) -> None:
        """Other devices from now on. It has been advanced until now."""
        had, before, self.given = self.given, self.step if self.given else 0.0, given
        self.version += 1
        self.meanwhile, self.slow, self.ready = float("inf"), now, now
        kept = devices({kind: min(count, dict(given).get(kind, 0)) for kind, count in had})
        goes_on = self.job.shape.step_seconds(kept) if kept else float("inf")
        if had and goes_on == float("inf"):  # nobody is left who could hand the state over: the commit is read again
            self.left = min(self.job.steps, self.left + costs.stop / before)
            self.stops += not given
        if not given:
            return
        self.first = now if self.first is None else self.first
        self.changes += bool(had)
        if goes_on == float("inf"):
            self.ready = now + costs.start
        else:
            joining = total(given) > total(kept)
            self.meanwhile, self.slow = goes_on, now + (costs.join if joining else 0.0)
            self.ready = self.slow + costs.change
