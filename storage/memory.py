"""An object store in this process's memory, for tests and simulation."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from ..errors import NotFoundError
from .objects import check_key, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .objects import Body, Data


class MemoryStore:
    """Objects in a dict; a registry by name stands in for an address that several openers share."""

    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str = "") -> None:
        self.address = f"memory://{name}"
        self._objects: dict[str, bytes] = {}
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
        self._objects[key] = bytes(joined(data))

    def create(self, key: str, data: Data) -> bool:
        """See `ObjectStore.create`."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = bytes(data)
            return True

    def exists(self, key: str) -> bool:
        """See `ObjectStore.exists`."""
        return key in self._objects

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        return len(self._objects[key]) if self.exists(key) else None

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list`."""
        return iter([key for key in list(self._objects) if key.startswith(prefix)])
