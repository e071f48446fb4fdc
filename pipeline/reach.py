"""Which of a job's other workers can be connected to: tried in the background, so that a plan need not find out.

A worker that cannot be reached is no fault: the plan then lets exchanges go through the object store.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import structlog

from ..coordinator import keys, views
from ..errors import EasyScaleError
from .addresses import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..coordinator.kv import KeyValueStore

log = structlog.get_logger()

LOOK_SECONDS = 2.0
"""Between looks for addresses that are new."""

AGAIN_SECONDS = 30.0
"""Until one that could not be reached is tried again."""

CONNECT_SECONDS = 1.0


class Reach:
    """Tries the addresses of those who serve the same job.

    Args:
        kv: where workers describe themselves. me: my id.
        tell: gets the ids of those who cannot be reached, whenever they are others; from another thread.
    """

    def __init__(self, kv: KeyValueStore, me: str, tell: Callable[[tuple[str, ...]], None]) -> None:
        self._kv, self._me, self._tell = kv, me, tell
        self._job: str | None = None
        self._wake = threading.Event()
        self._over = False
        self._tried: dict[tuple[str, str], bool] = {}
        self._told: tuple[str, ...] = ()
        self._since_again = 0.0
        self._thread: threading.Thread | None = None

    def serve(self, job: str | None) -> None:
        """This worker can be met for a job now; None: for none."""
        if job != self._job:
            self._job = job
            self._wake.set()
        if job is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="easyscale-reach", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop trying."""
        self._over = True
        self._wake.set()

    def _work(self) -> None:
        while not self._over:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            try:
                self.look()
            except EasyScaleError as error:
                log.debug("reach.unknown", error=str(error))

    def look(self) -> None:
        """One round: try what is new, and now and then what failed; tell if something has changed."""
        job = self._job
        there: dict[tuple[str, str], bool] = {}
        if job is not None:
            self._since_again += LOOK_SECONDS
            again = self._since_again >= AGAIN_SECONDS
            self._since_again = 0.0 if again else self._since_again
            for entry in views.parse(self._kv.range(keys.WORKERS)).workers.values():
                record = entry.value
                if record.job == job and record.address and record.id != self._me:
                    key = record.id, record.address
                    known = self._tried.get(key)
                    there[key] = _reached(record.address) if known is None or (again and not known) else known
        self._tried = there
        unreached = tuple(sorted(worker for (worker, _), reached in there.items() if not reached))
        if unreached != self._told:
            log.info("reach.changed", job=job, unreached=unreached)
            self._told = unreached
            self._tell(unreached)


def _reached(address: str) -> bool:
    try:
        socket.create_connection(host_and_port(address), CONNECT_SECONDS).close()
    except (OSError, ValueError):  # ValueError: no address at all, or a name that no DNS would take
        return False
    return True
