"""Workers and a coordinator on this machine for as long as one command runs: what `easyscale run` stands on.

The workers are the ordinary worker command in children of the fork server, from where they have their runners too; the
coordinator is a thread. One that dies is replaced. When this process dies, however it dies, they die with it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

import structlog

from ..coordinator import keys
from ..coordinator.coordinator import Coordinator
from ..coordinator.kv import open_kv
from ..coordinator.views import parse
from ..errors import EasyScaleError
from .forkserver_messages import EXTRA_FD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from ..settings import Settings
    from .forkserver import Child, ForkServer

log = structlog.get_logger()

RESTART_SECONDS = 1.0
QUICK_SECONDS = 5.0
QUICK_DEATHS = 3
"""A worker that dies this often within `QUICK_SECONDS` of its start is given up."""


class LocalCluster:
    """Workers for one command.

    Args:
        settings: addresses and folder.
        devices: one worker per entry.
        job: the only job that they serve.
        fork_server: where they come from.
        lane, address: of the workers: see the command.
        grace: seconds that a worker gets to leave.
    """

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[str],
        job: str,
        fork_server: ForkServer,
        *,
        lane: str = "auto",
        address: str | None = None,
        grace: float = 25.0,
    ) -> None:
        self._options = ["--lane", lane, *(["--address", address] if address else [])]
        self._job, self._fork_server = job, fork_server
        self._settings, self._devices, self._grace = settings, list(devices), grace
        self._stop = threading.Event()
        self._workers: list[Child | None] = [None] * len(self._devices)
        self._started = [0.0] * len(self._devices)
        self._quick = [0] * len(self._devices)
        self._began = [0] * len(self._devices)
        self._kv = open_kv(settings.kv)
        self._failure: BaseException | None = None
        self._coordinator = threading.Thread(target=self._coordinate, name="easyscale-coordinator", daemon=True)

    def __enter__(self) -> LocalCluster:
        self._coordinator.start()
        for index in range(len(self._devices)):
            self._start(index)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not KeyboardInterrupt:
            self.leave()
        for worker in self._workers:
            if worker is not None:
                worker.close()
        self._stop.set()
        self._coordinator.join(5.0)
        self._kv.close()

    def _coordinate(self) -> None:
        try:
            Coordinator(open_kv(self._settings.kv)).run(self._stop)
        except BaseException as error:  # noqa: BLE001 - whatever it is, `watch_over` raises it
            self._failure = error

    def watch_over(self) -> None:
        """Replace workers that have died; raise what the coordinator died of. Call it now and then."""
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            if worker is None or worker.poll() is None:
                continue
            self._forget(worker.pid)
            lived = now - self._started[index]
            self._quick[index] = self._quick[index] + 1 if lived < QUICK_SECONDS else 0
            if self._quick[index] >= QUICK_DEATHS:
                self._workers[index] = None
                log.error("local.worker_given_up", device=self._devices[index], log=str(self._log(index)))
                if not any(self._workers):
                    raise EasyScaleError(
                        f"all workers died {QUICK_DEATHS} times at their start; the last lines of {self._log(index)}:\n"
                        + self._log(index).read_bytes()[self._began[index] :][-2000:].decode(errors="replace")
                    )
            elif lived >= RESTART_SECONDS:
                log.warning("local.worker_died", pid=worker.pid, status=worker.poll())
                self._start(index)

    def leave(self) -> None:
        """Tell all workers to leave, and wait for them as long as they may take."""
        for worker in self._workers:
            if worker is not None:
                worker.signal(signal.SIGTERM, group=False)
        deadline = time.monotonic() + self._grace + 10.0
        try:
            for worker in self._workers:
                if worker is not None:
                    with contextlib.suppress(TimeoutError):
                        worker.wait(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            log.warning("local.killed", hint="the second Ctrl-C ends workers at once; nothing committed is lost")

    def _log(self, index: int) -> Path:
        return self._settings.folder / "logs" / f"worker-{index}.log"

    def _start(self, index: int) -> None:
        path = self._log(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        arguments = [
            *("worker", "--name", f"local{index}", "--device", self._devices[index], "--grace", str(self._grace)),
            *("--kv", self._settings.kv, "--store", self._settings.store, "--folder", str(self._settings.folder)),
            *("--only", self._job, "--fork-server", str(EXTRA_FD), *self._options),
        ]
        before = self._workers[index]
        if before is not None:
            before.close()
        with path.open("ab") as output, self._fork_server.share() as connection:
            self._began[index] = output.tell()
            fds = output.fileno(), output.fileno(), connection.fileno()
            self._workers[index] = self._fork_server.child("easyscale.pipeline.cli", arguments, *fds)
        self._started[index] = time.monotonic()

    def _forget(self, pid: int | None) -> None:
        """A worker that died here is known to be dead: nobody needs to wait for its lease to run out."""
        with contextlib.suppress(EasyScaleError):
            for entry in parse(self._kv.range(keys.WORKERS)).workers.values():
                if entry.value.pid == pid and entry.kv.lease:
                    self._kv.revoke(entry.kv.lease)
