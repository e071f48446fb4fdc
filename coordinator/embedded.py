"""A key-value store in one SQLite file, for all processes of one machine. No server, nothing to install.

Every call is one transaction, so a process may be killed at any point. A power cut may lose the last transactions (the
log is not flushed at every commit), but what is left is always a state that was there. Leases run on the machine's
monotonic clock and end with a reboot, and at once with the process that was granted them: on one machine a death can
be seen, nobody has to wait for it. Network file systems are left to etcd: SQLite's log needs shared memory.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_before_delay

from ..chance import wait_random
from ..errors import AddressError, LeaseGoneError, OutcomeUnknownError, UnavailableError
from . import processes
from .kv import CALL_DEADLINE, KeyValue, Put, TxnResult, check_operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .kv import Compare, Delete

POLL_INTERVAL = 0.02
"""Seconds between two looks of a waiting watch at the file."""

LEASES_INTERVAL = 0.2
"""Seconds between its looks for leases that have lapsed, which cost more: each of their holders is looked for."""

_APPLICATION_ID = 0x45617379  # "Easy": SQLite's header field for telling whose file this is
_SCHEMA = (
    "CREATE TABLE revision (value INTEGER NOT NULL)",
    "INSERT INTO revision VALUES (1)",
    """CREATE TABLE keys (key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
       mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX keys_by_lease ON keys (lease) WHERE lease <> 0",
    # AUTOINCREMENT: the number of a lease that is gone must never name a new one
    """CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl REAL NOT NULL, deadline REAL NOT NULL,
       boot TEXT NOT NULL, holder TEXT NOT NULL)""",
    f"PRAGMA application_id = {_APPLICATION_ID}",
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class EmbeddedStore:
    """See `KeyValueStore`. One connection per thread; SQLite's locks order the processes.

    Args:
        path: the file; made with its folder when missing.

    Raises:
        AddressError: the file cannot be made, opened or written, is damaged, or belongs to another program.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.address = self._path.as_uri()
        self._boot = _boot_id()
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._prepare()
            self._identity = self._inode()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise self._unfit(error) from error
        except AddressError:
            self.close()
            raise

    def get(self, key: str) -> KeyValue | None:
        """See `KeyValueStore.get`."""
        rows = self._select("key = ?", key)
        return rows[0] if rows else None

    def range(self, prefix: str) -> list[KeyValue]:
        """See `KeyValueStore.range`."""
        return self._select("key >= ? AND key < ? ORDER BY key", prefix, _end_of(prefix))

    def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """See `KeyValueStore.txn`."""
        check_operations(operations)
        with self._transaction() as db:
            revision = _revision(db)
            if not all(_holds(db, compare) for compare in compares):
                return TxnResult(False, revision)
            changed = [self._apply(db, operation, revision + 1) for operation in operations]
            if any(changed):
                revision = _bump(db)
            return TxnResult(True, revision)

    def grant(self, ttl: float) -> int:
        """See `KeyValueStore.grant`."""
        with self._transaction() as db:
            values = (ttl, time.monotonic() + ttl, self._boot, processes.identity(os.getpid()))
            insert = "INSERT INTO leases (ttl, deadline, boot, holder) VALUES (?, ?, ?, ?)"
            lease = db.execute(insert, values).lastrowid
            assert lease is not None
            return lease

    def keep_alive(self, lease: int) -> bool:
        """See `KeyValueStore.keep_alive`."""
        with self._transaction() as db:
            values = (time.monotonic(), lease)
            return db.execute("UPDATE leases SET deadline = ? + ttl WHERE id = ?", values).rowcount == 1

    def revoke(self, lease: int) -> None:
        """See `KeyValueStore.revoke`."""
        with self._transaction() as db:
            _end_lease(db, lease)

    def watch(self, *prefixes: str) -> EmbeddedWatch:  # noqa: ARG002 - a hint may be wider than was asked for
        """See `KeyValueStore.watch`. Wakes on any change in the file."""
        return EmbeddedWatch(self, self._closed)

    def close(self) -> None:
        """See `KeyValueStore.close`."""
        self._closed.set()
        with self._lock:
            # Only our own: SQLite crashes when a connection is closed under another thread that is using it. Those
            # close when their threads let go of them.
            own = self._connections.pop(threading.current_thread(), None)
            self._connections.clear()
        if own is not None:
            own.close()

    def pulse(self, *, leases: bool = True) -> int:
        """The newest revision: it has grown if and only if a key has changed.

        Args:
            leases: whether those that have lapsed are ended first.

        Raises:
            UnavailableError: the file cannot be read now.
        """
        with self._translated():
            return _revision(self._settled() if leases else self._connection())

    def _prepare(self) -> None:
        db = self._connection()
        self._is_ours(db)  # asked before anything is written: a foreign file stays as it was
        # Switching the log on does not wait for other openers as transactions do, it fails at once.
        retrying = Retrying(
            retry=retry_if_exception(_is_busy),
            stop=stop_before_delay(CALL_DEADLINE),
            wait=wait_random(0.005, 0.03),
            reraise=True,
        )
        retrying(db.execute, "PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")  # also on a finished file: fails at once where we may not write
        if not self._is_ours(db):
            for statement in _SCHEMA:
                db.execute(statement)
        db.execute("COMMIT")

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        """False for an empty file, which is ours to fill."""
        # In this order: whoever makes the tables sets the id in the same transaction, which may end just now.
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return False
        if db.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION_ID:
            return True
        raise AddressError(
            f"key-value store {self._path}: this SQLite file belongs to another program",
            "give the path of a new file (option --kv or EASYSCALE_KV)",
        )

    def _connection(self) -> sqlite3.Connection:
        me = threading.current_thread()
        db = self._connections.get(me)
        if db is None:
            with self._lock:
                if self._closed.is_set():
                    raise UnavailableError(f"{self.address}: used after it was closed")
                for thread in [thread for thread in self._connections if not thread.is_alive()]:
                    self._connections.pop(thread).close()
                db = sqlite3.connect(self._path, timeout=CALL_DEADLINE, isolation_level=None, check_same_thread=False)
                self._connections[me] = db
            db.execute("PRAGMA synchronous = NORMAL")
            db.create_function("is_alive", 1, processes.is_alive)
        return db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that begins with ending the leases that have lapsed."""
        with self._translated():
            db = self._connection()
            if self._inode() != self._identity:
                # SQLite would go on writing into the removed file, apart from everybody who opens the new one.
                raise AddressError(
                    f"key-value store {self._path} was removed or replaced while in use", "start this command again"
                )
            db.execute("BEGIN IMMEDIATE")
            try:
                for (lease,) in db.execute(f"SELECT id {_LAPSED} ORDER BY deadline", self._now()).fetchall():
                    _end_lease(db, lease)
                yield db
            except BaseException:
                db.rollback()
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                if db.in_transaction:
                    db.rollback()
                raise OutcomeUnknownError(f"{self.address}: commit failed: {error}") from error

    def _settled(self) -> sqlite3.Connection:
        """A connection for reading, after lapsed leases have been ended."""
        db = self._connection()
        if db.execute(f"SELECT 1 {_LAPSED}", self._now()).fetchone():
            with self._transaction():
                pass
        return db

    def _select(self, where: str, *values: str) -> list[KeyValue]:
        with self._translated():
            rows = self._settled().execute(
                f"SELECT key, value, create_revision, mod_revision, lease FROM keys WHERE {where}",  # noqa: S608
                values,
            )
            return [KeyValue(*row) for row in rows]

    def _apply(self, db: sqlite3.Connection, operation: Put | Delete, revision: int) -> bool:
        if isinstance(operation, Put):
            lease = operation.lease
            if lease and not db.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone():
                raise LeaseGoneError(f"{self.address}: lease {lease} is gone")
            row = (operation.key, bytes(operation.value), revision, revision, lease)
            return db.execute(_UPSERT, row).rowcount > 0
        if operation.prefix:
            bounds = (operation.key, _end_of(operation.key))
            return db.execute("DELETE FROM keys WHERE key >= ? AND key < ?", bounds).rowcount > 0
        return db.execute("DELETE FROM keys WHERE key = ?", (operation.key,)).rowcount > 0

    def _inode(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return (0, 0)
        return found.st_dev, found.st_ino

    def _now(self) -> tuple[float, str]:
        return time.monotonic(), self._boot

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if _primary_code(error) in _DAMAGED:
                raise self._unfit(error) from error
            raise UnavailableError(f"{self.address}: {error}") from error

    def _unfit(self, error: Exception) -> AddressError:
        if isinstance(error, sqlite3.Error) and _primary_code(error) in _DAMAGED:
            hint = (
                "give another file (option --kv or EASYSCALE_KV); if this one was EasyScale's, move it away with its "
                "-wal and -shm files"
            )
        else:
            hint = "give a file in a local folder that can be written (option --kv or EASYSCALE_KV)"
        return AddressError(f"key-value store {self._path} cannot be used: {error}", hint)


class EmbeddedWatch:
    """See `Watch`. Looks at the file's revision every `POLL_INTERVAL`: microseconds of work, and no thread."""

    def __init__(self, store: EmbeddedStore, closed: threading.Event) -> None:
        self._store = store
        self._store_closed = closed
        self._closed = threading.Event()
        self._seen = 0
        self._leases_at = float("-inf")
        self._moved()

    def wait(self, timeout: float) -> bool:
        """See `Watch.wait`."""
        end = time.monotonic() + timeout
        while not self._store_closed.is_set():
            if self._moved():
                return True
            left = end - time.monotonic()
            if left <= 0 or self._closed.wait(min(left, POLL_INTERVAL)):
                break
        return False

    def close(self) -> None:
        """See `Watch.close`."""
        self._closed.set()

    def _moved(self) -> bool:
        now = time.monotonic()
        leases = now - self._leases_at >= LEASES_INTERVAL
        self._leases_at = now if leases else self._leases_at
        try:
            revision = self._store.pulse(leases=leases)
        except (UnavailableError, AddressError):
            return False  # only a hint: whoever polls will meet the error
        moved, self._seen = revision != self._seen, revision
        return moved


def _boot_id() -> str:
    """Names this boot of the machine; where the system has no such name, all boots are taken for one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_LAPSED = "FROM leases WHERE deadline <= ? OR boot <> ? OR NOT is_alive(holder)"
_UPSERT = (
    "INSERT INTO keys (key, value, create_revision, mod_revision, lease) VALUES (?, ?, ?, ?, ?) ON CONFLICT (key)"
    " DO UPDATE SET value = excluded.value, mod_revision = excluded.mod_revision, lease = excluded.lease"
)


def _end_of(prefix: str) -> str:
    """Above every ASCII key with this prefix."""
    return prefix + "\U0010ffff"


def _revision(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT value FROM revision").fetchone()[0])


def _bump(db: sqlite3.Connection) -> int:
    db.execute("UPDATE revision SET value = value + 1")
    return _revision(db)


def _end_lease(db: sqlite3.Connection, lease: int) -> None:
    db.execute("DELETE FROM leases WHERE id = ?", (lease,))
    if db.execute("DELETE FROM keys WHERE lease = ? AND lease <> 0", (lease,)).rowcount:
        _bump(db)


def _holds(db: sqlite3.Connection, compare: Compare) -> bool:
    row = db.execute("SELECT create_revision, mod_revision FROM keys WHERE key = ?", (compare.key,)).fetchone()
    created, modified = row or (0, 0)
    return compare.revision == (created if compare.field == "create" else modified)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits only refine it


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _primary_code(error) == sqlite3.SQLITE_BUSY
