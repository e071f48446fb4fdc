"""A replay process as the command sees it: asked one thing at a time, heard while it computes, ended when closed."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, TypeVar

from ..errors import EasyScaleError, UserError
from . import replay_messages as messages
from .forkserver_messages import EXTRA_FD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .forkserver import ForkServer

A = TypeVar("A", messages.Begun, messages.Recomputed, messages.Followed, messages.Recorded, messages.Named)

STDERR = 2

_CAUSES = {"raised": "the job's code raised", "memory": "out of memory", "refused": ""}


class Replayer:
    """One process with one replica.

    Args:
        fork_server: where it comes from.
        begin: what it prepares.
        stepped: called with the number of steps behind it, again and again.
    """

    def __init__(self, fork_server: ForkServer, begin: messages.Begin, stepped: Callable[[int], None]) -> None:
        self._job, self._stepped = begin.job, stepped
        ours, theirs = socket.socketpair()
        self._socket, self._lines = ours, ours.makefile("rb")
        with theirs:
            # What the script prints goes to standard error: standard output is for the result.
            arguments = [str(EXTRA_FD), begin.folder]
            self._child = fork_server.child("easyscale.pipeline.replay", arguments, STDERR, STDERR, theirs.fileno())
        try:
            self.begun = self._ask(begin, messages.Begun)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._child.close()
        self._lines.close()
        self._socket.close()

    def recompute(self, order: messages.Recompute) -> messages.Recomputed:
        """Compute a span anew. All of these raise `UserError` for what has to be mended here first."""
        return self._ask(order, messages.Recomputed)

    def follow(self, order: messages.Follow) -> messages.Followed:
        """Compute some steps and say what the states were."""
        return self._ask(order, messages.Followed)

    def record(self, order: messages.Record) -> messages.Recorded:
        """Trace steps."""
        return self._ask(order, messages.Recorded)

    def named(self) -> messages.Named:
        """Names of the model's `state_dict()`."""
        return self._ask(messages.Name(), messages.Named)

    def _ask(self, order: messages.Order, wanted: type[A]) -> A:
        try:
            self._socket.sendall(messages.encode(order))
            for line in self._lines:
                answer = messages.decode_answer(line)
                if isinstance(answer, messages.Stepped):
                    self._stepped(answer.step)
                elif isinstance(answer, messages.Failed):
                    raise self._failed(answer)
                else:
                    assert isinstance(answer, wanted), answer
                    return answer
        except (BrokenPipeError, ConnectionResetError):
            pass
        status = self._child.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        raise EasyScaleError(
            f"job {self._job!r}: the process that computed it anew {how}; see what it wrote above\n"
            "  SIGKILL is most likely a lack of memory; the job's code must not end its process (os._exit)"
        )

    def _failed(self, answer: messages.Failed) -> EasyScaleError:
        if answer.cause in ("died", "nonfinite"):  # no mistake of who asked for it
            return EasyScaleError(f"job {self._job!r} cannot be computed anew here: {answer.message}")
        why = ": ".join(filter(None, [_CAUSES.get(answer.cause, answer.cause), answer.message]))
        text = f"job {self._job!r} cannot be computed anew here: {why}"
        return UserError("\n".join(filter(None, [text, answer.traceback])))
