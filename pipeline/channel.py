"""A runner's end of the socket to its agent.

Whole lines go out, from whichever thread; messages come in by a queue. When the agent ends, so does this process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from . import messages
from .parents import die

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSED = (
    "the connection to the agent was closed from inside: the job's code must not close file descriptors that it has "
    "not opened (os.close, os.closerange)\n"
)


class Channel:
    """The socket to the agent: lines out, a queue of messages in. Its end is this process's end."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._identity = self._looks()
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self.inbox: queue.SimpleQueue[messages.ToRunner] = queue.SimpleQueue()
        self.on_answer: Any = None
        self.on_message: Callable[[messages.ToRunner], None] = lambda _: None
        """Told of what has just been put into the inbox, by the thread that reads."""
        threading.Thread(target=self._read, name="easyscale-agent", daemon=True).start()

    def say(self, message: messages.FromRunner) -> None:
        """Send to the agent."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._require_ours()
            self._socket.sendall(messages.encode(message))

    def _looks(self) -> tuple[int, int] | None:
        """What has the descriptor's number: if it was closed, that may be another file or connection by now."""
        try:
            found = os.fstat(self._socket.fileno())
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _require_ours(self) -> None:
        """End the process if nobody can be told anything any more."""
        if self._looks() == self._identity:
            return
        with self._ending:
            sys.stderr.write(CLOSED)
            sys.stderr.flush()
            os._exit(1)

    def _read(self) -> None:
        try:
            self._hear()
        finally:
            self._require_ours()
        die()

    def _hear(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                message = messages.decode_to_runner(line)
                # Answers go straight to the commit thread: a long step must not hold up a publish.
                if isinstance(message, messages.Published | messages.Refused) and self.on_answer is not None:
                    self.on_answer(message)
                else:
                    self.inbox.put(message)
                    self.on_message(message)
