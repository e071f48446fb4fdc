"""The simulation: events on a virtual clock, and a policy that is asked what to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from ..scheduling.jobs import NOTHING, total
from .progress import Running
from .submissions import Reclaim, Submission, fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..scheduling.jobs import Devices
    from ..scheduling.policy import Costs, Policy


@dataclass(frozen=True, slots=True)
class Ends:
    """A job is done, if nothing about it has changed meanwhile."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Round:
    """The policy wants to be asked again."""


Event = Submission | Reclaim | Ends | Round


@dataclass(slots=True)
class Outcome:
    """What became of the jobs and the devices.

    Args:
        jobs: those that arrived, in that order. ended: seconds at which each was done. refused: jobs that can run
            nowhere in this cluster.
        freed: of each device that its owner took back from a job: seconds until it was free, and how long the job's
            step was.
        there, unwanted: device seconds that jobs could have used; and those for which there was no EST.
        active: how many jobs there were from when on. used: the same of devices that jobs had, and that there were.
        plans: how often the policy was asked.
    """

    jobs: list[Running] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    freed: list[tuple[float, float]] = field(default_factory=list)
    there: float = 0.0
    unwanted: float = 0.0
    active: list[tuple[float, int]] = field(default_factory=list)
    used: list[tuple[float, int, int]] = field(default_factory=list)
    plans: int = 0


class Simulation:
    """One policy on one trace.

    Args:
        devices: by kind. until: seconds after which it ends, whatever still runs.
    """

    def __init__(
        self,
        devices: Mapping[str, int],
        submissions: Iterable[Submission],
        policy: Policy,
        costs: Costs,
        *,
        reclaims: Iterable[Reclaim] = (),
        until: float = float("inf"),
    ) -> None:
        self._devices, self._free = dict(devices), dict(devices)
        self._policy, self._costs, self._until = policy, costs, until
        self._numbers = count()
        self._events: list[tuple[float, int, Event]] = []
        self._coming = 0
        for job in submissions:
            self._at(job.at, job)
            self._coming += 1
        for taken in reclaims:
            self._at(taken.at, taken)
        self._active: dict[str, Running] = {}
        self._wanted = 0
        self._now = 0.0
        self._asked = float("-inf")
        self._round: float | None = None
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Until all jobs are done."""
        while (self._active or self._coming) and self._events[0][0] <= self._until:
            self._pass(self._events[0][0])
            happened = False
            while self._events and self._events[0][0] == self._now:
                happened |= self._happen(heappop(self._events)[2])
            if happened:
                self._decide()
        if self._until < float("inf"):
            self._pass(self._until)
        return self.outcome

    @property
    def capacity(self) -> dict[str, int]:
        """Devices that jobs may have now, by kind. Who takes more than there are is owed none."""
        return {kind: max(0, number) for kind, number in self._free.items()}

    def _at(self, when: float, event: Event) -> None:
        heappush(self._events, (when, next(self._numbers), event))

    def _pass(self, now: float) -> None:
        seconds, there = now - self._now, sum(self.capacity.values())
        self.outcome.there += there * seconds
        self.outcome.unwanted += max(0, there - self._wanted) * seconds
        self._now = now

    def _happen(self, event: Event) -> bool:
        """Whether there is something to decide."""
        if isinstance(event, Submission):
            return self._arrive(event)
        if isinstance(event, Ends):
            return self._end(event)
        if isinstance(event, Reclaim):
            self._free[event.kind] = self._free.get(event.kind, 0) - event.count
            return True
        self._round = None
        return True

    def _arrive(self, it: Submission) -> bool:
        self._coming -= 1
        if not fits(it.shape, self._devices, rigid=False):
            self.outcome.refused.append(it.name)
            return False
        running = self._active[it.name] = Running(it, it.steps, self._now)
        self.outcome.jobs.append(running)
        self._wanted += it.shape.most
        self.outcome.active.append((self._now, len(self._active)))
        return True

    def _end(self, event: Ends) -> bool:
        running = self._active.get(event.name)
        if running is None or running.version != event.version:
            return False
        running.advance(self._now)
        del self._active[event.name]
        self._wanted -= running.job.shape.most
        self.outcome.ended[event.name] = self._now
        self.outcome.active.append((self._now, len(self._active)))
        return True

    def _decide(self) -> None:
        policy, due = self._policy, self._asked + self._policy.every
        if not policy.at_once and self._now < due and not self._short():
            self._ask_at(due)
            return
        for running in self._active.values():
            running.advance(self._now)
        plan = policy.plan(self.capacity, [running.as_job() for running in self._active.values()], self._now)
        self._asked = self._now
        self.outcome.plans += 1
        owed = self._short()
        changed = [name for name, running in self._active.items() if plan.get(name, NOTHING) != running.given]
        for name in changed:
            self._give(self._active[name], plan.get(name, NOTHING), owed)
        used = sum(total(running.given) for running in self._active.values())
        self.outcome.used.append((self._now, used, sum(self.capacity.values())))
        waiting = any(not running.given for running in self._active.values())
        if waiting or (changed and not policy.at_once):
            self._ask_at(self._now + policy.every)

    def _give(self, running: Running, given: Devices, owed: Counter[str]) -> None:
        after = dict(given)
        for kind, number in running.given:
            taken = min(owed[kind], number - after.get(kind, 0))
            if taken > 0:
                self.outcome.freed += [(running.step_ends(), running.step)] * taken
                owed[kind] -= taken
        running.give(given, self._now, self._costs)
        if given:
            self._at(running.ends(), Ends(running.job.name, running.version))

    def _short(self) -> Counter[str]:
        """Devices that jobs have and their owner has taken, by kind."""
        used: Counter[str] = Counter()
        for running in self._active.values():
            used.update(dict(running.given))
        return used - Counter(self.capacity)

    def _ask_at(self, when: float) -> None:
        if when < float("inf") and (self._round is None or when < self._round):
            self._round = when
            self._at(when, Round())
