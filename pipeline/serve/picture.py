"""One picture of the key-value store for all who look at the same time: a hundred viewers cost as much as one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ...coordinator import keys, views
from .. import stages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...coordinator.kv import KeyValue, KeyValueStore
    from ...coordinator.views import View

FRESH_SECONDS = 0.5
"""How old a picture may be when it is shown."""


class Picture:
    """What the coordinator sees, read when somebody asks and the last reading is too old.

    Args:
        kv: where from. clock: monotonic, in seconds.
    """

    def __init__(self, kv: KeyValueStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._kv, self._clock = kv, clock
        self._lock = threading.Lock()
        self._view: View | None = None
        self._outlines: list[KeyValue] = []
        self._read_at = 0.0

    def look(self) -> View:
        """The picture, at most `FRESH_SECONDS` old. Not to be written to.

        Raises:
            UnavailableError: the store does not answer; nothing old is shown instead.
        """
        with self._lock:
            return self._look()

    def pipelines(self) -> list[stages.Picture]:
        """All pipelines with their stages, likewise."""
        with self._lock:
            jobs = self._look().jobs
            return stages.pictures(self._outlines, jobs)

    def _look(self) -> View:
        if self._view is None or self._clock() - self._read_at > FRESH_SECONDS:
            self._view = None  # if reading fails now, the next one tries again
            began = self._clock()
            found = self._kv.range(keys.PREFIX)
            self._view, self._read_at = views.parse(found), began
            self._outlines = [entry for entry in found if entry.key.startswith(keys.PIPELINES)]
        return self._view

    def forget(self) -> None:
        """Something was changed: the next one who looks must see it."""
        with self._lock:
            self._view = None
