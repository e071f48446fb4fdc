"""The runner as a child process: forked from the fork server into a session of its own, heard through a socket pair,
its output in a log file, ended as a whole group."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from . import messages
from .forkserver_messages import EXTRA_FD
from .runner import Environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .forkserver import ForkServer

TAIL_BYTES = 2000
"""How much of the end of the log goes with the report of a death."""


class RunnerProcess:
    """One running child.

    Args:
        fork_server: where it comes from.
        store, device, folder, cache, host, slowdown: see `runner.Environment`.
        log: file that its output is appended to.
        on_message, on_exit: called from threads of this object.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        *,
        store: str,
        device: str,
        folder: Path,
        cache: bool,
        host: str,
        slowdown: float,
        log: Path,
        on_message: Callable[[messages.FromRunner], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self._log = log
        self._on_message, self._on_exit = on_message, on_exit
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._sending = threading.Lock()
        self._gone = False
        environment = Environment(
            fd=EXTRA_FD, store=store, folder=str(folder), device=device, cache=cache, host=host, slowdown=slowdown
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, theirs:
            self._began = output.tell()
            self._child = fork_server.child(
                "easyscale.pipeline.runner",
                [msgspec.json.encode(environment).decode()],
                *(output.fileno(), output.fileno(), theirs.fileno()),
            )
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name="easyscale-runner", daemon=True)
        self._reader.start()
        threading.Thread(target=self._await_exit, name="easyscale-runner-exit", daemon=True).start()

    def send(self, message: messages.ToRunner) -> None:
        """Tell it something; one that is gone does not hear it, and its exit is reported anyway."""
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not self._gone:
                self._socket.sendall(messages.encode(message))

    def signal(self, kind: Literal["stacks", "term", "kill"]) -> None:
        """Signal the process (stacks) or its group."""
        if kind == "stacks":
            self._child.signal(signal.SIGUSR1, group=False)
        else:
            self._child.signal(signal.SIGTERM if kind == "term" else signal.SIGKILL, group=True)

    def wait(self, timeout: float) -> None:
        """Wait for its end, by force after `timeout` seconds."""
        if not self._ended.wait(timeout):
            self.signal("kill")
            self._ended.wait()

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines, contextlib.suppress(ConnectionResetError):
            for line in lines:
                self._on_message(messages.decode_from_runner(line))

    def _await_exit(self) -> None:
        status = self._child.wait()
        self._reader.join()  # its last words come before its death
        with self._sending:  # not under a send: the descriptor could be somebody else's by then
            self._gone = True
            self._socket.close()
        self._child.close()
        self._ended.set()
        self._on_exit(self._describe(status))

    def _describe(self, status: int) -> str:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        if status == 0:  # by itself it does that only when it is told to
            how += ": the job's code must not end its process (os._exit)"
        with self._log.open("rb") as log:
            log.seek(max(self._began, self._log.stat().st_size - TAIL_BYTES))
            tail = log.read().decode(errors="replace").strip()
        return f"the runner {how}" + (f"; last output:\n{tail}" if tail and status else "")
