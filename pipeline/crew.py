"""Workers of one command on this machine: a process for each device, replaced when it dies.

They are the ordinary worker command in children of the fork server, from where they have their runners too. When this
process dies, however it dies, they die with it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import structlog

from ..coordinator import keys
from ..coordinator.views import parse
from ..errors import EasyScaleError
from .forkserver_messages import EXTRA_FD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from ..coordinator.kv import KeyValueStore
    from .forkserver import Child, ForkServer

log = structlog.get_logger()

RESTART_SECONDS = 1.0
QUICK_SECONDS = 5.0
QUICK_DEATHS = 3
"""A worker that dies this often within `QUICK_SECONDS` of its start is given up."""


class Crew:
    """The workers.

    Args:
        kv: where they are registered.
        fork_server: where they come from.
        workers: the options of each.
        logs: folder in which worker i has `worker-<i>.log`.
        grace: seconds that a worker gets to leave.
        replace_left: whether one that has left in order (by a notice, or a signal of its own) is replaced, too.
    """

    def __init__(
        self,
        kv: KeyValueStore,
        fork_server: ForkServer,
        workers: Sequence[Sequence[str]],
        logs: Path,
        *,
        grace: float = 25.0,
        replace_left: bool = True,
    ) -> None:
        self._kv, self._fork_server, self._logs, self._grace = kv, fork_server, logs, grace
        self._replace_left = replace_left
        self._options = [list(options) for options in workers]
        self._workers: list[Child | None] = [None] * len(workers)
        self._started = [0.0] * len(workers)
        self._quick = [0] * len(workers)
        self._began = [0] * len(workers)

    def __enter__(self) -> Crew:
        for index in range(len(self._workers)):
            self._start(index)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not KeyboardInterrupt:
            self.leave()
        for worker in self._workers:
            if worker is not None:
                worker.close()

    @property
    def running(self) -> bool:
        """Whether one of them still runs."""
        return any(worker is not None and worker.poll() is None for worker in self._workers)

    def watch_over(self) -> None:
        """Replace workers that have died. Call it now and then.

        Raises:
            EasyScaleError: all have died again and again.
        """
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            if worker is None or worker.poll() is None:
                continue
            if worker.poll() == 0 and not self._replace_left:
                worker.close()
                self._workers[index] = None
                continue
            self._forget(worker.pid)
            lived = now - self._started[index]
            self._quick[index] = self._quick[index] + 1 if lived < QUICK_SECONDS else 0
            if self._quick[index] >= QUICK_DEATHS:
                self._workers[index] = None
                log.error("crew.worker_given_up", worker=index, log=str(self._log(index)))
                if all(other is None for other in self._workers):
                    raise EasyScaleError(
                        f"all workers died {QUICK_DEATHS} times at their start; the last lines of {self._log(index)}:\n"
                        + self._log(index).read_bytes()[self._began[index] :][-2000:].decode(errors="replace")
                    )
            elif lived >= RESTART_SECONDS:
                log.warning("crew.worker_died", pid=worker.pid, status=worker.poll())
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
            log.warning("crew.killed", hint="the second Ctrl-C ends workers at once; nothing committed is lost")

    def _log(self, index: int) -> Path:
        return self._logs / f"worker-{index}.log"

    def _start(self, index: int) -> None:
        path = self._log(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["worker", *self._options[index], "--grace", str(self._grace), "--fork-server", str(EXTRA_FD)]
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
