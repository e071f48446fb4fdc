"""What runners print, brought to the object store in numbered chunks, so that `easyscale logs` works from anywhere."""

from __future__ import annotations

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

log = structlog.get_logger()


def chunk_key(job: str, worker: str, number: int) -> str:
    """Where a chunk lies."""
    return f"jobs/{job}/logs/{worker}/{number:08d}"


class LogShipper:
    """Ships one growing file. Not thread-safe; losing a chunk's upload only delays it.

    Args:
        path: the file; what it holds already was shipped or belongs to somebody else.
    """

    def __init__(self, kv: KeyValueStore, store: ObjectStore, job: str, worker: str, path: Path) -> None:
        self._kv, self._store = kv, store
        self.job, self._worker, self._path = job, worker, path
        self._chunks = 0
        self._sent = path.stat().st_size if path.exists() else 0
        self._length = 0

    def ship(self) -> None:
        """Send what has been written since the last call."""
        while self._path.exists() and self._path.stat().st_size > self._sent:
            with self._path.open("rb") as file:
                file.seek(self._sent)
                data = file.read(MAX_CHUNK)
            try:
                self._store.put(chunk_key(self.job, self._worker, self._chunks), data)
                record = records.LogRecord(chunks=self._chunks + 1, length=self._length + len(data))
                self._kv.txn((), (Put(keys.logs(self.job, self._worker), records.encode(record)),))
            except EasyScaleError as error:
                log.warning("logs.not_shipped", job=self.job, error=str(error))
                return
            self._chunks += 1
            self._sent += len(data)
            self._length += len(data)


def read(store: ObjectStore, job: str, worker: str, record: records.LogRecord, after: int = 0) -> Iterator[bytes]:
    """Chunks of a worker's log from number `after` on; one that is gone is said so in its place."""
    for number in range(after, record.chunks):
        try:
            yield store.get(chunk_key(job, worker, number))
        except NotFoundError:
            yield f"[chunk {number} of this log is missing from {store.address}]\n".encode()
