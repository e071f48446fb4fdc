"""Fault 25 in the simulation: collections beside two jobs of the same bits, which therefore share all their blobs.
Members are lost and stopped, the store fails and lies, and the collections themselves are stopped and killed.

Ages are counted in minutes here, so that a job lives long enough to be collected from. The judge sees to it that what
is published is there; this module, that no removal takes anything of it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tally
from easyscale.errors import CorruptError, UnavailableError
from easyscale.pipeline.collecting import known_jobs
from easyscale.storage import blobs, collection, references
from easyscale.storage.collection import collect
from easyscale.storage.retention import Policy

from sim import misfortunes
from sim.faults import Faults
from sim.hub import Process, Thread
from sim.scenario import departure, peace
from sim.virtual import Pool, Time
from sim.world import World, small_spec

if TYPE_CHECKING:
    from easyscale.storage.objects import Seen

FRESH = 8.0
MIN_AGE = FRESH + 120.0
"""A commit may be held up by a stop, an outage and a retry, one after the other."""

KINDS = [
    misfortunes.kill_machine, misfortunes.kill_runner, misfortunes.stop_runner, misfortunes.stop_machine,
    misfortunes.join, misfortunes.join, misfortunes.leave, misfortunes.store_down, misfortunes.store_full,
    misfortunes.coordinator_dies, misfortunes.pause_job, misfortunes.kv_down,
]  # fmt: skip


class Collector:
    """A process that collects again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(world.hub, name, clock=world.rng.uniform(-3600, 3600) + 5000)
        self.removed = 0
        Thread(self.process, self._main)

    def _main(self) -> None:
        world = self.world
        while True:
            world.hub.sleep(world.rng.uniform(5.0, 30.0))
            try:
                found = collect(
                    world.store, lambda: known_jobs(world.kv, world.store), Policy(last=2), min_age=MIN_AGE,
                    delete=True, clock=Time(world.hub).monotonic,
                )  # fmt: skip
            except (CorruptError, UnavailableError) as error:  # a flipped bit; an outage
                world.note("collection gives up", error=str(error))
                continue
            self.removed += found.objects


def watch_removals(world: World) -> None:
    """Nothing that a head or its parent consists of may go."""
    delete = world.client.delete_object

    def watched(*, Key: str, **more: Any) -> dict[str, Any]:  # noqa: N803
        for job in world.jobs.values():
            head = world.view(job).head
            for digest in published(world, head.value.manifest) if head is not None else []:
                world.judge.check(Key not in world.judge._objects_of(digest), f"{Key} of {job.name} is removed")
        return delete(Key=Key, **more)

    world.client.delete_object = watched  # type: ignore[method-assign]


def published(world: World, head: str) -> list[str]:
    manifest = world.judge._manifest(head)
    return [head] + ([manifest.parent] if manifest is not None and manifest.parent is not None else [])


def live(seed: int) -> tuple[World, int]:
    """A seed: two jobs alike, of which the second begins later, so that it comes to bits that the first has given up.

    Returns:
        The world, and how many objects were removed.
    """
    world = World(seed)
    with world.installed():
        watch_removals(world)
        spec = {"ests": 2, "steps": 980, "commit_every": 7}
        world.submit(small_spec("first", **spec))
        for _ in range(2):
            world.add_coordinator()
            world.add_worker()
        collectors = [Collector(world, f"gc{number}") for number in range(2)]
        world.hub.at(world.hub.now + world.rng.uniform(0.0, 160.0), lambda: world.submit(small_spec("second", **spec)))
        world.faulty = True
        world.faults = Faults(store_lost=0.01, store_answer_lost=0.01, store_slow=0.01, store_conflict=0.05)
        misfortune_after_misfortune(world, collectors)
        world.run(900.0, lambda: len(world.jobs) == 2 and world.all_over())
        world.faulty, world.faults = False, Faults()
        peace(world)
        departure(world)
        for collector in collectors:
            collector.process.kill()
        world.run(1.0)
    return world, sum(collector.removed for collector in collectors)


def misfortune_after_misfortune(world: World, collectors: list[Collector]) -> None:
    end = world.hub.now + 500.0

    def again() -> None:
        if world.hub.now > end or world.judge.violation:
            return
        if world.rng.random() < 0.3:
            stop_or_kill(world, collectors)
        else:
            world.rng.choice(KINDS)(world)
        if len(world.living()) < 2:
            world.add_worker()
        world.hub.at(world.hub.now + world.rng.expovariate(1 / 12.0), again)

    world.hub.at(world.hub.now + 10.0, again)


def stop_or_kill(world: World, collectors: list[Collector]) -> None:
    number = world.rng.randrange(len(collectors))
    process = collectors[number].process
    seconds = world.rng.uniform(5, 200)
    if world.rng.random() < 0.7:
        misfortunes.at_an_await(world, process, "SIGSTOP of a collection", lambda: process.stop(seconds))
    else:
        misfortunes.at_an_await(world, process, "SIGKILL of a collection", process.kill)
        collectors.append(Collector(world, f"gc{len(collectors)}"))


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages that fit into a simulated run; the pools use no threads."""
    monkeypatch.setattr(blobs, "FRESH_SECONDS", FRESH)
    for module in (collection, references):
        monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)


@pytest.mark.usefixtures("minutes")
@pytest.mark.parametrize("seed", range(4))
def test_collections_beside_jobs_that_share_blobs_never_take_what_is_published(seed: int) -> None:
    world, removed = live(seed)
    tally.add("seed", "simulated with collections")
    for kind, count in world.injected.items():
        tally.add("fault", kind, count)
    assert not world.judge.violation, "\n".join([*list(world.lines())[-80:], world.judge.violation])
    assert removed > 50, "there was something to collect, and it went"


@pytest.mark.usefixtures("minutes")
def test_a_collection_that_takes_what_is_young_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail: the minimum age does not count."""

    def everything(self: collection._Sweep, seen: Seen) -> bool:
        match = collection._BLOB.fullmatch(seen.key)
        return match is None or match[1] not in self.marked

    def at_once(self: collection._Sweep, seen: Seen) -> bool:
        self.store.delete(seen.key)
        return True

    monkeypatch.setattr(collection._Sweep, "_may_go", everything)
    monkeypatch.setattr(collection._Sweep, "_remove", at_once)
    assert any(live(seed)[0].judge.violation for seed in range(3))
    tally.add("planted", "a collection that takes what is young")
