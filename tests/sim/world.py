"""One simulated cluster: stores, processes, jobs, faults and the judge, all decided by a seed."""

from __future__ import annotations

import contextlib
import itertools
import random
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import Put
from easyscale.pipeline.spec import JobSpec, Retries
from easyscale.storage import s3

from . import actors, peers, virtual
from .faults import Faults
from .hub import Hub
from .judge import Judge
from .kv import LyingKV
from .objects import FakeClient, SimS3
from .training import expected_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .flips import Flips
    from .hub import Process

DIGEST = "0" * 64


@dataclass
class SimJob:
    """A job, and what the user's code does besides training.

    Args:
        expect: states in which it may end.
        poison: the step that kills its runner, or its whole machine, each time it is computed; -1: its preparation.
        raises, hangs: step -> how many more times the user's code raises or hangs there.
        raised, killed: how often it has, and how often the poisoned step has killed.
        flips: bits that flip in its replicas.
    """

    spec: JobSpec
    steps: int
    expect: set[str] = field(default_factory=lambda: {"done"})
    poison: int | None = None
    raises: dict[int, int] = field(default_factory=dict)
    hangs: dict[int, int] = field(default_factory=dict)
    poisons_machine: bool = False
    raised: int = 0
    killed: int = 0
    flips: Flips | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def expected(self) -> tuple[int, ...]:
        return expected_values(self.spec.ests, self.steps)


class World:
    """The cluster.

    Args:
        seed: everything random.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.hub = Hub(self._crashed)
        self.story: list[tuple[float, str, str, dict[str, Any]]] = []
        self.injected: Counter[str] = Counter()
        self.faults = Faults()
        self.faulty = False
        self.quiet = False
        """Nothing happens any more but what has begun."""
        self.departing = False
        """All is over, and nobody comes any more."""
        self.graceful = False
        """Nobody is lost in this seed, so nothing may be computed twice."""
        self.hurt = False
        """Stored bytes were damaged: from now on a runner may meet what it cannot read."""
        self.losses = False
        """Nothing happens in this seed but that members come, go, die and stop, and connections break."""
        self.meeting_fails = 0.0
        self.groups: dict[tuple[str, int], peers.Group] = {}
        """Who met, by job and generation."""
        self.lost_at: dict[int, float] = {}
        """When a member was last lost, by generation."""
        self.at_lane: Callable[[peers.PeerLane, str], None] = lambda lane, what: None
        """What a story wants to happen at certain points of an exchange."""
        self.on_plan: Callable[[], None] = lambda: None
        """What a story wants to happen when a generation is planned."""
        self.jobs: dict[str, SimJob] = {}
        self.workers: list[actors.SimWorker] = []
        self.coordinators: list[actors.SimCoordinator] = []
        self.runners: list[actors.RunnerProcess] = []
        self.channel: Any = None
        self.numbers = itertools.count(1)
        self.worker_ttl = self.rng.choice([3.0, 6.0, 10.0])
        self.coordinator_ttl = self.rng.choice([3.0, 6.0])
        self.hang_floor = 6.0
        self.lanes = self.rng.choice(["peer", "peer", "peer", "mixed", "mixed", "store"])
        self.lane_patience = self.rng.choice([4.0, 20.0, 60.0])
        self.step_seconds = self.rng.choice([0.2, 0.5, 0.9])
        self.judge = Judge(self)
        self.kv = LyingKV(self)
        self.client = FakeClient(self)
        self.store = SimS3(self.client, deadline=self.rng.choice([3.0, 10.0, 30.0]))

    # ---- the frame

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The product lives in this world."""
        kept = structlog.get_config()
        actors.RunnerProcess.numbers = itertools.count(1)
        small = [(s3, {"MULTIPART_ABOVE": 600, "PART_SIZE": 400})] if self.rng.random() < 0.3 else []
        with contextlib.ExitStack() as stack:
            stack.enter_context(virtual.installed(self.hub, self.rng))
            for module, substitutes in [*actors.names(self), *small]:
                for name, value in substitutes.items():
                    stack.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, value)
            structlog.configure(
                processors=[self._logged],
                wrapper_class=structlog.make_filtering_bound_logger(20),
                cache_logger_on_first_use=False,
            )
            stack.callback(structlog.configure, **kept)
            try:
                yield
            finally:
                self._end()

    def _end(self) -> None:
        """Every process ends; otherwise its greenlets would be unwound in the middle of another world."""
        machines: list[Any] = [*self.workers, *self.coordinators, *self.runners]
        for process in [machine.process for machine in machines]:
            process.on_death.clear()
            process.alive = False
            process._unwind()

    def _crashed(self, process: Process, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error)[-4:])
        self.judge.check(False, f"{process.name} crashed: {type(error).__name__}: {error}\n{trace}")

    def _logged(self, logger: Any, method: str, event: dict[str, Any]) -> Any:
        del logger, method
        name = event.pop("event")
        event.pop("worker", None)
        if name == "replicas.settled":
            self.judge.settled(event["wrong"])
        self.note(name, **event)
        raise structlog.DropEvent

    # ---- what happened

    def note(self, what: str, **fields: Any) -> None:
        """A line of the history."""
        process = self.hub.process
        self.story.append((self.hub.now, process.name if process else "-", what, fields))

    def fault(self, kind: str, detail: str = "") -> None:
        """A fault is injected."""
        self.injected[kind] += 1
        self.note(f"~ {kind}{' ' if detail else ''}{detail}")

    def chance(self, rate: str, kind: str, times: float = 1.0) -> bool:
        """Whether a fault of this kind strikes now; so many `times` more likely than it usually does."""
        probability = getattr(self.faults, rate) * times
        if not probability or self.rng.random() >= probability:
            return False
        self.fault(kind)
        return True

    def chance_of_loss(self, probability: float, kind: str) -> bool:
        """Whether something happens to an exchange now."""
        if not probability or self.rng.random() >= probability:
            return False
        self.fault(kind)
        return True

    def lines(self) -> Iterator[str]:
        """The history, readable."""
        for when, who, what, fields in self.story:
            text = "  ".join(f"{key}={str(value)[:400]}" for key, value in fields.items())
            yield f"{when - 1000.0:9.3f}  {who:<14} {what}  {text}".rstrip()

    # ---- actors

    def submit(self, spec: JobSpec, **changes: Any) -> SimJob:
        """A job that exists from now on."""
        assert spec.steps is not None
        job = self.jobs[spec.name] = SimJob(spec, spec.steps, **changes)
        record = records.JobRecord(
            name=spec.name, spec=DIGEST[:-1] + str(len(self.jobs)), code=DIGEST, steps=job.steps, ests=spec.ests,
            min_workers=spec.min_workers, max_workers=spec.max_workers,
            retries=records.Retry(died=spec.retries.died, raised=spec.retries.raised),
        )  # fmt: skip
        operations = (Put(keys.spec(spec.name), records.encode(record)), Put(keys.desired(spec.name), b"running"))
        self.kv.inner.txn((), operations)
        return job

    def desire(self, job: SimJob, what: str) -> None:
        """The user wants something."""
        self.note(f"user wants {job.name} {what}")
        self.kv.inner.txn((), (Put(keys.desired(job.name), what.encode()),))

    def add_worker(self, name: str | None = None, lane: records.LaneChoice | None = None) -> actors.SimWorker:
        """Another machine. `lane`: one that is usual in this world."""
        choice: dict[str, list[records.LaneChoice]] = {
            "peer": ["auto", "auto", "auto", "peer"],
            "mixed": ["auto", "auto", "store"],
            "store": ["store"],
        }
        lane = lane or self.rng.choice(choice[self.lanes])
        worker = actors.SimWorker(self, name or f"w{next(self.numbers)}", lane)
        self.workers.append(worker)
        self.note(f"{worker.name} starts")
        return worker

    def add_coordinator(self, clock: float | None = None) -> actors.SimCoordinator:
        """Another candidate for leadership. `clock`: see `SimCoordinator`; by default any."""
        clock = self.rng.uniform(-3600, 3600) + 5000 if clock is None else clock
        self.coordinators.append(actors.SimCoordinator(self, clock))
        self.note(f"{self.coordinators[-1].process.name} starts")
        return self.coordinators[-1]

    def living(self) -> list[actors.SimWorker]:
        return [worker for worker in self.workers if worker.alive]

    def leading(self) -> list[actors.SimCoordinator]:
        return [c for c in self.coordinators if c.process.alive]

    def story_of(self, job: SimJob, step: int, runner: actors.RunnerProcess) -> None:
        """The user's code at work on a step: it takes time, and does what the story says."""
        hub, seconds = self.hub, self.step_seconds
        hub.sleep(self.rng.uniform(0.2, 1.0) * seconds)
        if job.poison == step:
            self.poisoned(job, runner)
        elif job.raises.get(step, 0) > 0:
            job.raises[step] -= 1
            job.raised += 1
            self.fault("user code raises")
            raise actors.UserError(f"planned, at step {step}")
        elif job.hangs.get(step, 0) > 0:
            job.hangs[step] -= 1
            self.fault("user code hangs")
            runner.hanging = True
            hub.sleep(float("inf"))
        hub.sleep(self.rng.uniform(0.0, 0.5) * seconds)

    def poisoned(self, job: SimJob, runner: actors.RunnerProcess) -> None:
        """The user's code kills its runner, or its whole machine, which comes back after a while."""
        job.killed += 1
        self.fault("user code kills its machine" if job.poisons_machine else "user code kills its runner")
        if job.poisons_machine:
            runner.agent.kill()
            name = runner.agent.owner.name
            self.hub.at(self.hub.now + self.rng.uniform(1.0, 3.0), self.add_worker, name)
        runner.process.kill()
        self.hub.sleep(0.0)

    # ---- looking

    def view(self, job: SimJob) -> views.JobView:
        """What is true of a job."""
        return views.parse(self.kv.inner.range(keys.job(job.name))).jobs[job.name]

    def flips_of(self, job: str) -> Flips | None:
        return self.jobs[job].flips if job in self.jobs else None

    def quarantined(self, worker: actors.SimWorker) -> bool:
        """Whether some job keeps away from it."""
        statuses = [status.value for job in self.jobs.values() if (status := self.view(job).status) is not None]
        return any(f"(worker {worker.name})" in device for status in statuses for device in status.quarantined)

    def all_over(self) -> bool:
        return self.judge.over == len(self.jobs)

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, until the first violation."""
        self.hub.run(self.hub.now + seconds, lambda: bool(self.judge.violation) or stop())


def small_spec(name: str, ests: int, steps: int, **changes: Any) -> JobSpec:
    """A job of the simulation."""
    return JobSpec(
        name=name, script="train.py::build", code=DIGEST, data=DIGEST, samples=1000, ests=ests, batch_size=1,
        steps=steps, retries=Retries(died=changes.pop("died", 10_000), raised=changes.pop("raised", 0)), **changes,
    )  # fmt: skip
