"""A lease as its holder sees it, and the thread that keeps it alive.

The holder's deadline is counted on the monotonic clock from *before* the renewal was sent, so it is never later than
the store's. Nothing but that deadline, or the store's word that the lease is gone, ends a lease: errors do not. What to
do about a loss is left to the owner.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from ..errors import EasyScaleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kv import KeyValueStore

_log = structlog.get_logger()

RENEW_AT = 1 / 3
"""Part of the ttl after which a lease is renewed: two more attempts fit before the deadline."""

RETRY_AFTER = 1 / 20
"""Part of the ttl to wait after a renewal that failed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What is known of a lease. All times are seconds on the holder's monotonic clock.

    Args:
        id: as the store numbers it.
        ttl: seconds it lives after a renewal.
        sent: when the last request that the store granted was about to be sent.
    """

    id: int
    ttl: float
    sent: float

    @property
    def deadline(self) -> float:
        """From here on the store may have ended the lease."""
        return self.sent + self.ttl

    def expired(self, now: float) -> bool:
        """Whether the holder must take the lease for lost."""
        return now >= self.deadline

    def renew_due(self, now: float) -> bool:
        """Whether it is time to renew."""
        return now >= self.sent + RENEW_AT * self.ttl

    def renewed(self, sent: float) -> Lease:
        """After the store has granted a renewal that was sent at `sent`."""
        return replace(self, sent=max(self.sent, sent))


class LeaseKeeper:
    """Keeps one lease at a time alive. `start` runs it in a thread; a simulator calls `step` instead.

    Args:
        store: where the lease lives.
        ttl: seconds.
        on_lost: called once per lost lease, with the reason, from the keeper's thread. Must not raise. It may call
            `grant` for a new lease.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        ttl: float,
        on_lost: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._on_lost = on_lost
        self._clock = clock
        self._lease: Lease | None = None
        self._retry_at = float("-inf")
        self._trouble = ""
        self._closed = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="easyscale-lease", daemon=True)

    @property
    def lease(self) -> Lease | None:
        """The lease that is held; None before the first grant and after a loss."""
        return self._lease

    def grant(self) -> Lease:
        """Take a new lease, which is kept alive from now on. One that is still held is no longer renewed.

        Raises:
            UnavailableError: the store did not answer.
        """
        sent = self._clock()
        lease = Lease(self._store.grant(self._ttl), self._ttl, sent)
        with self._condition:
            self._lease, self._trouble, self._retry_at = lease, "", float("-inf")
            self._condition.notify_all()
        _log.debug("lease_granted", lease=lease.id, ttl=lease.ttl)
        return lease

    def start(self) -> None:
        """Keep the lease alive from a thread of its own."""
        self._thread.start()

    def step(self) -> float | None:
        """Do what is due now.

        Returns:
            Seconds until something will be due; None when there is no lease.
        """
        lease, now = self._lease, self._clock()
        if lease is None:
            return None
        if lease.expired(now):
            self._lose(lease, f"not renewed for {now - lease.sent:.1f} s" + self._trouble)
            return 0.0
        if lease.renew_due(now) and now >= self._retry_at:
            self._renew(lease, now)
            return 0.0
        renewal = max(lease.sent + RENEW_AT * lease.ttl, self._retry_at)
        return max(0.0, min(renewal, lease.deadline) - now)

    def close(self) -> None:
        """Stop the thread and give the lease back, so that its keys go at once. Never raises."""
        with self._condition:
            self._closed = True
            lease, self._lease = self._lease, None
            self._condition.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        if lease is not None:
            try:
                self._store.revoke(lease.id)
            except EasyScaleError as error:
                _log.info("lease_not_revoked", lease=lease.id, ttl=lease.ttl, error=str(error))

    def _run(self) -> None:
        while not self._closed:
            seen = self._lease
            pause = self.step()
            with self._condition:
                # A grant or close since `step` looked has notified nobody: do not sleep over it.
                if not self._closed and self._lease is seen:
                    self._condition.wait(pause)

    def _renew(self, lease: Lease, sent: float) -> None:
        try:
            alive = self._store.keep_alive(lease.id)
        except Exception as error:  # noqa: BLE001 - whatever it is, only the deadline may end a lease
            self._trouble = f"; the last error: {error}"
            self._retry_at = self._clock() + RETRY_AFTER * lease.ttl
            _log.warning(
                "lease_renewal_failed", lease=lease.id, left=round(lease.deadline - self._clock(), 3), error=str(error)
            )
            return
        if not alive:
            self._lose(lease, "the store has ended it")
            return
        if lease.expired(self._clock()):
            return  # the answer came too late: what has been seen as expired stays so, and `step` says it
        with self._condition:
            if self._lease is lease:
                self._lease, self._trouble = lease.renewed(sent), ""

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._condition:
            if self._lease is not lease:
                return  # given back or replaced meanwhile
            self._lease = None
        _log.warning("lease_lost", lease=lease.id, reason=reason)
        self._on_lost(f"lease {lease.id} of {lease.ttl:g} s lost: {reason}")
