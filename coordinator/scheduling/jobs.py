"""What a scheduler knows of a job: how fast it is on which devices, what it needs, what it has. Immutable.

Devices are counted by kind here; which device it is that a job gets is decided afterwards (`allotment.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from ..split import UNLIMITED, Pace, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Devices = tuple[tuple[str, int], ...]
"""How many devices of which kind: sorted by kind, without zeros."""

NOTHING: Devices = ()


def devices(counts: Mapping[str, int]) -> Devices:
    """The canonical form."""
    return tuple(sorted((kind, count) for kind, count in counts.items() if count))


def total(given: Devices) -> int:
    """How many devices they are, of whatever kind."""
    return sum(count for _, count in given)


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a job's ESTs are on the kinds of device that can run it.

    Args:
        paces: by kind, sorted. A kind that is not here cannot run the job.
        exchange: seconds that an exchange between very many devices takes; between m of them it is (m - 1) / m of it,
            as in a ring or a tree that every byte crosses once up and once down.
    """

    paces: tuple[tuple[str, Pace], ...]
    exchange: float = 0.0

    @staticmethod
    def of(est: Mapping[str, float], exchange: float = 0.0, most: Mapping[str, int] | None = None) -> Rates:
        """From seconds of one EST by kind, and the ESTs that a device has memory for."""
        limits = most or {}
        return Rates(
            tuple(sorted((kind, Pace(seconds, 0.0, limits.get(kind, UNLIMITED))) for kind, seconds in est.items())),
            exchange,
        )

    def pace(self, kind: str) -> Pace | None:
        """Of this kind of device; None if it cannot run the job."""
        return next((pace for name, pace in self.paces if name == kind), None)

    @property
    def fastest(self) -> float:
        """Seconds of one EST on the best kind."""
        return min(pace.est for _, pace in self.paces)


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides how long a step of a job takes on given devices. Many jobs have one in common.

    Args:
        ests: logical workers. least, most: devices it can run on, together; `least <= most <= ests`.
        mixes: its devices may be of several classes (exact numerics).
        classes: of kinds that are not a class of their own, sorted: devices of one class compute the same bits.
    """

    rates: Rates
    ests: int
    least: int
    most: int
    mixes: bool = True
    classes: tuple[tuple[str, str], ...] = ()

    def groups(self, kinds: Iterable[str]) -> list[list[str]]:
        """These kinds, those together of which it may have devices at the same time."""
        if self.mixes:
            return [sorted(kinds)]
        of, found = dict(self.classes), dict[str, list[str]]()
        for kind in sorted(kinds):
            found.setdefault(of.get(kind, kind), []).append(kind)
        return list(found.values())

    def step_seconds(self, given: Devices) -> float:
        """Of one step on these devices; infinite if they cannot run the job."""
        return step_seconds(self, given)


@lru_cache(maxsize=1 << 18)
def step_seconds(shape: Shape, given: Devices) -> float:
    """See `Shape.step_seconds`."""
    groups = [(pace, count) for kind, count in given if (pace := shape.rates.pace(kind)) is not None]
    count = total(given)
    able = len(groups) == len(given) and shape.least <= count <= shape.most
    if not able or len(shape.groups(kind for kind, _ in given)) > 1:
        return float("inf")
    found = split(shape.ests, groups)
    return float("inf") if found is None else found.seconds + shape.rates.exchange * (count - 1) / count


@dataclass(frozen=True, slots=True)
class Job:
    """A job as a policy sees it.

    Args:
        left: steps still to be done. priority: higher goes first. tenant: whose it is.
        arrived: when it was submitted, on the clock of `now`. ran: seconds in which it has had devices since then.
        given: the devices that it has. guaranteed: so many are its own before others of its priority have more.
    """

    name: str
    shape: Shape
    left: float
    priority: int = 0
    tenant: str = ""
    arrived: float = 0.0
    ran: float = 0.0
    given: Devices = field(default=NOTHING)
    guaranteed: int = 0

    def seconds(self, given: Devices) -> float:
        """Until it is done on these devices; infinite if they cannot run it."""
        return self.left * self.shape.step_seconds(given)


def by_precedence(jobs: Sequence[Job]) -> list[Job]:
    """Those that go first before others: of higher priority, and then older ones."""
    return sorted(jobs, key=lambda job: (-job.priority, job.arrived, job.name))


def fits(free: Mapping[str, int], given: Devices) -> bool:
    """Whether these devices are there."""
    return all(free.get(kind, 0) >= count for kind, count in given)


def take(free: dict[str, int], given: Devices) -> None:
    """They are not any more."""
    for kind, count in given:
        free[kind] -= count
