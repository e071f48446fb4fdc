"""An object store in this process's memory, for tests and simulation."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, ClassVar

from ..errors import NotFoundError
from .objects import Seen, check_key, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .objects import Body, Data


class MemoryStore:
    """Objects in a dict; a registry by name stands in for an address that several openers share.

    Args:
        name: for messages. clock: when objects are written, in seconds.
    """

    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str = "", clock: Callable[[], float] = time.time) -> None:
        self.address = f"memory://{name}"
        self._objects: dict[str, bytes] = {}
        self._written: dict[str, float] = {}
        self._clock = clock
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of that name, made on first use."""
        return cls._named.setdefault(name, cls(name))

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        try:
            return self._objects[key]
        except KeyError:
            raise NotFoundError(f"{self.address}: no object {key!r}") from None

    def view(self, key: str) -> memoryview:
        """See `ObjectStore.view`."""
        return memoryview(bytearray(self.get(key)))

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:  # noqa: ARG002
        """See `ObjectStore.put`."""
        check_key(key)
        self._written[key] = self._clock()
        self._objects[key] = bytes(joined(data))

    def create(self, key: str, data: Data) -> bool:
        """See `ObjectStore.create`."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._written[key] = self._clock()
            self._objects[key] = bytes(data)
            return True

    def exists(self, key: str) -> bool:
        """See `ObjectStore.exists`."""
        return key in self._objects

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        return len(self._objects[key]) if self.exists(key) else None

    def look(self, key: str) -> Seen | None:
        """See `ObjectStore.look`."""
        data = self._objects.get(key)
        if data is None:
            return None
        return Seen(key, len(data), self._clock() - self._written[key])

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list`."""
        return iter([key for key in list(self._objects) if key.startswith(prefix)])

    def survey(self, prefix: str) -> Iterator[Seen]:
        """See `ObjectStore.survey`."""
        for key in self.list(prefix):
            if (seen := self.look(key)) is not None:
                yield seen
