"""The coordinator process: leads by lease, feeds pictures of the store to the planner, applies what it decides.

Any number may run; one leads. Every transaction is conditional on still being the leader, so two that both believe
they lead cannot undo each other's work. It may die at any line: running jobs do not need it until membership changes.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

import structlog

from ..alive import AliveFile
from ..errors import UnavailableError
from . import keys, views
from .kv import Compare, Put, absent
from .planner import Planner
from .transactions import Txn, apply

if TYPE_CHECKING:
    import threading

    from .kv import KeyValueStore

LEASE_SECONDS = 6.0
POLL_SECONDS = 0.5

log = structlog.get_logger()


class Coordinator:
    """One candidate for leadership.

    Args:
        kv: the store.
        planner: decides; `Planner()` unless a test brings its own.
        ttl: seconds of the leader's lease; a successor takes over after at most about that long.
    """

    def __init__(self, kv: KeyValueStore, planner: Planner | None = None, ttl: float = LEASE_SECONDS) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._kv = kv
        self._planner = planner or Planner()
        self._ttl = ttl
        self._lease = 0
        self._renewed = float("-inf")
        self._leading: int | None = None

    def run(self, stop: threading.Event, alive: AliveFile | None = None) -> None:
        """Coordinate until told to stop; then hand over at once. `alive` is touched with every round."""
        alive = alive or AliveFile()
        watch = self._kv.watch(keys.PREFIX)
        try:
            while not stop.is_set():
                alive.beat(time.monotonic())
                try:
                    self.tick(time.monotonic())
                except UnavailableError as error:
                    log.warning("coordinator.store_unavailable", error=str(error))
                    stop.wait(POLL_SECONDS)
                watch.wait(POLL_SECONDS)
        finally:
            watch.close()
            self.resign()

    def tick(self, now: float) -> bool:
        """One round: stay leader, look, decide, write. True when this candidate leads.

        Raises:
            UnavailableError: the store did not answer; nothing is assumed.
        """
        self._renew(now)
        view = views.parse(self._kv.range(keys.PREFIX))
        for damaged in view.damaged:
            log.error("coordinator.unreadable_key", what=damaged)
        if not self._lead(view):
            return False
        guard = Compare(keys.LEADER, "create", self._leading or 0)
        for txn in self._planner.decide(view, now):
            outcome = apply(self._kv, Txn(txn.tag, (*txn.compares, guard), txn.operations))
            log.debug("coordinator.decision", tag=txn.tag, outcome=outcome)
        return True

    def resign(self) -> None:
        """Give up the lease, so that a successor need not wait for it to run out."""
        if self._lease:
            try:
                self._kv.revoke(self._lease)
            except UnavailableError as error:
                log.warning("coordinator.resign_failed", error=str(error))
        self._lease, self._leading = 0, None

    def _renew(self, now: float) -> None:
        if self._lease and now - self._renewed < self._ttl / 3:
            return
        if not self._lease or not self._kv.keep_alive(self._lease):
            self._leading = None
            self._lease = self._kv.grant(self._ttl)
        self._renewed = now

    def _lead(self, view: views.View) -> bool:
        leader = view.leader
        if leader is not None and leader.value == self.id.encode() and leader.lease == self._lease:
            self._leading = leader.create_revision
            return True
        self._leading = None
        if leader is None:
            txn = Txn("lead", (absent(keys.LEADER),), (Put(keys.LEADER, self.id.encode(), self._lease),))
            outcome = apply(self._kv, txn)
            if outcome == "gone":
                self._lease = 0
            if outcome == "yes":
                log.info("coordinator.leads", id=self.id)
                return self._lead(views.parse(self._kv.range(keys.LEADER)))
        return False
