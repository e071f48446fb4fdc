"""A machine of a cluster under test: workers that have their runners from one fork server, as those of `run` have.

So a worker joins in a fraction of a second, and the machine can be lost as a whole. Everything about them is real: the
ordinary worker command, its agent and its runner, each a process that can be killed, stopped and woken by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import environment
from easyscale.pipeline.forkserver import ForkServer
from easyscale.pipeline.forkserver_messages import EXTRA_FD

if TYPE_CHECKING:
    from cluster import Cluster
    from easyscale.pipeline.forkserver import Child


class Worker:
    """One agent, and through it its runner.

    Args:
        child: its process. folder: its local folder.
    """

    def __init__(self, name: str, child: Child, folder: Path, log: Path) -> None:
        self.name, self.folder, self.log = name, folder, log
        self._child = child
        self.leaving = False
        self.stopped: list[int] = []

    @property
    def running(self) -> bool:
        """Whether the agent lives."""
        return self._child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        self.leaving |= number == signal.SIGTERM
        self._child.signal(number, group=False)

    @property
    def pid(self) -> int | None:
        """The agent's process id, once it has started."""
        self._child.poll()
        return self._child.pid

    @property
    def runner(self) -> int | None:
        """The process id of its newest runner, if it still lives: it says so at the top of its log."""
        logs = sorted(self.folder.glob("logs/*/*.log"), key=lambda path: path.stat().st_mtime)
        for line in reversed(logs[-1].read_text(errors="replace").splitlines() if logs else []):
            if '"runner.started"' in line:
                with contextlib.suppress(ValueError, KeyError):
                    pid = int(json.loads(line)["pid"])
                    return pid if is_runner(pid) else None
        return None

    def kill_runner(self) -> bool:
        """SIGKILL to its runner; False if it has none."""
        runner = self.runner
        if runner:
            with contextlib.suppress(ProcessLookupError):
                os.kill(runner, signal.SIGKILL)
        return runner is not None

    def stop(self, pids: list[int]) -> None:
        """SIGSTOP to these of its processes."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.stopped += pids

    def wake(self) -> None:
        """SIGCONT to all that were stopped."""
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped = []

    def close(self) -> None:
        """Kill it if it still runs."""
        self.wake()
        self._child.close()


class Machine:
    """A fork server and the workers from it.

    Args:
        cluster: whose environment they get. env: more of it.
    """

    def __init__(self, cluster: Cluster, env: dict[str, str]) -> None:
        self._cluster = cluster
        self._env = cluster.env | env
        self._fork_server = self._start()
        self.workers: list[Worker] = []

    def _start(self) -> ForkServer:
        fork_server = ForkServer()
        with environment(self._env, exactly=True):
            fork_server.warm()
        return fork_server

    def join(self, name: str, *options: str) -> Worker:
        """Start a worker; its id begins with its name."""
        cluster = self._cluster
        folder = cluster.folder / "workers" / name
        folder.mkdir(parents=True)
        arguments = [
            *("worker", "--name", name, "--kv", cluster.kv_address, "--store", cluster.store_address),
            *("--folder", str(folder), *options, "--fork-server", str(EXTRA_FD)),
        ]
        log = folder / "agent.log"
        with log.open("ab") as output, self._fork_server.share() as connection:
            fds = output.fileno(), output.fileno(), connection.fileno()
            child = self._fork_server.child("easyscale.pipeline.cli", arguments, *fds)
        worker = Worker(name, child, folder, log)
        self.workers.append(worker)
        return worker

    def lose(self) -> None:
        """SIGKILL to the fork server, which takes all with it; another is started at once, without workers."""
        process = self._fork_server._process
        assert process is not None
        process.kill()
        self.close()
        self._fork_server = self._start()

    def close(self) -> None:
        """Kill everything."""
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        self._fork_server.close()


def is_runner(pid: int) -> bool:
    """Whether this process lives, and is a runner."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "es:runner"
    except OSError:
        return False
