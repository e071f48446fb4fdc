"""Blobs kept in a local folder, so that a worker never downloads what it uploaded or has read before.

It is an object store around another one, which stays the truth: writes go through, `exists` asks there, and only
objects whose key ends in the SHA-256 of their content are kept, so a local copy can be proved right before it is
used. Several processes may share the folder. No failure of the cache ever fails its caller.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import structlog

from ..errors import AddressError, NotFoundError, UnavailableError
from .files import TEMPORARY, FileStore
from .objects import length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .objects import Body, Data, ObjectStore, Seen

log = structlog.get_logger()
T = TypeVar("T", bytes, memoryview)

DEFAULT_LIMIT = 8 << 30
"""Bytes that the folder may hold."""

BLOB_KEY = re.compile(r"blobs/(?:.*/)?([0-9a-f]{64})")
"""Keys of objects that are kept; the group is the digest, under which they lie in the folder."""


class CachedBlobs:
    """The blobs of `store` in `folder` as well, least recently used ones leaving above `limit` bytes.

    Args:
        store: where everything really is.
        folder: may be shared by processes and by stores; a folder that cannot be used means no cache.
        limit: bytes; each process may overshoot it by an eighth until it next looks at the folder.
    """

    def __init__(self, store: ObjectStore, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._store = store
        self._folder = folder
        self._limit = limit
        self._room = 0  # bytes that may be added before the folder is looked at again
        self._lock = threading.Lock()
        self._warned = False
        self._local: FileStore | None = None
        try:
            self._local = FileStore(folder)
        except AddressError as error:
            self._warn(error)

    @property
    def address(self) -> str:
        """The address of the store behind."""
        return self._store.address

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`. A blob may come from the folder even if it is gone from the store."""
        return self._read(key, self._store.get, FileStore.get)

    def view(self, key: str) -> memoryview:
        """See `ObjectStore.view`; likewise."""
        return self._read(key, self._store.view, FileStore.view)

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:
        """See `ObjectStore.put`."""
        with self._written(key, data):
            self._store.put(key, data, durable=durable)

    def create(self, key: str, data: Data) -> bool:
        """See `ObjectStore.create`."""
        with self._written(key, data):
            return self._store.create(key, data)

    def exists(self, key: str) -> bool:
        """See `ObjectStore.exists`: a local copy is no proof."""
        return self._store.exists(key)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`: likewise."""
        return self._store.size(key)

    def look(self, key: str) -> Seen | None:
        """See `ObjectStore.look`: likewise."""
        return self._store.look(key)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._store.delete(key)
        self._forget(self._digest(key))

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list`."""
        return self._store.list(prefix)

    def survey(self, prefix: str) -> Iterator[Seen]:
        """See `ObjectStore.survey`."""
        return self._store.survey(prefix)

    def _digest(self, key: str) -> str | None:
        match = BLOB_KEY.fullmatch(key)
        return match[1] if match and self._local else None

    def _read(self, key: str, fetch: Callable[[str], T], recall: Callable[[FileStore, str], T]) -> T:
        digest = self._digest(key)
        if digest is None:
            return fetch(key)
        data = self._recall(digest, recall)
        if data is None:
            data = fetch(key)
            if _sha256(data) == digest:  # else the caller will find out, as it would without us
                self._keep(digest, data)
        return data

    @contextmanager
    def _written(self, key: str, data: Body) -> Iterator[None]:
        """Around a write to the store. After a failed one, reading must ask the store and not find a local copy."""
        digest = self._digest(key)
        try:
            yield
        except BaseException:
            self._forget(digest)
            raise
        if digest is not None:
            self._keep(digest, data)

    def _recall(self, digest: str, recall: Callable[[FileStore, str], T]) -> T | None:
        assert self._local
        try:
            data = recall(self._local, digest)
        except NotFoundError:
            return None
        except UnavailableError as error:
            self._warn(error)
            return None
        if _sha256(data) != digest:
            log.warning("cache_copy_damaged", folder=str(self._folder), digest=digest)
            self._forget(digest)
            return None
        with suppress(OSError):  # gone since, or not ours: it will merely look older than it is
            os.utime(self._local.path(digest))
        return data

    def _keep(self, digest: str, data: Body) -> None:
        assert self._local
        size = length(data)
        if size > self._limit:
            return
        try:
            with self._lock:
                self._room -= size
                if self._room < 0:
                    self._room = self._trim(size) - size
            self._local.put(digest, data, durable=False)
        except (UnavailableError, OSError) as error:
            self._warn(error)

    def _forget(self, digest: str | None) -> None:
        if digest is None or self._local is None:
            return
        try:
            self._local.delete(digest)
        except UnavailableError as error:
            self._warn(error)

    def _trim(self, size: int) -> int:
        """Make room for `size` more bytes and some to spare; the bytes to add before this must be done again."""
        spare = self._limit // 8
        found = [(status.st_mtime_ns, status.st_size, path) for path, status in self._files()]
        total = sum(length for _, length, _ in found)
        if total + size > self._limit:
            for _, length, path in sorted(found):
                if total + size <= self._limit - spare:
                    break
                path.unlink(missing_ok=True)
                total -= length
        return max(size, min(spare, self._limit - total))

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._folder.iterdir():
            if path.name != TEMPORARY:
                with suppress(FileNotFoundError):  # another process trims too
                    yield path, path.stat()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("cache_unusable", folder=str(self._folder), reason=str(error), effect="blobs are fetched")


def _sha256(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()
