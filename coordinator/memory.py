"""A key-value store in this process's memory, for tests and simulation.

It keeps etcd's rules (one revision per transaction that changes something, leases that take their keys with them) so
that logic proven on it holds on etcd. Time comes from a clock that is handed in; lying is left to whoever wraps it.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ..errors import LeaseGoneError
from .kv import Delete, KeyValue, Put, TxnResult, check_operations, covers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .kv import Compare


class _Lease(NamedTuple):
    ttl: float
    deadline: float


class MemoryKV:
    """Keys in a dict; a registry by name stands in for an address that several openers share.

    Args:
        name: only for the address.
        clock: seconds that never go back; leases end by it.
    """

    _named: ClassVar[dict[str, MemoryKV]] = {}

    def __init__(self, name: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.address = f"memory://{name}"
        self._clock = clock
        self._keys: dict[str, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = itertools.count(1)
        self._revision = 1
        self._watches: set[MemoryWatch] = set()
        self._condition = threading.Condition()

    @classmethod
    def named(cls, name: str) -> MemoryKV:
        """The store of that name, made on first use."""
        return cls._named.setdefault(name, cls(name))

    def get(self, key: str) -> KeyValue | None:
        """See `KeyValueStore.get`."""
        with self._settled():
            return self._keys.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """See `KeyValueStore.range`."""
        with self._settled():
            return [self._keys[key] for key in sorted(self._keys) if key.startswith(prefix)]

    def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """See `KeyValueStore.txn`."""
        check_operations(operations)
        with self._settled():
            if not all(self._holds(compare) for compare in compares):
                return TxnResult(False, self._revision)
            for operation in operations:
                if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                    raise LeaseGoneError(f"{self.address}: lease {operation.lease} is gone")
            self._apply(operations)
            return TxnResult(True, self._revision)

    def grant(self, ttl: float) -> int:
        """See `KeyValueStore.grant`."""
        with self._settled():
            lease = next(self._lease_ids)
            self._leases[lease] = _Lease(ttl, self._clock() + ttl)
            self._condition.notify_all()  # a waiting watch may have to wake sooner now
            return lease

    def keep_alive(self, lease: int) -> bool:
        """See `KeyValueStore.keep_alive`."""
        with self._settled():
            if lease not in self._leases:
                return False
            ttl = self._leases[lease].ttl
            self._leases[lease] = _Lease(ttl, self._clock() + ttl)
            return True

    def revoke(self, lease: int) -> None:
        """See `KeyValueStore.revoke`."""
        with self._settled():
            self._end(lease)

    def watch(self, *prefixes: str) -> MemoryWatch:
        """See `KeyValueStore.watch`."""
        watch = MemoryWatch(self, prefixes)
        with self._condition:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """Does nothing: others may have opened the same name."""

    @contextmanager
    def _settled(self) -> Iterator[None]:
        with self._condition:
            self._expire()
            yield

    def _expire(self) -> None:
        now = self._clock()
        lapsed = [(lease.deadline, number) for number, lease in self._leases.items() if lease.deadline <= now]
        for _, number in sorted(lapsed):
            self._end(number)

    def _end(self, lease: int) -> None:
        if self._leases.pop(lease, None):
            self._apply([Delete(kv.key) for kv in self._keys.values() if kv.lease == lease])

    def _holds(self, compare: Compare) -> bool:
        kv = self._keys.get(compare.key)
        if kv is None:
            return compare.revision == 0
        return compare.revision == (kv.create_revision if compare.field == "create" else kv.mod_revision)

    def _apply(self, operations: Sequence[Put | Delete]) -> None:
        revision = self._revision + 1
        changed: list[str] = []
        for operation in operations:
            if isinstance(operation, Put):
                old = self._keys.get(operation.key)
                created = old.create_revision if old else revision
                self._keys[operation.key] = KeyValue(
                    operation.key, bytes(operation.value), created, revision, operation.lease
                )
                changed.append(operation.key)
            else:
                gone = [key for key in self._keys if covers(operation, key)]
                for key in gone:
                    del self._keys[key]
                changed += gone
        if changed:
            self._revision = revision
            for watch in self._watches:
                watch.pending |= any(key.startswith(watch.prefixes) for key in changed)
            self._condition.notify_all()


class MemoryWatch:
    """See `Watch`. All state is guarded by the store's condition."""

    def __init__(self, store: MemoryKV, prefixes: tuple[str, ...]) -> None:
        self.prefixes = prefixes
        self.pending = False
        self._store = store

    def wait(self, timeout: float) -> bool:
        """See `Watch.wait`. The timeout is real time, whatever clock the store has."""
        store = self._store
        end = time.monotonic() + timeout
        with store._condition:  # noqa: SLF001 - the watch is a part of its store
            while True:
                store._expire()  # noqa: SLF001
                left = end - time.monotonic()
                if self.pending or left <= 0 or self not in store._watches:  # noqa: SLF001
                    woken, self.pending = self.pending, False
                    return woken
                store._condition.wait(min(left, self._until_a_lease_ends()))  # noqa: SLF001

    def close(self) -> None:
        """See `Watch.close`."""
        with self._store._condition:  # noqa: SLF001
            self._store._watches.discard(self)  # noqa: SLF001
            self._store._condition.notify_all()  # noqa: SLF001

    def _until_a_lease_ends(self) -> float:
        deadlines = [lease.deadline for lease in self._store._leases.values()]  # noqa: SLF001
        return min(deadlines) - self._store._clock() if deadlines else float("inf")  # noqa: SLF001
