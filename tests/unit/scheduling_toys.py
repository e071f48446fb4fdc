"""Jobs and clusters for the tests of policies: written by hand, drawn by Hypothesis, or from a seed.

Three generations of GPU. For each job a kind is faster than another by a factor of its own, and some kinds cannot run
it at all, as is so of real models.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from easyscale.coordinator.scheduling.jobs import NOTHING, Job, Rates, Shape, devices, total
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.policy import Plan, Policy

KINDS = ("k80", "p100", "v100")
NOW = 30000.0
"""When all drawn jobs have arrived."""

SPEEDS = {"k80": 1.0, "p100": 3.0, "v100": 6.0}


def shape(
    est: Mapping[str, float],
    ests: int = 4,
    least: int = 1,
    most: int | None = None,
    *,
    mixes: bool = True,
    exchange: float = 0.0,
    memory: Mapping[str, int] | None = None,
    classes: Mapping[str, str] | None = None,
) -> Shape:
    """Of a job whose EST takes so many seconds on these kinds."""
    named = tuple(sorted((classes or {}).items()))
    return Shape(Rates.of(est, exchange, memory), ests, least, ests if most is None else most, mixes, named)


def job(name: str, est: Mapping[str, float], ests: int = 4, left: float = 1000.0, **more: object) -> Job:
    """A job; `more` are fields of a job or arguments of `shape`."""
    of_job = {
        key: more.pop(key) for key in ("priority", "tenant", "arrived", "ran", "given", "guaranteed") if key in more
    }
    return Job(name, shape(est, ests, **more), left, **of_job)  # type: ignore[arg-type]


def used(plan: Plan) -> dict[str, int]:
    """Devices by kind that a plan gives away."""
    result: dict[str, int] = {}
    for given in plan.values():
        for kind, count in given:
            result[kind] = result.get(kind, 0) + count
    return result


def free(capacity: Mapping[str, int], plan: Plan) -> dict[str, int]:
    """What a plan leaves."""
    away = used(plan)
    return {kind: count - away.get(kind, 0) for kind, count in capacity.items()}


def faults(capacity: Mapping[str, int], jobs: Sequence[Job], plan: Plan) -> list[str]:
    """What a plan must not do, and does."""
    by_name = {one.name: one for one in jobs}
    found = [f"{name}: no such job" for name in plan if name not in by_name]
    found += [f"{kind}: {count} given, {capacity.get(kind, 0)} there" for kind, count in used(plan).items()
              if count > capacity.get(kind, 0)]  # fmt: skip
    for name, given in plan.items():
        of = by_name[name].shape
        if given != devices(dict(given)):
            found.append(f"{name}: {given} is not in canonical form")
        if not of.least <= total(given) <= of.most:
            found.append(f"{name}: {given}, but it runs on {of.least} to {of.most}")
        if of.step_seconds(given) == float("inf"):
            found.append(f"{name}: cannot run on {given}")
        if not of.mixes and len({dict(of.classes).get(kind, kind) for kind, _ in given}) > 1:
            found.append(f"{name}: does not mix, and has {given}")
    return found


# ---- by Hypothesis


@st.composite
def shapes(draw: st.DrawFn, kinds: Sequence[str] = KINDS, ests: int = 16) -> Shape:
    """Any: also some that no kind can run."""
    number = draw(st.integers(1, ests))
    able = draw(st.sets(st.sampled_from(kinds)))
    seconds = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0]) | st.floats(0.05, 3.0)
    memory = draw(st.dictionaries(st.sampled_from(kinds), st.integers(1, ests)))
    most = draw(st.just(number) | st.integers(1, number))
    return shape(
        {kind: draw(seconds) for kind in sorted(able)},
        number,
        draw(st.just(1) | st.integers(1, most)),
        most,
        mixes=draw(st.booleans()),
        exchange=draw(st.sampled_from([0.0, 0.05, 1.0])),
        memory=memory,
        classes=draw(st.sampled_from([{}, {"p100": "v100"}, {"k80": "old", "p100": "old"}])),
    )


@st.composite
def jobs_of(draw: st.DrawFn, name: str) -> Job:
    """A job that has something or nothing."""
    of = draw(shapes())
    has = devices(draw(st.dictionaries(st.sampled_from(KINDS), st.integers(0, of.most), max_size=3)))
    arrived = draw(st.sampled_from([0.0, 100.0]) | st.floats(0.0, NOW))
    return Job(
        name,
        of,
        draw(st.sampled_from([1.0, 100.0, 1e4]) | st.floats(0.5, 1e6)),
        draw(st.sampled_from([0, 0, 1])),
        draw(st.sampled_from(["", "red", "blue"])),
        arrived,
        draw(st.sampled_from([0.0, 0.5])) * (NOW - arrived),
        has if of.step_seconds(has) < float("inf") else NOTHING,
        draw(st.just(0) | st.integers(0, of.most)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[dict[str, int], list[Job]]:
    """Devices, and jobs that may have more than there is: some was taken away."""
    capacity = draw(st.dictionaries(st.sampled_from(KINDS), st.integers(0, 12)))
    number = draw(st.integers(0, 6))
    return capacity, [draw(jobs_of(f"j{i}")) for i in range(number)]


def for_policy(jobs: Sequence[Job], *, rigid: bool) -> list[Job]:
    """The same jobs; what they have is what such a policy could have given them."""
    return [_rigid(one) for one in jobs] if rigid else list(jobs)


def _rigid(one: Job) -> Job:
    has = one.given and ((one.given[0][0], one.shape.ests),)
    return replace(one, given=has if one.shape.step_seconds(has) < float("inf") else NOTHING)


# ---- by seed


def from_seed(seed: int, fewest: int = 3, most: int = 10, scale: int = 1) -> tuple[dict[str, int], list[Job]]:
    """Ordinary jobs, 3 to 10 of them unless told otherwise, on 4 to 24 devices (`scale` times as many)."""
    rng = Random(seed)
    kinds = KINDS[: rng.choice((2, 3))]
    capacity = dict.fromkeys(kinds, 1)
    for _ in range(rng.randint(4, 24) * scale - len(kinds)):
        capacity[rng.choice(kinds)] += 1
    jobs = [_ordinary(rng, f"j{i}", kinds) for i in range(rng.randint(fewest, most))]
    return capacity, jobs


def _ordinary(rng: Random, name: str, kinds: Sequence[str]) -> Job:
    ests = rng.choice((1, 2, 3, 4, 6, 8, 8, 12, 16))
    base = rng.uniform(0.05, 2.0)
    able = [kind for kind in kinds if rng.random() < 0.85] or [rng.choice(kinds)]
    est = {kind: base / SPEEDS[kind] ** rng.uniform(0.3, 1.2) for kind in able}
    least = rng.choice((1, 1, 1, max(1, ests // 4)))
    left = 10 ** rng.uniform(1.5, 4.5)
    return job(
        name, est, ests, left, least=least, mixes=rng.random() < 0.7, exchange=rng.choice((0.0, 0.02, 0.2)) * base
    )


# ---- over time


class World:
    """Jobs that run as they are told to, on a clock of their own; changes cost nothing.

    Attributes:
        started, ended: when each job first had devices, and when it was done.
    """

    def __init__(self, policy: Policy, capacity: Mapping[str, int]) -> None:
        self.policy, self.capacity, self.now = policy, dict(capacity), 0.0
        self.jobs: dict[str, Job] = {}
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def submit(self, *jobs: Job) -> None:
        """They arrive now."""
        self.jobs |= {one.name: replace(one, arrived=self.now) for one in jobs}

    def plan(self) -> Plan:
        """Ask, and do as told."""
        plan = self.policy.plan(self.capacity, list(self.jobs.values()), self.now)
        assert faults(self.capacity, list(self.jobs.values()), plan) == []
        self.jobs = {name: replace(one, given=plan.get(name, NOTHING)) for name, one in self.jobs.items()}
        for name in plan:
            self.started.setdefault(name, self.now)
        return plan

    def step(self, most: float = float("inf")) -> None:
        """Until a job is done, or for so many seconds."""
        running = [one for one in self.jobs.values() if one.given]
        seconds = min([most, *(one.seconds(one.given) for one in running)])
        self.now += seconds
        for one in running:
            left = one.left - seconds / one.shape.step_seconds(one.given)
            if left > 1e-9 * one.left:
                self.jobs[one.name] = replace(one, left=left, ran=one.ran + seconds)
            else:
                del self.jobs[one.name]
                self.ended[one.name] = self.now
