"""A whole cluster in one thread on a virtual clock: real coordinator, real agents, real generation and commit logic,
over stores that lie. Only the user's training is played: a replica whose state is a number that depends on every EST
of every step, so that anything lost, doubled or mixed up shows in it."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.coordinator import Coordinator
from easyscale.coordinator.kv import Put
from easyscale.coordinator.lease import LeaseKeeper
from easyscale.coordinator.memory import MemoryKV
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.transactions import apply
from easyscale.errors import OutcomeUnknownError, UnavailableError
from easyscale.pipeline import actions, messages
from easyscale.pipeline.agent import Agent
from easyscale.pipeline.committer import About, Committer, Order, advance
from easyscale.pipeline.generation import Generation
from easyscale.pipeline.lanes import LocalLane, StoreLane
from easyscale.pipeline.session import Session
from easyscale.storage import commits
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = "sim"
WORKER_TTL = 5.0
ZERO = "0" * 64


def next_value(value: int, step: int, parts: list[int]) -> int:
    return int.from_bytes(hashlib.blake2b(repr((value, step, parts)).encode(), digest_size=7).digest())


def part_of(value: int, step: int, est: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr((value, step, est)).encode(), digest_size=7).digest())


def expected_values(ests: int, steps: int) -> list[int]:
    """What one undisturbed worker would compute."""
    values = [0]
    for step in range(steps):
        values.append(next_value(values[-1], step, [part_of(values[-1], step, est) for est in range(ests)]))
    return values


@dataclass(frozen=True)
class Part:
    values: dict[int, int]

    def to_bytes(self) -> bytes:
        return repr(sorted(self.values.items())).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Part:
        return Part(dict(eval(data)))


@dataclass
class Report:
    step: int
    epoch: int
    loss: float
    lr: list[float]


class Replica:
    """Plays the engine."""

    def __init__(self, world: World, who: str) -> None:
        self.world, self.step, self.value = world, 0, 0
        self.who = who

    def compute(self, ests: range) -> Part:
        return Part({est: part_of(self.value, self.step, est) for est in ests})

    def apply(self, contributions: list[Part]) -> Report:
        parts: dict[int, int] = {}
        for contribution in contributions:
            assert not parts.keys() & contribution.values.keys(), "an EST was computed twice in one step"
            parts |= contribution.values
        assert sorted(parts) == list(range(self.world.ests)), "an EST is missing"
        self.value = next_value(self.value, self.step, [parts[est] for est in range(self.world.ests)])
        self.step += 1
        self.world.stepped(self.step, self.value, self.who)
        return Report(self.step - 1, 0, float(self.step), [0.1])

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": 1.0}

    def tree(self) -> dict[str, Any]:
        return {"step": self.step, "model": {"parameters": {"w": torch.tensor([self.value])}}}

    def load(self, tree: dict[str, Any]) -> None:
        self.step, self.value = tree["step"], int(tree["model"]["parameters"]["w"][0])
        self.world.stepped(self.step, self.value, self.who)


@dataclass
class Faults:
    """Rates of lies told by the stores; zero ends them all."""

    kv_lost: float = 0.0
    kv_unknown: float = 0.0
    store_lost: float = 0.0
    store_unknown: float = 0.0


class LyingKV:
    """A memory store that sometimes does not answer, before or after doing what was asked."""

    def __init__(self, inner: MemoryKV, world: World) -> None:
        self._inner, self._world, self.address = inner, world, inner.address

    def _maybe(self, rate: float) -> bool:
        return self._world.rng.random() < rate

    def _read(self, call: Callable[[], Any]) -> Any:
        if self._maybe(self._world.faults.kv_lost):
            self._world.count("kv read lost")
            raise UnavailableError("lost")
        return call()

    def get(self, key: str) -> Any:
        return self._read(lambda: self._inner.get(key))

    def range(self, prefix: str) -> Any:
        return self._read(lambda: self._inner.range(prefix))

    def txn(self, compares: Any, operations: Any) -> Any:
        if self._maybe(self._world.faults.kv_unknown):
            applied = self._maybe(0.5)
            self._world.count(f"kv write unknown, {'applied' if applied else 'not applied'}")
            if applied:
                self._apply(compares, operations)
            raise OutcomeUnknownError("no answer")
        return self._apply(compares, operations)

    def _apply(self, compares: Any, operations: Any) -> Any:
        before = {kv.key: kv for kv in self._inner.range(keys.job(JOB))}
        result = self._inner.txn(compares, operations)
        if result.succeeded:
            self._world.check_history(before, {kv.key: kv for kv in self._inner.range(keys.job(JOB))})
        return result

    def grant(self, ttl: float) -> int:
        return self._read(lambda: self._inner.grant(ttl))

    def keep_alive(self, lease: int) -> bool:
        return self._read(lambda: self._inner.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        self._read(lambda: self._inner.revoke(lease))

    def watch(self, *prefixes: str) -> Any:
        return self._inner.watch(*prefixes)

    def close(self) -> None:
        self._inner.close()


class LyingStore(MemoryStore):
    """Likewise for objects."""

    def __init__(self, world: World) -> None:
        super().__init__("sim")
        self._world = world

    def _lose(self) -> None:
        if self._world.rng.random() < self._world.faults.store_lost:
            self._world.count("object call lost")
            raise UnavailableError("lost")

    def _forget(self) -> None:
        if self._world.rng.random() < self._world.faults.store_unknown:
            self._world.count("object write unknown, applied")
            raise OutcomeUnknownError("no answer")

    def get(self, key: str) -> bytes:
        self._lose()
        return super().get(key)

    def exists(self, key: str) -> bool:
        self._lose()
        return super().exists(key)

    def put(self, key: str, data: Any, *, durable: bool = True) -> None:
        self._lose()
        super().put(key, data, durable=durable)
        self._forget()

    def create(self, key: str, data: Any) -> bool:
        self._lose()
        created = super().create(key, data)
        self._forget()
        return created


class SimCommitter(Committer):
    """The real committer with the virtual clock in place of its thread."""

    def __init__(self, runner: SimRunner) -> None:
        world = runner.worker.world
        super().__init__(
            world.store,
            About(JOB, ZERO, ZERO, world.ests, {"class": "sim"}),
            lambda reuse: commits.Snapshot.take(runner.replica.step, runner.replica.tree(), reuse),
            runner.say,
        )
        self._runner, self._waiting = runner, None

    def _launch(self, order: Order) -> None:
        self._runner.later(
            self._runner.worker.world.rng.uniform(0.05, 1.5), lambda: self._go(order, self.writing(order))
        )

    def _go(self, order: Order, writing: Any) -> None:
        self._continue(order, writing, lambda: next(writing, None))

    def answer(self, message: Any) -> None:
        super().answer(message)
        if self._waiting is not None:
            (order, writing), self._waiting = self._waiting, None
            self._continue(order, writing, lambda: advance(writing, self._answers.get_nowait()))

    def _continue(self, order: Order, writing: Any, move: Callable[[], Any]) -> None:
        try:
            publish = move()
        except UnavailableError as error:
            self.finished(order, error)
            return
        if publish is None:
            self.finished(order)
        else:
            self._waiting = order, writing
            self._say(publish)


class SimRunner:
    """Plays runner.py: the same generation, session, lanes and committer, without torch and processes."""

    def __init__(self, worker: SimWorker) -> None:
        self.worker, self.alive = worker, True
        self.replica = Replica(worker.world, worker.agent.id)
        self.inbox: list[messages.ToRunner] = []
        self.session: Session | None = None
        self.steps: Any = None
        self.committer = SimCommitter(self)
        self.committing: messages.Commit | None = None
        self.early: list[messages.ToRunner] | None = None
        self._wake = 0

    def later(self, delay: float, call: Callable[[], None]) -> None:
        world = self.worker.world

        def run() -> None:
            if not self.alive:
                return
            if self.worker.paused_until > world.now:
                world.at(self.worker.paused_until, run)
                return
            call()

        world.at(world.now + delay, run)

    def say(self, message: messages.FromRunner) -> None:
        worker = self.worker
        self.later(0.0, lambda: worker.agent.on_message(message, worker.world.now))

    def hear(self, message: messages.ToRunner) -> None:
        if isinstance(message, messages.Prepare):
            self.later(
                self.worker.world.rng.uniform(0.5, 2.0),
                lambda: self.say(messages.Ready(determinism="sim", description={}, probe="same")),
            )
        elif isinstance(message, messages.Published | messages.Refused):
            self.later(0.01, lambda: self.committer.answer(message))
        elif isinstance(message, messages.Stop):
            self.worker.runner_ends("stopped")
        elif isinstance(message, messages.Run):
            self.early = []
            self.later(0.01, lambda: self.run(message))
        elif self.early is not None:
            self.early.append(message)  # it waits in the inbox until the generation lets messages in
        elif self.session is not None and not isinstance(message, messages.Commit):
            self.session.hear(message)
        elif isinstance(message, messages.Commit):
            self.committing = message
            self.later(0.01, self.enter_commit)

    def enter_commit(self) -> None:
        assert self.committing is not None
        if not self.committer.idle:
            self.later(0.05, self.enter_commit)
            return
        self.committer.enter(0, self.committing.base)
        self.pursue_commit()

    def pursue_commit(self) -> None:
        step = self.replica.step
        if self.committer.settled(step):
            self.committing = None
            self.say(messages.Committed(step=step, published=self.committer.base.step >= step))
            return
        if self.committer.idle:
            self.committer.begin({}, publish=True, share=(0, 1))
        self.later(0.05, self.pursue_commit)

    def run(self, run: messages.Run) -> None:
        world = self.worker.world
        if self.replica.step != run.step:
            assert run.base.manifest is not None
            assert run.base.step == run.step
            try:
                _, tree = commits.read_commit(world.store, run.base.manifest)
            except UnavailableError:
                self.later(0.5, lambda: self.run(run))
                return
            self.replica.load(tree)
            self.committer.forget()
        self.committer.enter(run.generation, run.base)
        self.session = Session(run, world.steps, world.commit_every)
        for message in self.early or []:
            self.session.hear(message)
        self.early = None
        lane = LocalLane() if len(run.members) == 1 else StoreLane(world.store, JOB, run, Part.from_bytes)
        self.steps = Generation(
            self.session, self.replica, lane, self.committer, self.say, lambda: world.now, samples=world.ests
        ).run()
        self.advance()

    def advance(self) -> None:
        try:
            wait = next(self.steps)
        except StopIteration as end:
            self.steps = self.session = None
            self.say(end.value)
            return
        rng = self.worker.world.rng
        self.later(rng.uniform(0.05, 0.4) if wait.compute else max(wait.seconds, 0.02), self.advance)


class SimWorker:
    """Plays worker.py: the real agent, a lease kept on the virtual clock, a played runner."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.alive, self.paused_until = world, True, 0.0
        me = records.WorkerRecord(
            id=f"{name}-{world.rng.randrange(16**6):06x}",
            name=name,
            host="sim",
            pid=1,
            device="cpu",
            kind="sim",
            memory=1,
        )
        self.agent = Agent(me, hang_floor=60.0, grace=20.0)
        self.keeper = LeaseKeeper(world.kv, WORKER_TTL, lambda _: self.agent.on_lease(0), clock=lambda: world.now)
        self.runner: SimRunner | None = None
        self.tick()

    def tick(self) -> None:
        world = self.world
        if not self.alive:
            return
        if self.paused_until <= world.now:
            self.look()
        world.at(max(world.now + world.rng.uniform(0.05, 0.25), self.paused_until), self.tick)

    def look(self) -> None:
        agent, kv, now = self.agent, self.world.kv, self.world.now
        try:
            self.keeper.step()
            if agent.lease == 0:
                agent.on_lease(self.keeper.grant().id)
            entry = kv.get(keys.assigned(agent.id))
            assigned = entry.value.decode() if entry else None
            name = agent.wanted_job(assigned)
            job = views.parse(kv.range(keys.job(name))).jobs.get(name) or views.JobView(name) if name else None
        except UnavailableError:
            self.act(agent.deadlines(now))
            return
        self.act(agent.decide(assigned, job, now))

    def act(self, wanted: list[actions.Action]) -> None:
        for action in wanted:
            if isinstance(action, actions.Write):
                self.agent.on_outcome(action.txn, apply(self.world.kv, action.txn))
            elif isinstance(action, actions.Start):
                self.runner = SimRunner(self)
                self.runner.hear(action.prepare)
            elif isinstance(action, actions.Exit):
                self.alive = False
                self.keeper.close()
            elif self.runner is not None:
                if isinstance(action, actions.Send):
                    self.runner.hear(action.message)
                elif action.kind != "stacks":
                    self.runner_ends("killed by its agent")

    def runner_ends(self, how: str) -> None:
        if self.runner is not None:
            self.runner.alive, self.runner = False, None
            self.agent.on_exit(how)

    def kill(self) -> None:
        """SIGKILL of agent and runner: the lease runs out by itself."""
        self.alive = False
        if self.runner is not None:
            self.runner.alive = False


class SimCoordinator:
    def __init__(self, world: World) -> None:
        self.world, self.alive, self.paused_until = world, True, 0.0
        self.it = Coordinator(world.kv, Planner(), ttl=4.0)
        self.tick()

    def tick(self) -> None:
        world = self.world
        if not self.alive:
            return
        if self.paused_until <= world.now:
            with contextlib.suppress(UnavailableError):
                self.it.tick(world.now)
        world.at(max(world.now + world.rng.uniform(0.2, 0.6), self.paused_until), self.tick)


class World:
    """The cluster and its judge.

    Args:
        seed: everything random.
    """

    def __init__(self, seed: int, *, ests: int = 4, steps: int = 40, commit_every: int = 7) -> None:
        self.rng = random.Random(seed)
        self.seed, self.ests, self.steps, self.commit_every = seed, ests, steps, commit_every
        self.now = 1000.0
        self.faults = Faults()
        self.counts: dict[str, int] = {}
        self.story: list[str] = []
        self.inner = MemoryKV("sim", clock=lambda: self.now)
        self.kv = LyingKV(self.inner, self)
        self.store = LyingStore(self)
        self.expected = expected_values(ests, steps)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.workers: list[SimWorker] = []
        self.coordinators: list[SimCoordinator] = []

    # ---- time

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, call))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= until and not stop():
            self.now, _, call = heapq.heappop(self._heap)
            call()
        self.now = max(self.now, until) if not stop() else self.now

    # ---- actors

    def submit(self, **changes: Any) -> None:
        record = records.JobRecord(
            name=JOB, spec=ZERO, code=ZERO, steps=self.steps, ests=self.ests,
            retries=records.Retry(died=10_000), **changes,
        )  # fmt: skip
        self.inner.txn((), (Put(keys.spec(JOB), records.encode(record)), Put(keys.desired(JOB), b"running")))

    def desire(self, what: str) -> None:
        self.note(f"user: {what}")
        self.inner.txn((), (Put(keys.desired(JOB), what.encode()),))

    def add_worker(self) -> None:
        self.workers.append(SimWorker(self, f"w{len(self.workers)}"))
        self.note(f"{self.workers[-1].agent.id} starts")

    def add_coordinator(self) -> None:
        self.coordinators.append(SimCoordinator(self))

    def living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.alive]

    # ---- the judge

    def note(self, what: str) -> None:
        self.story.append(f"{self.now:9.2f} {what}")

    def count(self, fault: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def stepped(self, step: int, value: int, who: str) -> None:
        self.note(f"    {who} holds {step}")
        assert value == self.expected[step], f"step {step} has another digest than an undisturbed run"

    def check_history(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Safety, after every write that was applied."""
        old, new = (views.parse(picture.values()).jobs.get(JOB) for picture in (before, after))
        if old is None or new is None:
            return
        assert new.generation >= old.generation, "the generation went back"
        if new.generation > old.generation:
            who = [f"{m.worker}[{m.first}:{m.last}]" for m in new.members]
            self.note(f"generation {new.generation}: {who} ({new.plan.value.cause if new.plan else ''})")
        if new.head and (old.head is None or new.head.kv.mod_revision != old.head.kv.mod_revision):
            head = new.head.value
            self.note(f"head {head.step} (generation {head.generation})")
            assert head.generation == new.generation, "a fenced holder published"
            previous = old.head.value if old.head else None
            assert previous is None or head.step > previous.step, "the head went back"
            faults, self.faults = self.faults, Faults()
            manifest, tree = commits.read_commit(self.store, head.manifest)
            self.faults = faults
            assert manifest.parent == (previous.manifest if previous else None), "the chain is broken"
            assert int(tree["model"]["parameters"]["w"][0]) == self.expected[head.step], "a wrong state was published"
            self.check_sample_history(manifest, previous.step if previous else 0)

    def check_sample_history(self, manifest: Any, after: int) -> None:
        faults, self.faults = self.faults, Faults()
        lines = self.store.get(f"blobs/{manifest.history[:2]}/{manifest.history}").splitlines()
        self.faults = faults
        assert len(lines) == manifest.step - after, "the history has a gap"

    def job(self) -> views.JobView:
        return views.parse(self.inner.range(keys.job(JOB))).jobs[JOB]

    def done(self) -> bool:
        return self.job().state == "done"
