"""Many agents on one etcd: what it has to do, and whether a lease is missed.

    python benchmarks/agents.py [--agents 200] [--seconds 30] [--processes 4]

The agents are the workers' own (`pipeline/worker.py`), with their leases, watches and records, many in one process.
Only their runners are played: they make a step a second, and slot 0 commits every ten, as `commit_seconds` would have
it. All share this machine's cores, which agents elsewhere would not; so what counts is etcd's part, and the leases.
First nobody has a job, then there is one for every two agents. The coordinator is a real one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
from easyscale import logs
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import Delete, KeyValueStore, Put, open_kv
from easyscale.coordinator.lease import LeaseKeeper
from easyscale.pipeline import messages
from easyscale.pipeline import worker as workers
from easyscale.pipeline.devices import device_kind
from easyscale.storage.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from etcd_service import EtcdCluster  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_SECONDS, COMMIT_STEPS = 1.0, 10
SETTLE_SECONDS = 20.0
MEMBERS = 2
"""Agents of a job."""


class PlayedRunner:
    """Stands for a runner process: answers as one does, and computes nothing."""

    def __init__(
        self, _: object, *, on_message: Callable[[Any], None], on_exit: Callable[[str], None], **__: object
    ) -> None:
        self._say, self._on_exit = on_message, on_exit
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._base: str | None = None
        self._held = 0
        self._over = threading.Event()
        threading.Thread(target=self._main, daemon=True).start()

    def send(self, message: object) -> None:
        """See `RunnerProcess`."""
        self._inbox.put(message)

    def signal(self, _: str) -> None:
        """See `RunnerProcess`."""
        self._inbox.put(messages.Stop())

    def wait(self, timeout: float) -> None:
        """See `RunnerProcess`."""
        self._over.wait(timeout)

    def _main(self) -> None:
        while not isinstance(message := self._inbox.get(), messages.Stop):
            if isinstance(message, messages.Prepare):
                self._say(messages.Ready(determinism="played", description={}, probe="played"))
            elif isinstance(message, messages.Run):
                if self._run(message):
                    break
            elif isinstance(message, messages.Commit):
                self._base = message.base.manifest
                self._publish()
                self._say(messages.Committed(step=self._held, published=True))
        self._over.set()
        self._on_exit("exited with status 0")

    def _run(self, run: messages.Run) -> bool:
        """Make steps until told otherwise. Whether that was to stop for good."""
        self._held, self._base = run.step, run.base.manifest
        while True:
            self._say(messages.Computing())
            try:
                message = self._inbox.get(timeout=STEP_SECONDS)
            except queue.Empty:
                self._held += 1
                progress = records.Progress(
                    step=self._held,
                    generation=run.generation,
                    loss=1.0,
                    samples_per_second=10.0,
                    step_seconds=STEP_SECONDS,
                )
                self._say(messages.Stepped(progress=progress))
                if run.slot == 0 and self._held % COMMIT_STEPS == 0:
                    self._publish()
                continue
            if isinstance(message, messages.Stop):
                return True
            if isinstance(message, messages.Published):
                self._base = message.base.manifest
            elif isinstance(message, (messages.Yield, messages.Leave, messages.Pause)):
                reason = {"Yield": "yield", "Leave": "leave", "Pause": "pause"}[type(message).__name__]
                self._say(messages.Idle(generation=run.generation, held=self._held, reason=cast("Any", reason)))
                return False

    def _publish(self) -> None:
        digest = hashlib.sha256(f"{self._base} {self._held}".encode()).hexdigest()
        self._say(messages.Publish(step=self._held, manifest=digest, state_digest=digest, parent=self._base))


def serve(address: str, first: int, count: int) -> None:
    """So many agents in this process, until its standard input ends; then say how many leases they have lost."""
    workers.RunnerProcess = PlayedRunner  # type: ignore[misc, assignment]
    logs.configure("error")
    lost: list[str] = []

    class Counting(LeaseKeeper):
        def __init__(self, kv: KeyValueStore, ttl: float, on_lost: Callable[[str], None]) -> None:
            super().__init__(kv, ttl, lambda reason: (lost.append(reason), on_lost(reason))[1])

    workers.LeaseKeeper = Counting  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        agents = []
        for number in range(first, first + count):
            options = workers.WorkerOptions(name=f"agent{number}", device="cpu", folder=Path(folder), lane="store")
            agent = workers.Worker(open_kv(address), MemoryStore(), options, cast("Any", None))
            agents.append(agent)
        threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        print(len(lost), flush=True)
        os._exit(0)  # their leases are given back by whoever ends etcd


def counters(endpoint: str) -> dict[str, float]:
    """Of etcd's own metrics, those that tell its load."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {"requests": 0.0}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("grpc_server_handled_total{") and 'grpc_type="unary"' in name:
            found["requests"] += float(value)
        elif name.startswith("etcd_mvcc_put_total"):
            found["puts"] = float(value)
        elif name.startswith("etcd_network_client_grpc_sent_bytes_total"):
            found["sent"] = float(value)
        elif name.startswith("etcd_disk_wal_fsync_duration_seconds_sum"):
            found["fsync"] = float(value)
    return found


def cpu(processes: list[psutil.Process]) -> float:
    """Seconds of processor time that they have used."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(what: str, seconds: float, cluster: EtcdCluster, parts: dict[str, list[psutil.Process]]) -> None:
    """Print a row."""
    before, used, began = (
        counters(cluster.endpoints[0]),
        {name: cpu(it) for name, it in parts.items()},
        time.monotonic(),
    )
    time.sleep(seconds)
    after, took = counters(cluster.endpoints[0]), time.monotonic() - began
    rate = {name: (after[name] - before[name]) / took for name in before}
    load = {name: (cpu(it) - used[name]) / took for name, it in parts.items()}
    print(
        f"| {what} | {rate['requests']:.0f} | {rate['puts']:.0f} | {rate['sent'] / 1e6:.1f} | {load['etcd']:.0%} "
        f"| {load['coordinator']:.0%} | {load['agents'] / AGENTS:.2%} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        address, first, count = arguments.serve
        serve(address, int(first), int(count))
        return
    global AGENTS  # noqa: PLW0603 - of the whole run
    AGENTS = arguments.agents
    logs.configure("warning")
    with tempfile.TemporaryDirectory(prefix="easyscale-agents-") as folder:
        etcd = EtcdCluster(Path(folder))
        started: list[subprocess.Popen[str]] = []
        try:
            run(arguments, etcd, Path(folder), started)
        finally:
            for process in started:
                process.kill()
                process.wait()
            etcd.close()


def run(arguments: argparse.Namespace, etcd: EtcdCluster, folder: Path, started: list[subprocess.Popen[str]]) -> None:
    """All of it, on a running etcd."""
    command = [
        sys.executable,
        "-m",
        "easyscale.pipeline.cli",
        "--log-level",
        "error",
        "coordinator",
        "--kv",
        etcd.address,
    ]
    coordinator = subprocess.Popen(command, text=True, cwd=folder)
    started.append(coordinator)
    share = arguments.agents // arguments.processes
    for number in range(arguments.processes):
        call = [sys.executable, __file__, "--serve", etcd.address, str(number * share), str(share)]
        started.append(subprocess.Popen(call, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    total = share * arguments.processes
    kv = open_kv(etcd.address)
    until("all are there", lambda: len(views.parse(kv.range(keys.WORKERS)).workers) == total)
    parts = {
        "etcd": [process for process in psutil.Process().children() if process.name() == "etcd"],
        "coordinator": [psutil.Process(coordinator.pid)],
        "agents": [psutil.Process(process.pid) for process in started[1:]],
    }
    print(f"{device_kind('cpu')}, {os.cpu_count()} cores; etcd with one member; {total} agents in "
          f"{arguments.processes} processes; {arguments.seconds:.0f} s each\n")  # fmt: skip
    print("| what | requests/s | puts/s | MB/s from etcd | etcd, of a core | coordinator | an agent |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    time.sleep(SETTLE_SECONDS)
    measure("nobody has a job", arguments.seconds, etcd, parts)
    jobs = total // MEMBERS
    for number in range(jobs):
        kv.txn((), made(f"job{number:03d}"))
    until("all run", lambda: running(kv) == total)
    time.sleep(SETTLE_SECONDS)
    measure(f"{jobs} jobs, {running(kv)} agents running", arguments.seconds, etcd, parts)
    lost = 0
    for process in started[1:]:
        out, _ = process.communicate("")
        lost += int(out)
    deaths = sum(sum((job.status.value.attempts if job.status else {}).values())
                 for job in views.parse(kv.range(keys.JOBS)).jobs.values())  # fmt: skip
    print(f"\nleases missed: {lost}; attempts that ended: {deaths}")
    kv.close()


def made(name: str) -> tuple[Put | Delete, ...]:
    """A job of two ESTs that never ends."""
    record = records.JobRecord(
        name=name, spec="0" * 64, code="1" * 64, steps=10**9, ests=MEMBERS, min_workers=MEMBERS, max_workers=MEMBERS
    )
    return Put(keys.spec(name), records.encode(record)), Put(keys.desired(name), b"running")


def running(kv: Any) -> int:
    """How many agents run a generation."""
    return sum(entry.value.state == "running" for entry in views.parse(kv.range(keys.WORKERS)).workers.values())


def until(what: str, condition: Callable[[], bool], patience: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {patience} s: {what}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
