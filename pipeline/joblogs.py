"""What runners print, brought to the object store in numbered chunks, so that `easyscale logs` works from anywhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from ..coordinator import keys, records
from ..coordinator.kv import Put
from ..errors import EasyScaleError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..coordinator.kv import KeyValueStore
    from ..storage.objects import ObjectStore

MAX_CHUNK = 1 << 20
SHIP_SECONDS = 2.0

log = structlog.get_logger()


def chunk_key(job: str, worker: str, number: int) -> str:
    """Where a chunk lies."""
    return f"jobs/{job}/logs/{worker}/{number:08d}"


class LogFile:
    """One growing file of one worker and job, brought to the store chunk by chunk."""

    def __init__(self, kv: KeyValueStore, store: ObjectStore, job: str, worker: str, path: Path) -> None:
        self._kv, self._store = kv, store
        self._job, self._worker, self._path = job, worker, path
        self._chunks = 0
        self._sent = 0

    def ship(self) -> None:
        """Send what has been written since the last call. A failure only delays it."""
        while self._path.exists() and self._path.stat().st_size > self._sent:
            with self._path.open("rb") as file:
                file.seek(self._sent)
                data = file.read(MAX_CHUNK)
            try:
                self._store.put(chunk_key(self._job, self._worker, self._chunks), data)
                record = records.LogRecord(chunks=self._chunks + 1)
                self._kv.txn((), (Put(keys.logs(self._job, self._worker), records.encode(record)),))
            except EasyScaleError as error:
                log.warning("logs.not_shipped", job=self._job, error=str(error))
                return
            self._chunks += 1
            self._sent += len(data)


class LogShipper:
    """Ships the files of one worker from a thread of its own: a store that is slow must not hold up the agent."""

    def __init__(self, kv: KeyValueStore, store: ObjectStore, worker: str) -> None:
        self._kv, self._store, self._worker = kv, store, worker
        self._files: dict[str, LogFile] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="easyscale-logs", daemon=True)
        self._thread.start()

    def add(self, job: str, path: Path) -> None:
        """Ship this file for this job. One file per job: its chunks are numbered through all its runners."""
        self._files.setdefault(job, LogFile(self._kv, self._store, job, self._worker, path))

    def hurry(self) -> None:
        """A runner has ended: somebody will want to read why."""
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Ship the rest, for at most `timeout` seconds."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        last = False
        while not last:
            self._wake.wait(SHIP_SECONDS)
            self._wake.clear()
            last = self._closed  # looked at before shipping, so that what was written before `close` is shipped
            for file in list(self._files.values()):
                file.ship()


def read(store: ObjectStore, job: str, worker: str, record: records.LogRecord, after: int = 0) -> Iterator[bytes]:
    """Chunks of a worker's log from number `after` on; one that is gone is said so in its place."""
    for number in range(after, record.chunks):
        try:
            yield store.get(chunk_key(job, worker, number))
        except NotFoundError:
            yield f"[chunk {number} of this log is missing from {store.address}]\n".encode()
