"""Chaos: a cluster of real processes that trains one job after another while its parts are killed at random.

`Chaos` draws what happens next from a seed, does it, has it mended a little later (what was stopped is woken, what was
killed is started again), and counts. It says what must be true of every job: none fails, and each comes to the state
of the undisturbed one. Losses come in bursts that overlap; between bursts some steps are finished, as between real
preemptions, so that a job's allowance for workers that die without progress in between is not used up.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos_servers import Outages, Schedule, Servers, running_servers
from cluster import Cluster, inspected
from easyscale.coordinator import keys
from easyscale.errors import UnavailableError
from ledger import Ledger, watched
from machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from easyscale.pipeline.spec import JobSpec
    from machine import Worker

TTL = 2.0
"""Seconds of a worker's lease, so that a stop can outlast it."""

PATIENCE = 120.0
"""Seconds for some steps to be finished after a burst: only a bug uses them up."""

DEATHS_IN_A_ROW = 3
"""A job fails after more than five without progress; a machine may take three workers along."""

COUNTED_SECONDS = TTL + 3.0
"""From a death until the coordinator has surely counted it: when the lease has ended."""

WEIGHTS = {
    "TERM of a worker": 5.0,
    "KILL of a worker": 4.0,
    "KILL of a runner": 4.0,
    "STOP of a worker": 3.0,
    "KILL of a machine": 0.4,
    "join of another worker": 1.5,
    "KILL of a coordinator": 1.0,
}
"""How often what happens, on any services."""

SERVICE_WEIGHTS = {
    "KILL of etcd's leader": 0.8,
    "restart of an etcd member": 0.8,
    "STOP of an etcd member": 0.5,
    "KILL of the S3 server": 0.5,
    "5xx and lost answers of S3": 0.8,
}
"""What happens to real servers."""

PREEMPTIONS = {name for name in WEIGHTS if name.split(" ")[0] in ("TERM", "KILL", "STOP")} - {"KILL of a coordinator"}
DEADLY = {"KILL of a worker", "KILL of a runner", "STOP of a worker", "KILL of a machine"}


@dataclass(frozen=True)
class Trained:
    """A job that has ended.

    Args:
        seconds: from its submission to its end. gradients: steps times ESTs.
        attempts: that ended, by cause. generations: memberships it went through. recovered: losses it got over.
    """

    state: str
    reason: str
    digest: str
    manifest: str
    seconds: float
    gradients: int
    attempts: dict[str, int]
    generations: int
    recovered: int


@dataclass
class Tally:
    """What has happened so far.

    Args:
        events: what was done, by kind. trained: the jobs that have ended while it was done.
        computed: gradients of ESTs computed for them, without probes. runners: that were started.
        seconds: since the first of them was submitted.
    """

    events: Counter[str] = field(default_factory=Counter)
    trained: list[Trained] = field(default_factory=list)
    computed: int = 0
    runners: int = 0
    seconds: float = 0.0

    @property
    def counted(self) -> int:
        """The gradients that the jobs consist of."""
        return sum(job.gradients for job in self.trained if job.state == "done")

    @property
    def preemptions(self) -> int:
        """Events that took a worker away, for a while or for good."""
        return sum(count for name, count in self.events.items() if name in PREEMPTIONS)

    @property
    def failed(self) -> list[Trained]:
        """Jobs that should have been done."""
        return [job for job in self.trained if job.state != "done"]


class Chaos:
    """One cluster, its misfortunes and its jobs.

    Args:
        cluster: without workers. servers: what it stands on.
        model: script of the job to train. workers: how many there should be.
        env: more environment for runners. settings: of the job, other than the script's.
        counted: called with the kind of each event.
    """

    def __init__(
        self,
        cluster: Cluster,
        servers: Servers,
        model: Path,
        *,
        seed: int,
        workers: int = 3,
        env: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        counted: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self.cluster, self.servers, self.target = cluster, servers, workers
        self.tally = Tally()
        self.ledger = Ledger(cluster.folder / "ledger")
        self._counted = counted
        self._chance = random.Random(seed)
        self._script = watched(model, cluster.folder / "code")
        self._settings = settings or {}
        self._env = (env or {}) | self.ledger.env
        self._numbers = itertools.count()
        self._machines = [Machine(cluster, self._env) for _ in range(2)]
        self._schedule = Schedule(self._chance)
        self._outages = Outages(servers, cluster, self._chance, self._schedule)
        self._job, self._began = "", 0.0
        self._deaths: list[float] = []
        self._joining = 0
        self._most, self._until = 0, 0.0
        weights = WEIGHTS | (SERVICE_WEIGHTS if servers.etcd else {})
        self._kinds, self._weights = [*weights], [*weights.values()]
        for _ in range(workers):
            self._join()

    def close(self) -> None:
        """Kill all workers; other processes are the cluster's to end."""
        for machine in self._machines:
            machine.close()

    # ---- jobs

    def undisturbed(self) -> Trained:
        """Train one job while nothing happens, with all workers there from the start."""
        self.cluster.until_true(lambda: len(self.cluster.kv.range(keys.WORKERS)) == self.target)
        self._submit("undisturbed")
        self.cluster.until(
            self._job,
            lambda now: now.state == "running" and (len(now.workers) == self.target or "not be faster" in now.reason),
        )
        while (ended := self._ended()) is None:
            time.sleep(0.02)
        return ended

    @property
    def spec(self) -> JobSpec:
        """The specification of its jobs."""
        return inspected(self._script)[0]

    def run(
        self, preemptions: int, on_end: Callable[[Trained], None] = lambda job: None, seconds: float = float("inf")
    ) -> None:
        """Train jobs, one after another, until so much has happened; the last one is let finish.

        Args:
            on_end: called with each job that has ended. seconds: after that long nothing more happens.
        """
        before, began = self.ledger.computed, time.monotonic()
        self._most, self._until = preemptions, began + seconds
        number = itertools.count(1)
        self._submit(f"job-{next(number)}")
        try:
            while True:
                self._mend()
                if (ended := self._ended()) is not None:
                    self.tally.trained.append(ended)
                    on_end(ended)
                    if self._enough:
                        return
                    self._submit(f"job-{next(number)}")
                if not self._enough:
                    self._burst()
                time.sleep(0.02)
        finally:
            self.tally.runners = self.ledger.runners
            self.tally.computed = self.ledger.computed - before
            self.tally.seconds = time.monotonic() - began

    @property
    def _enough(self) -> bool:
        return self.tally.preemptions >= self._most or time.monotonic() > self._until

    def _submit(self, name: str) -> None:
        self._job, self._began = name, time.monotonic()
        while True:
            try:
                self.cluster.submit(self._script, name=name, **self._settings)
                return
            except UnavailableError:
                self._mend()
                time.sleep(0.1)

    def _ended(self) -> Trained | None:
        try:
            now = self.cluster.job(self._job)
        except UnavailableError:
            return None
        if now.state not in ("done", "failed", "cancelled"):
            return None
        view = self.cluster.view(self._job)
        assert view.status
        recovered = view.status.value.recovered
        return Trained(
            now.state, now.reason, now.state_digest or "", now.manifest or "", time.monotonic() - self._began,
            now.steps * now.ests, now.attempts, now.generation, recovered,
        )  # fmt: skip

    # ---- misfortune

    def _burst(self) -> None:
        """One to three events; then wait until the job has got over them."""
        for _ in range(self._chance.choices([1, 2, 3], [60, 30, 10])[0]):
            if not self._enough and self._in_a_row() < DEATHS_IN_A_ROW:
                self._event()
            time.sleep(self._chance.uniform(0.0, 0.15))
        steps = self._chance.randint(1, 5)
        goal = self.ledger.finished + steps * self.target
        deadline = time.monotonic() + PATIENCE
        while self.ledger.finished < goal or self._in_a_row() >= DEATHS_IN_A_ROW:
            self._mend()
            if self._ended() is not None:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no steps for {PATIENCE} s: {self.cluster.job(self._job)}")
            time.sleep(0.02)

    def _in_a_row(self) -> int:
        """How many deaths without progress the coordinator has counted, or may still count."""
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < COUNTED_SECONDS]
        try:
            view = self.cluster.view(self._job)
        except UnavailableError:
            return DEATHS_IN_A_ROW
        told = view.progress.value.step if view.progress else 0
        status = view.status.value if view.status else None
        counted = status.streak.get("died", 0) if status and told <= status.streak_step else 0
        return counted + len(self._deaths)

    def _event(self) -> None:
        kind = self._chance.choices(self._kinds, self._weights)[0]
        acts: dict[str, Callable[[], bool]] = {
            "TERM of a worker": self._term,
            "KILL of a worker": self._kill_worker,
            "KILL of a runner": self._kill_runner,
            "STOP of a worker": self._stop,
            "KILL of a machine": self._lose_machine,
            "join of another worker": self._join_another,
            "KILL of a coordinator": self._outages.kill_coordinator,
            "KILL of etcd's leader": self._outages.kill_leader,
            "restart of an etcd member": self._outages.restart_member,
            "STOP of an etcd member": self._outages.stop_member,
            "KILL of the S3 server": self._outages.kill_s3,
            "5xx and lost answers of S3": self._outages.trouble_s3,
        }
        if acts[kind]():  # not all of them can happen at any time
            self.tally.events[kind] += 1
            self._counted(kind)
            self._deaths += [time.monotonic()] * (kind in DEADLY)

    def _mend(self) -> None:
        """Do what has become due, and see that there are as many workers as there should be."""
        self._schedule.do_due()
        for machine in self._machines:
            for worker in [worker for worker in machine.workers if not worker.running]:
                machine.workers.remove(worker)
                worker.close()
        if len([worker for worker in self._workers() if not worker.leaving]) + self._joining < self.target:
            self._joining += 1
            self._schedule.later(0.0, 1.0, self._replace)

    def _replace(self) -> None:
        self._joining -= 1
        self._join()

    # ---- workers

    def _workers(self) -> list[Worker]:
        return [worker for machine in self._machines for worker in machine.workers]

    def _any_worker(self) -> Worker | None:
        """One that is there and was not told to go."""
        present = [worker for worker in self._workers() if worker.running and worker.pid and not worker.leaving]
        return self._chance.choice(present) if present else None

    def _join(self) -> None:
        number = next(self._numbers)
        self._machines[number % 2].join(f"w{number}", "--ttl", str(TTL))

    def _join_another(self) -> bool:
        if len(self._workers()) > self.target:
            return False
        self._join()
        return True

    def _term(self) -> bool:
        worker = self._any_worker()
        if worker:
            worker.signal(signal.SIGTERM)
        return worker is not None

    def _kill_worker(self) -> bool:
        worker = self._any_worker()
        if worker:
            worker.signal(signal.SIGKILL)
        return worker is not None

    def _kill_runner(self) -> bool:
        worker = self._any_worker()
        return worker is not None and worker.kill_runner()

    def _stop(self) -> bool:
        """The agent, the runner or both; for a moment, or for longer than its lease lives."""
        worker = self._any_worker()
        if worker is None or worker.stopped:
            return False
        agent, runner = worker.pid, worker.runner
        both = [pid for pid in (agent, runner) if pid]
        worker.stop(self._chance.choice([both, both, [agent or 0], both[-1:]]))
        low, high = self._chance.choice([(0.1, 0.6), (TTL, 2 * TTL)])
        self._schedule.later(low, high, worker.wake)
        return True

    def _lose_machine(self) -> bool:
        machine = self._chance.choice(self._machines)
        self._deaths += [time.monotonic()] * len(machine.workers)
        machine.lose()
        return True


@contextmanager
def running_chaos(folder: Path, model: Path, *, services: str, seed: int, **options: Any) -> Iterator[Chaos]:
    """Everything that chaos needs, in a folder; nothing of it is left afterwards. See `Chaos` for the options."""
    with (
        running_servers(services, folder, seed) as servers,
        Cluster(folder / "cluster", servers.kv, servers.store, servers.env) as cluster,
    ):
        chaos = Chaos(cluster, servers, model, seed=seed, **options)
        try:
            yield chaos
        except AssertionError:
            print(cluster.logs(), file=sys.stderr)
            raise
        finally:
            chaos.close()
