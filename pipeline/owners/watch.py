"""Looks again and again at whose the device is, in a thread, and says so when it changes."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING

from .rules import Patience, first

if TYPE_CHECKING:
    from collections.abc import Callable

    from .notices import Notice
    from .rules import Hours

LOOK_SECONDS, IDLE_LOOKS = 0.25, 8
"""Between looks: two of them, and the worker is told; its step then ends, and its runner goes. Without a runner only
one of so many is made, which is cheaper."""

NOTICE_SECONDS = 2.0
"""Between looks for a notice: clouds give at least 30 seconds, and a command may be costly."""

FIRST_SECONDS = 1.0
"""So long a new worker looks before it serves."""

NOT_YET = "it has not looked yet whether its device is idle"


class OwnerWatch:
    """The looks of one worker.

    Args:
        device: what of its owner's is on the device, "" if nothing; None: it is not looked at.
        hours: when it may be used; None: always. notice: of the machine's end; None: there is none.
        quiet: seconds; see `Patience`. runs: whether our runner has the device.
        on_away: is told why the worker is to be away, or "" when it is not, whenever that changes.
        on_notice: is told once why the worker has to leave.
    """

    def __init__(
        self,
        *,
        device: Callable[[], str] | None,
        hours: Hours | None,
        notice: Notice | None,
        quiet: float,
        runs: Callable[[], bool],
        on_away: Callable[[str], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._device, self._hours, self._notice = device, hours, notice
        self._runs = runs
        self._on_away, self._on_notice = on_away, on_notice
        self._patience = Patience(quiet=quiet)
        if device is not None:
            self._patience.expect(NOT_YET, time.monotonic(), FIRST_SECONDS)
        self._said = ""
        self._asked = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="easyscale-owner", daemon=True)

    def start(self) -> None:
        """Begin; the first word is said before this returns."""
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        passed = 0
        while not self._stop.wait(LOOK_SECONDS):
            passed += 1
            if passed >= IDLE_LOOKS or self._runs():
                passed = 0
                self._look()

    def _look(self) -> None:
        now = time.monotonic()
        seen = self._patience.look(self._device(), now) if self._device is not None else ""
        why = first([self._hours.why_not(datetime.now().astimezone()) if self._hours is not None else "", seen])
        if why != self._said and not (why and self._said and seen):  # figures that change are not told each time
            self._on_away(why)
            self._said = why
        if self._notice is not None and now - self._asked >= NOTICE_SECONDS:
            self._asked = now
            if ends := self._notice.look():
                self._notice = None
                self._on_notice(ends)
