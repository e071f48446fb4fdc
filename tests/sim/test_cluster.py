"""The real decisions under faults, 100 seeds: safety all the time, liveness once the faults stop.

A failing seed replays with `pytest tests/sim/test_cluster.py -k "seed_17"`; its story is printed with the failure.
"""

from __future__ import annotations

import os

import pytest
from sim_world import World

FROM = int(os.environ.get("EASYSCALE_SIM_FROM", "0"))
SEEDS = int(os.environ.get("EASYSCALE_SIM_SEEDS", "100"))
FAULTY_SECONDS = 60.0
PATIENCE_SECONDS = 120.0


def disturb(world: World) -> None:
    """One random misfortune now, and the next one after a while, until the faulty phase is over."""
    rng = world.rng
    living = world.living()
    kind = rng.choice(["kill", "kill", "pause", "runner", "leave", "join", "coordinator", "pause coordinator", "user"])
    victim = rng.choice(living) if living else None
    if kind == "kill" and victim:
        world.note(f"kill -9 {victim.agent.id}")
        victim.kill()
    elif kind == "pause" and victim:
        seconds = rng.uniform(0.5, 15.0)
        world.note(f"SIGSTOP {victim.agent.id} for {seconds:.1f} s")
        victim.paused_until = world.now + seconds
    elif kind == "runner" and victim and victim.runner:
        world.note(f"runner of {victim.agent.id} dies")
        victim.runner_ends("killed")
    elif kind == "leave" and victim:
        world.note(f"SIGTERM {victim.agent.id}")
        victim.agent.on_leave(world.now)
    elif kind == "coordinator":
        world.note("coordinator dies, another starts")
        rng.choice(world.coordinators).alive = False
        world.coordinators = [c for c in world.coordinators if c.alive]
        world.add_coordinator()
    elif kind == "pause coordinator":
        rng.choice(world.coordinators).paused_until = world.now + rng.uniform(1.0, 12.0)
    elif kind == "user":
        world.desire("paused")
        world.at(world.now + rng.uniform(0.5, 8.0), lambda: world.desire("running"))
    world.count(kind)
    if kind == "join" or len(world.living()) < 2:
        world.at(world.now + rng.uniform(0.0, 3.0), world.add_worker)


def live_through_it(world: World) -> None:
    """Sixty seconds of misfortune, then peace."""
    rng = world.rng
    world.submit()
    for _ in range(rng.randint(1, 2)):
        world.add_coordinator()
    for _ in range(rng.randint(1, 4)):
        world.add_worker()
    level = rng.choice([0.0, 0.02, 0.1])
    world.faults.kv_lost = world.faults.kv_unknown = level
    world.faults.store_lost = world.faults.store_unknown = rng.choice([0.0, 0.02, 0.1])
    end = world.now + FAULTY_SECONDS

    def again() -> None:
        if world.now < end:
            disturb(world)
            world.at(world.now + rng.expovariate(1 / 4.0), again)

    world.at(world.now + rng.uniform(0.0, 5.0), again)
    world.run(end + 16.0)
    world.faults.kv_lost = world.faults.kv_unknown = world.faults.store_lost = world.faults.store_unknown = 0.0
    world.desire("running")
    if not world.living():
        world.add_worker()


@pytest.mark.parametrize("seed", range(FROM, FROM + SEEDS), ids=lambda seed: f"seed_{seed}")
def test_faults_never_show_in_the_bits_and_every_job_ends(seed: int) -> None:
    world = World(seed)
    try:
        live_through_it(world)
        world.run(world.now + PATIENCE_SECONDS, stop=world.done)
        job = world.job()
        assert job.state == "done", f"still {job.state}: {job.status.value.reason if job.status else ''}"
        assert job.head is not None
        assert job.head.value.step == world.steps
    except BaseException:
        print("\n".join(world.story))
        raise


def test_an_undisturbed_cluster_needs_one_generation() -> None:
    world = World(0)
    world.submit()
    world.add_coordinator()
    for _ in range(3):
        world.add_worker()
    world.run(world.now + 60.0, stop=world.done)
    assert world.done(), world.story
    assert sum(" generation " in line for line in world.story) <= 2, world.story
