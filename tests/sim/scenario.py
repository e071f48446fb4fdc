"""What a seed stands for: which jobs, which machines, which faults; and the phases in which the judge looks.

1. *Faults*: stores lie, processes die and stop, users pause. Safety is judged at every write that is applied.
2. *Peace*: all faults end. Liveness: every job must end, as it should, within `PATIENCE_SECONDS`.
3. *Departure*: everybody is told to go, and must be gone soon.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from . import actors, misfortunes
from .faults import Faults, mixture
from .flips import Flips
from .world import SimJob, World, small_spec

if TYPE_CHECKING:
    from collections import Counter

    from .actors import SimWorker

PATIENCE_SECONDS = 240.0
NOTICED_SECONDS = 5.0
CALM_SECONDS = 35.0
DEPARTURE_SECONDS = 60.0
SHOWN_LINES = 200
TWO_JOBS = 0.15
"""Share of the seeds that have two."""


KINDS = [
    *["plain"] * 7, "poison", "raise", "hang", "cancel", "graceful", "graceful", "zombie", "zombie",
    "loss", "loss", "loss",
]  # fmt: skip


@dataclass
class Outcome:
    """What became of a seed. `violation` is empty if all was well."""

    seed: int
    violation: str
    story: list[str]
    injected: Counter[str]

    def explain(self) -> str:
        """All that a person needs who looks into a failure."""
        path = Path(tempfile.gettempdir()) / f"easyscale-sim-{self.seed}.txt"
        path.write_text("\n".join(self.story) + "\n")
        tail = "\n".join(self.story[-SHOWN_LINES:])
        return (
            f"{tail}\n\nseed {self.seed}: {self.violation}\n"
            f"the whole history: {path}\nreplay: make simulate FROM={self.seed} SEEDS=1"
        )


def simulate(seed: int) -> Outcome:
    """Live through a seed."""
    world = World(seed)
    with world.installed():
        kind = set_up(world)
        faulty_phase(world, kind)
        peace(world)
        departure(world)
    return Outcome(seed, world.judge.violation, list(world.lines()), world.injected)


def set_up(world: World) -> str:
    """Jobs and machines. Returns what is special about this seed."""
    rng = world.rng
    kind = rng.choice(KINDS)
    for number in range(2 if rng.random() < TWO_JOBS else 1):
        ests, steps = rng.randint(1, 9), rng.randint(12, 45)
        if kind == "loss":
            ests, steps = rng.randint(2, 9), steps + 30
        every = rng.choice([1, 2, 3, 5, 7, None])
        commits = {"commit_every": every} if every else {"commit_seconds": rng.choice([0.5, 2.0, 5.0])}
        died, raised = (rng.randint(1, 3), rng.randint(0, 2)) if number == 0 else (10_000, 0)
        spec = small_spec(
            f"job{number}", ests, steps, **commits,
            died=died if kind == "poison" else 10_000, raised=raised if kind == "raise" else 0,
            min_workers=1 if kind in ("graceful", "loss") else rng.choice([1, 1, 1, min(2, ests)]),
            max_workers=rng.choice([None, None, 2]),
            evaluate_every=rng.choice([0, 0, 4]),
        )  # fmt: skip
        job = world.submit(spec)
        if number == 0:
            befall(world, job, kind)
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        world.add_coordinator()
    for _ in range(rng.randint(2 if kind == "loss" else 1, 4)):
        world.add_worker()
    flips_befall(world, kind)
    return kind


def flips_befall(world: World, kind: str) -> None:
    """Bits flip in many of the seeds that let a job come to its end."""
    rng = random.Random(f"flips {world.seed}")
    if kind not in ("plain", "zombie", "loss") or rng.random() < 0.5:
        return
    job = world.jobs["job0"]
    changes = {"check_every": rng.choice([0, 1, 2, 3, 5, 10, 10, 20]), "audit_every": rng.choice([0, 2, 3, 5])}
    job.spec = msgspec.structs.replace(job.spec, **changes)
    job.flips = Flips(world, job, rng)


def befall(world: World, job: SimJob, kind: str) -> None:
    """What the user's code of this job does."""
    rng = world.rng
    step = rng.randrange(1, job.steps)
    if kind == "poison":
        job.poison, job.expect = rng.choice([step, step, actors.PREPARING]), {"failed"}
        job.poisons_machine = rng.random() < 0.5
    elif kind == "raise":
        times = rng.randint(1, 3)
        job.raises[step] = times
        if times > job.spec.retries.raised:
            job.expect = {"failed", "done"}  # members may raise together: that is one try
    elif kind == "hang":
        job.hangs[step] = rng.randint(1, 2)
    elif kind == "cancel":
        job.expect = {"cancelled", "done"}
        world.hub.at(world.hub.now + rng.uniform(0.0, 30.0), lambda: world.desire(job, "cancelled"))


def faulty_phase(world: World, kind: str) -> None:
    """Misfortune after misfortune. Where attempts are to be counted exactly, those of the story are the only ones."""
    rng = world.rng
    if kind in ("poison", "raise"):
        return
    end = world.hub.now + rng.uniform(15.0, 45.0)
    if kind == "graceful":
        known, mean = misfortunes.GRACEFUL, rng.choice([1.0, 3.0])
        world.graceful, world.on_plan = True, partial(upset, world)
    elif kind == "loss":
        known, mean = misfortunes.LOSSES, rng.choice([2.0, 4.0, 8.0])
        world.losses, world.meeting_fails = True, rng.choice([0.0, 0.0, 0.05])
        world.at_lane = partial(misfortunes.strike_at, world, rng.choice([0.0, 0.1, 0.3]))
    elif kind == "zombie":
        known, mean = misfortunes.LIVELY, rng.choice([1.0, 3.0])
        world.faults.kv_stopped = 0.02
    else:
        known = [what for what in misfortunes.EVERY if rng.random() < 0.4]
        if kind == "hang":  # steps that took long because they were stopped teach patience with those that hang
            known = [what for what in known if what not in misfortunes.STOPS]
        mean = rng.choice([1.5, 4.0, 8.0])
        world.faulty, world.faults = True, mixture(rng) if rng.random() < 0.8 else Faults()
        if kind == "hang":
            world.faults.kv_stopped = 0.0

    def again() -> None:
        if world.hub.now < end and not world.judge.violation:
            if known:
                rng.choice(known)(world)
            if len(world.living()) < 2:
                world.hub.at(world.hub.now + rng.uniform(0.0, 5.0), world.add_worker)
            world.hub.at(world.hub.now + rng.expovariate(1 / mean), again)

    world.hub.at(world.hub.now + rng.uniform(0.0, 3.0), again)
    world.run(end - world.hub.now, world.all_over)
    if kind == "loss":
        calm(world)


def calm(world: World) -> None:
    """Nothing happens any more, and everybody who can serve does before long: also who was falsely accused."""
    world.note("=== calm")
    world.quiet = True
    world.at_lane, world.meeting_fails = lambda lane, what: None, 0.0
    for machine in [*world.workers, *world.runners]:
        machine.process.strike = None
        machine.process.stopped_until = 0.0
        world.hub.at(world.hub.now, machine.process.go_on)
    if len(world.jobs) == 1:
        (job,) = world.jobs.values()
        world.run(NOTICED_SECONDS, world.all_over)
        world.run(CALM_SECONDS, lambda: world.all_over() or all_serve(world, job))
        world.judge.check(
            world.all_over() or all_serve(world, job),
            f"{NOTICED_SECONDS + CALM_SECONDS:g} s after the last fault {sorted(idlers(world, job))} serve nobody",
        )


def all_serve(world: World, job: SimJob) -> bool:
    """Whether as many workers as can be are members."""
    members, living = len(world.view(job).members), len(able(world)) - len(spare(world, job))
    return members == min(living, job.spec.ests, job.spec.max_workers or living)


def idlers(world: World, job: SimJob) -> set[str]:
    """Workers that could be members."""
    members = {member.worker for member in world.view(job).members}
    return {w.process.name for w in able(world) if w.process.name not in members} - spare(world, job)


def spare(world: World, job: SimJob) -> set[str]:
    """Workers that could be members, and would not make a step faster: the job says so."""
    status = world.view(job).status
    _, _, names = (status.value.reason if status else "").partition("a step would not be faster with ")
    members = {member.worker for member in world.view(job).members}
    here = {worker.process.name for worker in able(world)}
    return {name for name in here if name.rsplit("-", 1)[0] in names.split(", ")} - members if names else set()


def able(world: World) -> list[SimWorker]:
    """Workers that can go on."""
    return [w for w in world.living() if not w.left and not world.quarantined(w)]


def upset(world: World) -> None:
    """Changes come while a change is under way: between two generations everything is in memory only."""
    if world.rng.random() < 0.5:
        change = world.rng.choice([misfortunes.pause_job, misfortunes.pause_long, misfortunes.leave, misfortunes.join])
        world.hub.at(world.hub.now + world.rng.uniform(0.0, 0.6), change, world)


def peace(world: World) -> None:
    """All faults end, and everything must come to its end."""
    world.note("=== peace")
    world.quiet = True
    world.on_plan, world.at_lane, world.meeting_fails = lambda: None, lambda lane, what: None, 0.0
    world.faulty, world.faults = False, Faults()
    world.step_seconds = 0.05  # what is left of the training teaches little
    world.kv.down_until = world.client.down_until = world.client.full_until = 0.0
    world.kv.cut_off.clear()
    for machine in [*world.workers, *world.coordinators, *world.runners]:
        machine.process.strike = None
        machine.process.stopped_until = 0.0
        world.hub.at(world.hub.now, machine.process.go_on)
    for job in world.jobs.values():
        misfortunes.resume_job(world, job)
    replenish(world)
    if not world.leading():
        world.add_coordinator()
    world.run(PATIENCE_SECONDS, world.all_over)
    for job in world.jobs.values():
        view = world.view(job)
        reason = view.status.value.reason if view.status else ""
        world.judge.check(
            view.state in job.expect,
            f"{PATIENCE_SECONDS:g} s after the last fault {job.name} is {view.state!r} ({reason}), "
            f"not {' or '.join(sorted(job.expect))}",
        )
        if view.state == "done":
            world.judge.check(
                view.head and view.head.value.step == job.steps, f"{job.name} is done, and its head is not at its end"
            )
        world.judge.check_attempts(job, view)


def replenish(world: World) -> None:
    """Two machines at least; flipped bits may still take some away."""
    while len(able(world)) < 2:
        world.add_worker()
    if any(job.flips is not None for job in world.jobs.values()):
        world.hub.at(world.hub.now + 5.0, lambda: None if world.departing else replenish(world))


def departure(world: World) -> None:
    """Everybody is told to go."""
    world.departing = True
    told = world.living()
    for worker in told:
        worker.leave()
    world.run(DEPARTURE_SECONDS, lambda: not any(worker.alive for worker in told))
    for worker in told:
        world.judge.check(
            not worker.alive, f"{worker.process.name} was told to go {DEPARTURE_SECONDS:g} s ago and is still there"
        )
