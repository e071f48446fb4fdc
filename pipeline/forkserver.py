"""Processes for inspections, workers and runners, forked by a server process that has torch imported already.

`ForkServer` is the owner's side: it starts the server process (`forkserver_process.py`) when there is none or none any
more, and asks it for children. A `Child` is ended when its owner says so, and when its owner dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from .forkserver_messages import MAX_PACKET, Share, Spawn, Started, decode_to_owner
from .script import ENCODING, python_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

END_SECONDS = 1.0
"""What a fork server gets to end by itself: one that is still importing does not listen."""

KILLED_SECONDS = 5.0
"""What a killed child gets to be gone: only a stopped fork server does not say so at once."""

LOST = -int(signal.SIGKILL)
"""Status of a child whose fork server died: it was killed with it."""


class Child:
    """One child. `wait` is for one thread; `signal` may be called from others.

    Args:
        connection: see `forkserver_messages`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid: int | None = None
        self._status: int | None = None
        self._early: list[tuple[signal.Signals, bool]] = []
        self._letting_go = threading.Lock()  # its number may be somebody else's afterwards

    @property
    def pid(self) -> int | None:
        """Process id, which is also that of its group; None until `wait` or `poll` has heard of it."""
        return self._pid

    def poll(self) -> int | None:
        """How it ended (see `wait`), or None if it has not."""
        with contextlib.suppress(TimeoutError):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and for that of its group: exit status, or the negative number of a signal.

        Raises:
            TimeoutError: it still runs after that many seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            self._connection.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
            try:
                data = self._connection.recv(MAX_PACKET)
            except BlockingIOError:  # how a timeout of 0 is told
                raise TimeoutError from None
            except ConnectionResetError:
                data = b""
            packet = decode_to_owner(data) if data else None
            if isinstance(packet, Started):
                with self._letting_go:
                    self._pid = packet.pid
                for number, group in self._early:
                    self.signal(number, group=group)
            else:
                self._status = packet.status if packet else self._lost()
        return self._status

    def signal(self, number: signal.Signals, *, group: bool) -> None:
        """Signal the process or its group. One that has not started yet hears of it then; by SIGKILL it never does."""
        with self._letting_go, contextlib.suppress(ProcessLookupError, OSError):
            if self._pid is not None and self._status is None:
                (os.killpg if group else os.kill)(self._pid, number)
            elif number == signal.SIGKILL:
                self._connection.shutdown(socket.SHUT_WR)
            else:
                self._early.append((number, group))

    def close(self) -> None:
        """Kill it if it still runs, and let go of its number."""
        if self._status is None:
            self.signal(signal.SIGKILL, group=True)
            if self._pid is not None:
                with contextlib.suppress(TimeoutError):
                    self.wait(KILLED_SECONDS)
        with self._letting_go:
            self._connection.close()

    def _lost(self) -> int:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)  # its own children do not die with the fork server
        return LOST


class ForkServer:
    """Where this process has its children from.

    Args:
        fd: connection to a fork server of somebody else's (`share`); None: start one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._connection = socket.socket(fileno=fd) if fd is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ForkServer:
        self.warm()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def warm(self) -> None:
        """Have it started, so that it is ready by the time it is needed. From a thread that stays: it dies with it."""
        if self._connection is None:
            self._start()

    def child(self, module: str, arguments: Sequence[str], *fds: int) -> Child:
        """Have a child run `main()` of one of our modules.

        Args:
            fds: its standard output and standard error, and one more descriptor if it needs one: see
                `forkserver_messages.EXTRA_FD`.
        """
        ours, theirs = _pair()
        with theirs:
            self._ask(Spawn(module=module, arguments=tuple(arguments)), [theirs.fileno(), *fds])
        return Child(ours)

    def share(self) -> socket.socket:
        """A connection for another process of ours, to be passed on: it can have children from here too."""
        ours, theirs = _pair()
        with theirs:
            self._ask(Share(), [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the fork server, if it is ours, and all its children."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:  # still importing
                self._process.kill()
                self._process.wait()
        self._process = None

    def _ask(self, request: Spawn | Share, fds: list[int]) -> None:
        data = msgspec.json.encode(request)
        if self._connection is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                socket.send_fds(self._connection, [data], fds)
                return
            self.close()
        self._start()
        assert self._connection is not None
        socket.send_fds(self._connection, [data], fds)

    def _start(self) -> None:
        self._connection, theirs = _pair()
        with theirs:
            self._process = subprocess.Popen(
                [*python_command("easyscale.pipeline.forkserver_process"), str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # our standard output is for results
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": ENCODING},
            )


def _pair() -> tuple[socket.socket, socket.socket]:
    """Packets keep their borders, and the end of one side is seen by the other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
