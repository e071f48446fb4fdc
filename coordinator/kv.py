"""The key-value seam: what we ask of etcd, of SQLite on one machine, or of memory in tests.

It is etcd's model cut to what we need: revisions, transactions that compare revisions, leases, and watches that are
only hints. Every decision is one transaction; whoever gets no answer finds out by reading.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from ..errors import AddressError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence

CALL_DEADLINE = 2.0
"""Seconds after which one call to a key-value store is given up as unanswered."""


MAX_VALUE = 100_000
"""Bytes of the largest value: etcd refuses requests above 1.5 MB, and watches carry every value to everybody."""


class KeyValue(NamedTuple):
    """One key as read. `lease` is 0 for keys without one."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


class Compare(NamedTuple):
    """A condition of a transaction: the key's create or mod revision equals `revision` (0: the key is absent)."""

    key: str
    field: Literal["create", "mod"]
    revision: int


class Put(NamedTuple):
    """Write a key, bound to a lease unless `lease` is 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Remove a key, or every key that starts with it."""

    key: str
    prefix: bool = False


class TxnResult(NamedTuple):
    """Whether all comparisons held (then all operations were applied at `revision`, atomically)."""

    succeeded: bool
    revision: int


def absent(key: str) -> Compare:
    """The key does not exist."""
    return Compare(key, "mod", 0)


def unchanged(kv: KeyValue) -> Compare:
    """The key has not been written or removed since it was read."""
    return Compare(kv.key, "mod", kv.mod_revision)


def check_operations(operations: Sequence[Put | Delete]) -> None:
    """Refuse a transaction that no store may be given: an invariant, whatever store it is.

    Raises:
        ValueError: a key is written twice, which etcd refuses: which write would count is not defined. Names the key.
        TooLargeError: a value is larger than `MAX_VALUE`.
    """
    deletes = [operation for operation in operations if isinstance(operation, Delete)]
    seen: set[str] = set()
    for operation in operations:
        if isinstance(operation, Put):
            if operation.key in seen or any(covers(delete, operation.key) for delete in deletes):
                raise ValueError(f"key {operation.key!r} is written twice in one transaction")
            if len(operation.value) > MAX_VALUE:
                raise TooLargeError(
                    f"the value of key {operation.key!r} would have {len(operation.value):,} bytes of at most "
                    f"{MAX_VALUE:,}; nothing was written. This is a bug in EasyScale: large things belong in the "
                    "object store"
                )
            seen.add(operation.key)


def covers(delete: Delete, key: str) -> bool:
    """Whether the operation removes the key."""
    return key.startswith(delete.key) if delete.prefix else key == delete.key


@runtime_checkable
class Watch(Protocol):
    """A hint that something under the watched prefixes may have changed. Losing one must cost only time.

    It may also wake for nothing, as when it has just been opened.
    """

    def wait(self, timeout: float) -> bool:
        """Block up to `timeout` seconds; True when woken by a (possible) change since the last call."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


@runtime_checkable
class KeyValueStore(Protocol):
    """Keys are ASCII text, values small (at most `MAX_VALUE`). Safe for use from several threads.

    Any call may also raise `AddressError`, when the store refuses us for good or is gone: retrying does not help.
    """

    @property
    def address(self) -> str:
        """The address it was opened with (no secrets): for messages."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably.

        Raises:
            UnavailableError: no answer within `CALL_DEADLINE` from any endpoint.
        """
        ...

    def range(self, prefix: str) -> list[KeyValue]:
        """Read all keys with a prefix from one snapshot, sorted by key. Raises like `get`."""
        ...

    def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """If every comparison holds, apply every operation, atomically. A key may be written only once.

        Raises:
            ValueError, TooLargeError: as `check_operations`.
            OutcomeUnknownError: sent and not answered; it may have been applied.
            LeaseGoneError: not applied, because a Put names a lease that is gone.
            UnavailableError: certainly not applied (nothing was sent).
        """
        ...

    def grant(self, ttl: float) -> int:
        """A new lease of `ttl` seconds; its id. Raises `UnavailableError`."""
        ...

    def keep_alive(self, lease: int) -> bool:
        """Renew for another ttl. False when the lease is gone. Raises `UnavailableError` when not answered."""
        ...

    def revoke(self, lease: int) -> None:
        """End a lease and remove its keys; a lease that is gone is no error. Raises `UnavailableError`."""
        ...

    def watch(self, *prefixes: str) -> Watch:
        """Hints about changes under any of these prefixes."""
        ...

    def close(self) -> None:
        """Release connections and threads."""
        ...


def open_kv(address: str) -> KeyValueStore:
    """Open a store by its address.

    Args:
        address: `etcd://host:port[,host:port...]` (with TLS `etcds://`: see `etcd_access.parse`),
            `file:///path/to/kv.sqlite`, or `memory://name` (one process).

    Raises:
        AddressError: unknown scheme, or nobody answers there.
    """
    parts = urlsplit(address)
    if parts.scheme in ("etcd", "etcds"):
        from .etcd import EtcdStore

        return EtcdStore(address)
    if parts.scheme == "file":
        from .embedded import EmbeddedStore

        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise AddressError(f"key-value store address {address!r} has no absolute path", "write file:///path")
        return EmbeddedStore(Path(unquote(parts.path)))
    if parts.scheme == "memory":
        from .memory import MemoryKV

        return MemoryKV.named(parts.netloc)
    raise AddressError(
        f"key-value store address {address!r}: unknown scheme {parts.scheme!r}",
        "use etcd://host:2379 or file:///path (option --kv or EASYSCALE_KV)",
    )
