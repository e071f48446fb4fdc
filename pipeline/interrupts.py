"""Ctrl-C and SIGTERM for a command that runs in the foreground: what is under way ends in order, never in a traceback.

A signal raises `KeyboardInterrupt`, so that `with` blocks clean up; within `gracefully` only the second one does, and
the first is noted. One more while cleaning up ends the process at once: its children die with it by themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

STDERR = 2

EXIT_CODE = 130
"""What shells show for a program that Ctrl-C ended."""


class Interrupts:
    """Signal handlers for the length of a `with` block, which must be in the main thread."""

    def __init__(self) -> None:
        self.stopping = False
        self._graceful = ""
        self._raised = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def gracefully(self, what: str) -> Iterator[None]:
        """In here the first signal only sets `stopping`.

        Args:
            what: what is said then.
        """
        self._graceful = what
        try:
            yield
        finally:
            self._graceful = ""

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._raised:
            os._exit(EXIT_CODE)
        if self._graceful and not self.stopping:
            self.stopping = True
            # not by a buffered writer, which may be in the middle of a line
            os.write(STDERR, f"\n{signal.Signals(number).name}: {self._graceful}\n".encode())
            return
        self._raised = True
        raise KeyboardInterrupt
