"""Membership histories on real processes: whoever comes, goes, sleeps and dies, and whatever lane that leads to.

The state, and what is told of every step, are those of the undisturbed run. While somebody stays who holds the newest
state a loss costs the step that was under way, and nobody who stays ever makes a step twice. A seed decides what
happens to whom after how many steps; HISTORY_SEEDS=100 takes so many, from HISTORY_FROM on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cluster import JOBS, sabotaged
from ledger import Ledger, watched
from reference import ESTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster import Cluster, Process
    from easyscale.pipeline.summary import Summary
    from reference import Reference

USUAL = (0, 1, 4, 5)
"""Seeds among whose changes are all kinds, on either lane."""

FROM, COUNT = (int(os.environ.get(name, "0")) for name in ("HISTORY_FROM", "HISTORY_SEEDS"))
SEEDS = range(FROM, FROM + COUNT) if COUNT else USUAL

PACE = "0.015"
"""Seconds per gradient: a newcomer must be ready before the job is done."""

MOST = 4
LANES = ("auto", "auto", "store")
LOSSES = ("SIGKILL of a worker", "SIGKILL of a runner")
SLEEPS = ("SIGSTOP of a runner", "SIGSTOP of an agent")
KINDS = ("a worker joins", "a worker joins", "SIGTERM of a worker", *LOSSES, *LOSSES, *SLEEPS)


class Change(NamedTuple):
    """`what` happens after so many more steps, to number `who` of those that are there; `lane` is a newcomer's."""

    what: str
    steps: int
    who: int
    lane: str


def script(seed: int) -> tuple[list[str], list[Change]]:
    """The lanes of those who begin, and up to five changes."""
    chance = random.Random(seed)
    lanes = [chance.choice(LANES) for _ in range(chance.randint(2, MOST))]
    return lanes, [
        Change(chance.choice(KINDS), chance.choice([0, 1, 3, 8]), chance.randrange(MOST), chance.choice(LANES))
        for _ in range(chance.randint(3, 5))
    ]


class Company:
    """The workers of one job, and what has happened to them.

    Args:
        injected: counts faults. env: of the workers.
    """

    def __init__(self, cluster: Cluster, injected: Callable[[str], None], env: dict[str, str]) -> None:
        self.cluster, self.ledger = cluster, Ledger(cluster.folder / "ledger")
        self.here: list[Process] = []
        self.asleep: list[tuple[Process, list[int]]] = []
        self.losses = self.broken = 0
        self._injected, self._env = injected, {"JOB_PACE": PACE, **self.ledger.env, **env}
        self._joined = 0
        cluster.coordinator("--policy", "even")  # else who would make it no faster does not serve
        self.job = cluster.submit(watched(JOBS / "small.py", cluster.folder / "code"), audit_every=0, min_workers=1)

    def set_apart(self) -> None:
        """Let those who join exchange as if on a machine of their own."""
        self._env["SABOTAGE"] += ",apart"

    # ---- what has come about

    @property
    def steps(self) -> int:
        """Steps that somebody has finished."""
        return len({step.fingerprint for step in self.ledger.steps()})

    @property
    def over(self) -> bool:
        return self.cluster.job(self.job).state == "done"

    def until_steps(self, count: int) -> None:
        """Wait for more steps, or for the end of the job."""
        goal = self.steps + count
        self.cluster.until_true(lambda: self.steps >= goal or self.over)

    def until_all_serve(self, *, steps: int = 1) -> None:
        """Wait until all who are there have made a step or more together from now on, or for the end of the job."""
        began = time.time()

        def together() -> int:
            runners = {child.pid for worker in self.here for child in worker.children}
            new = [step for step in self.ledger.steps() if step.at > began and step.pid in runners]
            made = Counter(step.fingerprint for step in new)
            return sum(count == len(self.here) for count in made.values())

        with self.cluster.slowly():
            self.cluster.until_true(lambda: together() or self.over)
        self.cluster.until_true(lambda: together() >= steps or self.over)

    def member(self, slot: int) -> Process:
        """Who has this slot now."""
        name = self.cluster.job(self.job).workers[slot].partition("-")[0]
        return next(worker for worker in self.here if worker.name == name)

    def is_member(self, worker: Process) -> bool:
        return worker.name in [member.partition("-")[0] for member in self.cluster.job(self.job).workers]

    def stays(self, victims: list[Process]) -> bool:
        """Whether somebody else is awake and has finished the newest step, or the one before."""
        newest: list[int] = []
        for step in reversed(self.ledger.steps()):
            if step.fingerprint not in newest:
                newest.append(step.fingerprint)
        holders = {step.pid for step in self.ledger.steps() if step.fingerprint in newest[:2]}
        others = [it for it in self.here if it not in victims and it not in [worker for worker, _ in self.asleep]]
        return any(child.pid in holders for worker in others for child in worker.children)

    # ---- what happens

    def join(self, lane: str = "auto") -> Process:
        name = f"w{self._joined}"
        self._joined += 1
        self.here.append(self.cluster.worker(name, "--lane", lane, **self._env))
        return self.here[-1]

    def leave(self, worker: Process) -> None:
        worker.signal(signal.SIGTERM)
        self.here.remove(worker)

    def lose(self, *victims: Process, runner: bool = False) -> None:
        """Kill agents, or runners only, at one time; when somebody stays who can go on."""
        self.cluster.until_true(lambda: self.stays([*victims]) or self.over)
        pids = [child.pid for victim in victims for child in victim.children] if runner else [it.pid for it in victims]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            self._injected("SIGKILL of a runner" if runner else "SIGKILL of a worker")
        self.losses += len(pids)
        if not runner:
            for victim in victims:
                self.here.remove(victim)

    def stop(self, worker: Process, *, agent: bool) -> None:
        pids = [worker.pid] if agent else [child.pid for child in worker.children]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.asleep.append((worker, pids))
        self.broken += 1  # its lease may run out

    def wake(self) -> None:
        """Whoever sleeps: an agent when the others have gone on without it."""
        for worker, pids in self.asleep:
            if worker.pid in pids:
                self.cluster.until_true(lambda worker=worker: not self.is_member(worker) or self.over)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        self.asleep = []

    def befall(self, change: Change) -> None:
        """Do it, or the nearest that is possible."""
        if self.asleep:
            time.sleep(0.1 * change.steps)  # while a runner sleeps there are no steps: it is the time that matters
        else:
            self.until_steps(change.steps)
        awake = [worker for worker in self.here if worker not in [asleep for asleep, _ in self.asleep]]
        worker = awake[change.who % len(awake)] if len(awake) > 1 and len(self.here) > 1 else None
        sleeping = list(self.asleep)
        if worker is None or (change.what == "a worker joins" and len(self.here) < MOST):
            if len(self.here) < MOST:
                self.join(change.lane)
        elif change.what in LOSSES:
            if not self.stays([worker]):
                self.wake()
            self.lose(worker, runner=change.what == "SIGKILL of a runner")
        elif change.what in SLEEPS:
            self.stop(worker, agent=change.what == "SIGSTOP of an agent")
            self._injected(change.what)
        else:
            self.leave(worker)
        if sleeping:
            self.wake()

    # ---- what must be true in the end

    def assert_undisturbed(self, reference: Reference) -> Summary:
        """The bits are those of the undisturbed run, and it was no more work than it had to be."""
        self.wake()
        result = self.cluster.result(self.job)
        reference.assert_same(self.cluster, result.manifest, result.state_digest)
        after = self.cluster.job(self.job)
        assert [it.steps_recomputed for it in after.recoveries if it.steps_recomputed > 1] == [], after.recoveries
        assert len(after.recoveries) <= self.losses + self.broken
        twice = Counter((step.pid, step.fingerprint) for step in self.ledger.steps())
        assert twice.most_common(1)[0][1] == 1, "a runner has made a step twice"
        assert self.steps == STEPS, "each step gives other parameters, and nobody has come to any else"
        again = self.ledger.computed - STEPS * ESTS
        assert again <= ESTS * (self.losses + self.broken), f"{again} gradients more than {self.losses} losses explain"
        return after

    def lanes(self) -> list[str]:
        """The lanes of the generations, in order."""
        told = {it["generation"]: it["lane"] for it in self.cluster.told("runner.generation")}
        return [told[generation] for generation in sorted(told)]


@pytest.fixture
def company(cluster: Cluster, injected: Callable[[str], None], tmp_path: Path) -> Company:
    (tmp_path / "falls").mkdir()
    return Company(cluster, injected, sabotaged(f"falls={tmp_path / 'falls'}"))


@pytest.mark.parametrize("seed", SEEDS)
def test_up_to_five_changes_of_membership_never_show_in_the_bits(
    company: Company, reference: Reference, seed: int
) -> None:
    """Every other company is as on as many machines."""
    lanes, changes = script(seed)
    if seed % 2:
        company.set_apart()
    for lane in lanes:
        company.join(lane)
    company.until_steps(2)
    for change in changes:
        company.befall(change)
    company.assert_undisturbed(reference)


def test_the_lane_is_that_of_those_who_are_there_and_its_changes_never_show_in_the_bits(
    company: Company, reference: Reference
) -> None:
    company.join()
    company.until_steps(2)
    company.join()
    company.until_all_serve()
    store = company.join("store")
    company.until_all_serve()
    company.lose(store)
    company.until_all_serve(steps=3)
    company.leave(company.here[1])
    company.assert_undisturbed(reference)
    changes = [lane for before, lane in pairwise(["", *company.lanes()]) if lane != before]
    assert changes == ["local", "peer", "store", "peer", "local"]


def test_the_member_with_est_0_is_lost_and_then_two_of_three_at_once(company: Company, reference: Reference) -> None:
    """Slot 0 is where the peers have met."""
    for _ in range(3):
        company.join()
    company.until_all_serve()
    company.lose(company.member(0))
    company.join()
    company.until_all_serve(steps=3)
    company.lose(company.member(0), company.member(2), runner=True)
    after = company.assert_undisturbed(reference)
    assert after.attempts["died"] == 3
    assert len(after.recoveries) == 2, "two that are lost at once are got over together"


@pytest.mark.parametrize(
    ("points", "apart"),
    [
        (("give", "take"), False),
        (("upload", "publish"), False),
        (("gathered", "halfway"), False),
        (("gathered", "halfway"), True),
    ],
    ids=str,
)
def test_a_member_is_lost_in_the_middle_of(
    company: Company,
    reference: Reference,
    injected: Callable[[str], None],
    tmp_path: Path,
    points: tuple[str, str],
    apart: bool,
) -> None:
    """Of giving or taking the state, of a commit, of an exchange that is over for some and not for others."""
    if apart:
        company.set_apart()
    for _ in range(2 if "give" in points else 3):
        company.join()
    company.until_all_serve()
    for point in points:
        sign = tmp_path / "falls" / point
        sign.touch()
        with company.cluster.slowly():  # whoever joins must come before the end
            if point in ("give", "take"):
                company.join()
            company.cluster.until_true(lambda sign=sign: not sign.exists() or company.over)
        assert not company.over
        injected("SIGKILL of a runner")
        company.losses += 1
        company.cluster.until(company.job, lambda now, died=company.losses: now.attempts.get("died", 0) == died)
        company.until_all_serve(steps=2)
    after = company.assert_undisturbed(reference)
    assert after.attempts["died"] == 2
    if "halfway" in points:
        finished = Counter(step.fingerprint for step in company.ledger.steps())
        assert 1 in finished.values(), "one peer had the whole gradient and the other did not: it got the state instead"
