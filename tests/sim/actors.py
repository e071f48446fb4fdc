"""Agents, runners and coordinators as processes of the simulation: the real drivers, started and ended as by a machine.

Played are the socket pair between agent and runner, the start of a runner, and its training.
"""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from easyscale.coordinator.coordinator import Coordinator
from easyscale.pipeline import committer, lanes, messages, reach, runner, worker
from easyscale.pipeline.lanes import LocalLane
from easyscale.storage import commits

from . import peers
from .hub import Process, Thread
from .training import Part, Replica
from .virtual import Event, Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.coordinator.records import LaneChoice

    from .world import World

NOBODY = "0" * 64

PREPARING = -1
"""As a step: before the first one."""


def est_seconds(_worker: str) -> float | None:
    """What a worker's probe says an EST takes: nothing, unless a story has something in store."""
    return None


class UserError(RuntimeError):
    """What the user's code raises when the story wants it to."""


class Channel:
    """Stands for `channel.Channel`: the runner's end of the socket pair."""

    def __init__(self, process: RunnerProcess) -> None:
        self._process = process
        self.inbox: Any = Queue(process.world.hub)
        self.on_answer: Callable[[Any], None] | None = None

    def say(self, message: messages.FromRunner) -> None:
        """Send to the agent."""
        self._process.to_agent(messages.encode(message))

    def deliver(self, line: bytes) -> None:
        """As the reading thread of the real one does."""
        message = messages.decode_to_runner(line)
        if isinstance(message, messages.Published | messages.Refused) and self.on_answer is not None:
            self.on_answer(message)
        else:
            self.inbox.put(message)


class SimRunner(runner.Runner):
    """The real runner; only its preparation and what it trains are played."""

    world: World
    process: RunnerProcess

    def _prepare(self, message: messages.Prepare) -> None:
        world, job = self.world, self.world.jobs[message.job]
        self.process.job = job.name
        world.hub.sleep(world.rng.uniform(0.2, 2.0))
        if job.poison == PREPARING:
            world.poisoned(job, self.process)
        self._store = world.store
        self._spec = job.spec
        who = self.process.name
        self._build = lambda: Replica(  # type: ignore[assignment, return-value]
            job.spec.ests,
            lambda step: world.story_of(job, step, self.process),
            lambda step, value: world.judge.stepped(job, step, value, who),
            lambda kind, step, watch: job.flips is not None and job.flips.due(kind, self.process, step, watch),
        )
        self._engine = self._build()
        about = committer.About(message.job, NOBODY, NOBODY, job.spec.ests, {"class": "sim"})
        self._committer = committer.Committer(world.store, about, self._snapshot, self._channel.say)
        self._channel.on_answer = self._committer.answer
        here = peers.address(self.process) if self.process.agent.owner.lane != "store" else ""
        told = est_seconds(self.process.agent.name)
        ready = messages.Ready(determinism="sim", description={}, probe="same", address=here, est_seconds=told)
        self._channel.say(ready)

    def _new_lane(self, run: messages.Run) -> Any:
        self.process.run, self.process.replaying = run, False
        if len(run.members) == 1:
            return LocalLane[Part]()
        if run.lane == "peer":
            return peers.PeerLane(self.process, run, self._patience)
        return lanes.StoreLane(self._store, self._committer.job, run, Part.from_bytes)

    def _snapshot(self, reuse: Any) -> Any:
        assert self._engine is not None
        return commits.Snapshot.take(self._engine.step, self._engine.state(), reuse)


class RunnerProcess:
    """Stands for `process.RunnerProcess`: the agent's end."""

    numbers = itertools.count(1)

    def __init__(
        self,
        world: World,
        *,
        on_message: Callable[[messages.FromRunner], None],
        on_exit: Callable[[str], None],
        **_: Any,
    ) -> None:
        agent = world.hub.process
        assert agent is not None
        self.world, self.agent = world, agent
        self._on_message, self._on_exit = on_message, on_exit
        self.name = f"{agent.name}.r{next(world.numbers)}"
        self.process = Process(world.hub, self.name, clock=agent.clock, wall=agent.wall)
        self.job = ""
        self.it: SimRunner | None = None
        self._lines: deque[bytes] = deque()
        self._reading = False
        self.how = "ended by SIGKILL"
        self.hanging = False
        self.disturbed = False
        """It, or its agent, was stopped, so that others could not count on it."""
        self.run: messages.Run | None = None
        self.replaying = False
        """It computes steps again, to see which states are right."""
        self._said = self._heard = 0.0
        self.channel = Channel(self)
        self.pid = 1
        agent.on_death.append(self.process.kill)
        self.process.on_death.append(self._died)
        Thread(self.process, self._main)
        world.runners.append(self)

    def _main(self) -> None:
        environment = runner.Environment(fd=0, store="s3://sim", folder="/sim", device="sim", cache=False)
        self.world.channel = self.channel
        self.it = it = SimRunner(environment)
        it.world, it.process, it._patience = self.world, self, self.world.lane_patience
        try:
            it.main()
            self.how = "exited with status 0"
        except SystemExit:
            self.how = "exited with status 1"
        self.process.kill()

    @property
    def committing(self) -> bool:
        """Whether it is writing a commit."""
        committer = getattr(self.it, "_committer", None)
        return committer is not None and not committer.idle

    def _died(self) -> None:
        world = self.world
        world.note(f"{self.name} {self.how}")
        flips = world.flips_of(self.job)
        if flips is not None:
            flips.died(self)
        # Its last words come before its death.
        world.hub.at(max(self._said, world.hub.now) + 0.002, self._reap)

    def _reap(self) -> None:
        if self.agent.alive:
            self._on_exit(f"the runner {self.how}")

    def to_agent(self, line: bytes) -> None:
        """A line on its way to the agent."""
        hub = self.world.hub
        if not self.process.alive:
            return  # it is being unwound
        self._said = max(self._said + 1e-6, hub.now + self.world.rng.uniform(0.0002, 0.005))
        message = messages.decode_from_runner(line)
        self.world.judge.said(self, message)
        hub.at(self._said, lambda: self._on_message(message) if self.agent.alive else None)

    def send(self, message: messages.ToRunner) -> None:
        """A line on its way to the runner."""
        hub = self.world.hub
        if isinstance(message, messages.Run):
            self.world.judge.started(self, message)
        flips = self.world.flips_of(self.job)
        if isinstance(message, messages.Commit) and flips is not None:
            flips.told_to_commit()
        self._heard = max(self._heard + 1e-6, hub.now + self.world.rng.uniform(0.0002, 0.005))
        hub.at(self._heard, self._deliver, messages.encode(message))

    def _deliver(self, line: bytes) -> None:
        process = self.process
        if not process.alive:
            return
        self._lines.append(line)
        if not self._reading:
            self._reading = True
            Thread(process, self._read)

    def _read(self) -> None:
        """The runner's reading thread: it is stopped with its process."""
        while self._lines:
            self.channel.deliver(self._lines.popleft())
        self._reading = False

    def signal(self, kind: str) -> None:
        """A signal from the agent; one that hangs in C does not hear TERM."""
        if kind == "kill" or (kind == "term" and not self.hanging):
            self.how = f"ended by SIG{kind.upper()}"
            self.process.kill()

    def wait(self, timeout: float) -> None:
        """The agent waits for its end."""
        end = self.world.hub.now + timeout
        while self.process.alive and self.world.hub.now < end:
            self.world.hub.sleep(0.05)
        self.process.kill()


class SimWorker:
    """A machine with one agent and its runner."""

    def __init__(self, world: World, name: str, lane: LaneChoice) -> None:
        self.world, self.name, self.lane = world, name, lane
        rng = world.rng
        self.process = Process(
            world.hub, name, clock=rng.uniform(-3600, 3600) + 5000, wall=rng.choice([0.0, -3600.0, 3600.0])
        )
        self.process.owner = self
        self.it: worker.Worker | None = None
        self.left = False
        Thread(self.process, self._main)

    def _main(self) -> None:
        options = worker.WorkerOptions(
            name=self.name,
            device="cpu",
            folder=Path("/nonexistent"),
            ttl=self.world.worker_ttl,
            grace=20.0,
            hang_floor=self.world.hang_floor,
            lane=self.lane,
        )
        self.it = worker.Worker(self.world.kv, self.world.store, options, None)  # type: ignore[arg-type]
        self.process.name = self.it.id
        self.it.run()
        self.world.note(f"{self.it.id} exits")
        self.process.kill()

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def runner(self) -> RunnerProcess | None:
        mine = [r for r in self.world.runners if r.agent is self.process and r.process.alive]
        return mine[-1] if mine else None

    def leave(self) -> None:
        """SIGTERM, once: the second time means at once."""
        if self.left:
            return
        self.left = True
        if self.it is not None:
            self.it.leave()
        else:
            self.process.kill()  # no handler is installed yet


class SimCoordinator:
    """A machine with a coordinator. `clock`: what its clock is ahead of the world's, in seconds."""

    def __init__(self, world: World, clock: float) -> None:
        self.world = world
        self.process = Process(world.hub, f"c{next(world.numbers)}", clock=clock)
        self.stop: Any = Event(world.hub)
        self.id = ""
        Thread(self.process, self._main)

    def _main(self) -> None:
        it = Coordinator(self.world.kv, ttl=self.world.coordinator_ttl)  # type: ignore[arg-type]
        self.id = it.id
        it.run(self.stop)
        self.process.kill()


def names(world: World) -> list[tuple[Any, dict[str, Any]]]:
    """What stands in for the product's classes: (module, {name: substitute})."""
    return [
        (
            worker,
            {
                "RunnerProcess": lambda nursery, **arguments: RunnerProcess(world, **arguments),
                "device_kind": lambda _: "sim",
                "memory_bytes": lambda _: 1,
                "socket": SimpleNamespace(gethostname=lambda: "sim"),
                "os": SimpleNamespace(getpid=lambda: 1),
            },
        ),
        (reach, {"_reached": partial(peers.reached, world)}),
        (runner, {"Channel": lambda _: world.channel}),
    ]
