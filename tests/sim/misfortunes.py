"""What happens to processes, networks and disks in the faulty phase: each function is one kind of misfortune.

Half of those that befall a process come at once, the other half at one of its next awaits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actors import RunnerProcess, SimCoordinator, SimWorker
    from .hub import Process
    from .peers import PeerLane
    from .world import SimJob, World


MOST_WORKERS = 4


def at_an_await(world: World, process: Process, what: str, call: Callable[[], None]) -> None:
    """Now, or after a few more awaits of the process."""

    def strike() -> None:
        if process.alive:
            world.fault(what, process.name)
            call()

    if world.rng.random() < 0.5:
        strike()
    else:
        process.strike = (world.rng.randint(1, 80), strike)


def a_worker(world: World) -> SimWorker | None:
    """One of those that live."""
    return world.rng.choice(world.living()) if world.living() else None


def a_runner(world: World) -> RunnerProcess | None:
    """The runner of one of them."""
    worker = a_worker(world)
    return worker.runner if worker is not None else None


def a_coordinator(world: World) -> SimCoordinator | None:
    """One of those that live."""
    return world.rng.choice(world.leading()) if world.leading() else None


def kill_machine(world: World) -> None:
    worker = a_worker(world)
    if worker is not None:
        at_an_await(world, worker.process, "SIGKILL of agent and runner", worker.process.kill)


def kill_all(world: World) -> None:
    if world.rng.random() < 0.7:
        return  # or hardly anybody would ever get anywhere
    for worker in world.living():
        world.fault("SIGKILL of every agent and runner", worker.process.name)
        worker.process.kill()


def kill_runner(world: World) -> None:
    runner = a_runner(world)
    if runner is not None:
        at_an_await(world, runner.process, "SIGKILL of a runner", runner.process.kill)


def restart(world: World) -> None:
    worker = a_worker(world)
    if worker is not None:
        world.fault("worker killed and restarted under its name", worker.process.name)
        worker.process.kill()
        world.add_worker(worker.name)


def stop_machine(world: World) -> None:
    worker = a_worker(world)
    if worker is None:
        return
    disturb(worker)
    seconds, runner = world.rng.uniform(0.5, 25.0), worker.runner
    machine = [worker.process] if runner is None else [worker.process, runner.process]

    def stop() -> None:
        for process in machine:
            process.stop(seconds)

    at_an_await(world, world.rng.choice(machine), "SIGSTOP of agent and runner", stop)


def stop_agent(world: World) -> None:
    worker, seconds = a_worker(world), world.rng.uniform(0.5, 25.0)
    if worker is not None:
        disturb(worker)
        at_an_await(world, worker.process, "SIGSTOP of an agent", partial(worker.process.stop, seconds))


def stop_runner(world: World) -> None:
    runner, seconds = a_runner(world), world.rng.uniform(0.5, 25.0)
    if runner is not None:
        runner.disturbed = True
        at_an_await(world, runner.process, "SIGSTOP of a runner", partial(runner.process.stop, seconds))


def disturb(worker: SimWorker) -> None:
    """Others cannot count on this one any more."""
    if worker.runner is not None:
        worker.runner.disturbed = True


def lanes(world: World) -> list[PeerLane]:
    """Exchanges between peers that go on just now, one end of each member's."""
    newest = dict(list(world.groups.items())[-2:])
    return [lane for group in newest.values() for lane in group.values() if lane.open]


def connection_breaks(world: World) -> None:
    """Between two that live. Each end learns of it at its own time, or one of them never."""
    ends = lanes(world)
    pairs = [(a, b) for a in ends for b in ends if a.group is b.group and a.slot < b.slot]
    if not pairs:
        return
    pair = world.rng.choice(pairs)
    world.fault("connection between two that live breaks", f"{pair[0].runner.name} {pair[1].runner.name}")
    for mine, other in (pair, pair[::-1]):
        mine.runner.disturbed = True
        delay = world.rng.choice([0.0, 0.0, 0.0, world.rng.uniform(0.0, 4.0), float("inf")])
        if delay != float("inf") or mine is pair[0]:
            world.hub.at(world.hub.now + min(delay, 4.0), mine.lose, other.slot)


def kill_leader(world: World) -> None:
    for lane in lanes(world)[:1]:
        kill_one(world, lane)


def kill_two(world: World) -> None:
    ends = lanes(world)
    for lane in world.rng.sample(ends, min(2, len(ends) - 1)) if len(ends) > 2 else []:
        kill_one(world, lane)


def kill_one(world: World, lane: PeerLane) -> None:
    """The runner of this member, or its whole machine."""
    runner = lane.runner
    if world.rng.random() < 0.5:
        world.fault("SIGKILL of agent and runner", runner.name)
        runner.agent.kill()
    else:
        world.fault("SIGKILL of a runner", runner.name)
    runner.process.kill()


def strike_at(world: World, probability: float, lane: PeerLane, what: str) -> None:
    """At a certain point of an exchange one of its members dies, or two, or a connection breaks; one lives on."""
    if world.rng.random() >= probability * (0.2 if "step" in what or "sent" in what else 1.0):
        return
    ends = [other for other in lane.group.values() if other.open]
    if len(ends) < 2:
        return
    world.note(f"strikes when {lane.runner.name} {what}")
    if world.rng.random() < 0.25:
        connection_breaks(world)
        return
    for victim in world.rng.sample(ends, min(world.rng.choice([1, 1, 2]), len(ends) - 1)):
        kill_one(world, victim)


def leave(world: World) -> None:
    worker = a_worker(world)
    if worker is not None:
        world.fault("SIGTERM of an agent", worker.process.name)
        worker.leave()


def leave_all(world: World) -> None:
    if world.rng.random() < 0.7:
        return
    for worker in world.living():
        world.fault("SIGTERM of every agent", worker.process.name)
        worker.leave()


def join(world: World) -> None:
    if len(world.living()) < MOST_WORKERS:
        world.add_worker()


def coordinator_dies(world: World) -> None:
    coordinator = a_coordinator(world)
    if coordinator is not None:
        at_an_await(world, coordinator.process, "SIGKILL of a coordinator", coordinator.process.kill)
        world.hub.at(world.hub.now + world.rng.uniform(0.0, 5.0), world.add_coordinator)


def coordinator_stops(world: World) -> None:
    coordinator, seconds = a_coordinator(world), world.rng.uniform(1.0, 12.0)
    if coordinator is not None:
        at_an_await(world, coordinator.process, "SIGSTOP of a coordinator", partial(coordinator.process.stop, seconds))


def coordinator_joins(world: World) -> None:
    if len(world.leading()) < 3:
        world.add_coordinator()


def pause_job(world: World) -> None:
    pause_for(world, world.rng.uniform(0.5, 8.0))


def pause_long(world: World) -> None:
    pause_for(world, world.rng.uniform(12.0, 16.0))


def pause_for(world: World, seconds: float) -> None:
    job = world.rng.choice(list(world.jobs.values()))
    if world.view(job).desired == "running":
        world.desire(job, "paused")
        world.hub.at(world.hub.now + seconds, resume_job, world, job)


def resume_job(world: World, job: SimJob) -> None:
    if world.view(job).desired == "paused":
        world.desire(job, "running")


def partition(world: World) -> None:
    machines = [m.process for m in [*world.living(), *world.leading()]]
    if machines:
        process = world.rng.choice(machines)
        world.fault("cut off from the key-value store", process.name)
        world.kv.cut_off[process] = world.hub.now + world.rng.uniform(1.0, 15.0)


def kv_down(world: World) -> None:
    world.fault("key-value store down")
    world.kv.down_until = world.hub.now + world.rng.choice([2.0, 15.0]) * world.rng.random()


def election(world: World) -> None:
    world.fault("election restarts all leases")
    world.kv.inner.elect()


def lease_revoked(world: World) -> None:
    leases = world.kv.inner.leases()
    if leases:
        world.fault("lease revoked early")
        lease = world.rng.choice(leases)
        if world.rng.random() < 0.5:
            world.kv.inner.revoke(lease)
        else:
            world.kv.inner.revoke_silently(lease)


def store_down(world: World) -> None:
    world.fault("object store down")
    world.client.down_until = world.hub.now + world.rng.choice([2.0, 15.0]) * world.rng.random()


def store_full(world: World) -> None:
    world.fault("disk of the object store full")
    world.client.full_until = world.hub.now + world.rng.choice([2.0, 15.0]) * world.rng.random()


def rot(world: World) -> None:
    """The newest commit is damaged where it lies."""
    job = world.rng.choice(list(world.jobs.values()))
    head = world.view(job).head
    if head is not None:
        key = world.rng.choice(world.judge._objects_of(head.value.manifest))
        world.fault("stored commit damaged", key)
        world.hurt = True
        world.client.rot(key)


EVERY = [
    kill_machine, kill_all, kill_runner, restart, stop_machine, stop_agent, stop_runner, leave, leave_all, join,
    coordinator_dies, coordinator_stops, coordinator_joins, pause_job, partition, kv_down, election, lease_revoked,
    store_down, store_full, rot, connection_breaks,
]  # fmt: skip
"""All kinds."""

LIVELY = [join, join, leave, kill_machine, kill_runner, stop_agent, coordinator_stops, coordinator_dies, rot, rot]
"""Memberships change all the time, and commits go on: those who are stopped before they publish have missed much."""

LOSSES = [
    kill_machine, kill_runner, kill_leader, kill_two, leave, join, join, join, connection_breaks, connection_breaks,
    stop_runner, stop_agent,
]  # fmt: skip
"""Members come, go, die and stop, connections break; stores and coordinators are as they should be."""

STOPS = [stop_machine, stop_agent, stop_runner]

GRACEFUL = [leave, leave, leave_all, join, join, coordinator_dies, coordinator_joins, pause_job, pause_job]
"""Nobody is lost by any of these: not one step may have to be computed again."""
