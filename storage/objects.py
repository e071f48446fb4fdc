"""The object store seam: what we ask of S3, a folder or memory, and how to open one by address.

An implementation guarantees that `put` and `create` are atomic (a reader sees all bytes or none) and that
`create` has exactly one winner. Everything else (hashing, manifests, retention) is built on top.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from ..errors import AddressError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Data = bytes | bytearray | memoryview

    Body = Data | Sequence[Data]
    """What an object shall consist of: bytes, or pieces to be put one after another (so that nobody has to copy)."""


KEY_PATTERN = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
"""Keys that mean the same to every store: ASCII, no empty, `.` or `..` part."""


def check_key(key: str) -> None:
    """Refuse a key that is not portable. Keys are made by us, never by the user, so it is a bug of ours.

    Raises:
        ValueError: not of the form `KEY_PATTERN`.
    """
    if not KEY_PATTERN.fullmatch(key):
        raise ValueError(f"object key {key!r}: parts of [A-Za-z0-9._-], separated by single '/', none '.' or '..'")


def joined(data: Body) -> Data:
    """The pieces of an object as one, for those who cannot send them apart. Nothing is copied if it is one."""
    return data if isinstance(data, (bytes, bytearray, memoryview)) else b"".join(data)


def length(data: Body) -> int:
    """Bytes of an object in one or more pieces."""
    pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
    return sum(memoryview(piece).nbytes for piece in pieces)


class Seen(NamedTuple):
    """An object as a store describes it.

    Args:
        size: bytes.
        age: seconds since it was last written, to a second or two, both times by the *store's* clock.
    """

    key: str
    size: int
    age: float


@runtime_checkable
class ObjectStore(Protocol):
    """Flat key -> bytes. Keys are as `check_key` wants them."""

    @property
    def address(self) -> str:
        """The address it was opened with (no secrets): for messages."""
        ...

    def get(self, key: str) -> bytes:
        """Read a whole object.

        Raises:
            NotFoundError: there is no such object.
            UnavailableError: the store did not answer within the retry deadline.
        """
        ...

    def view(self, key: str) -> memoryview:
        """Like `get`, as writable memory of the caller's own. Large objects are not copied more than they must be.

        Raises:
            NotFoundError, UnavailableError: as `get` does.
        """
        ...

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:
        """Write or overwrite. `durable=False` (lane blobs) may be lost in a crash of the store's machine.

        Raises:
            OutcomeUnknownError: no answer within the retry deadline.
        """
        ...

    def create(self, key: str, data: Data) -> bool:
        """Write only if absent.

        Returns:
            True when the object was created by this call, or when a retry of it found exactly these bytes there
            (our own success whose answer was lost). False when something else was there already.

        Raises:
            OutcomeUnknownError: no answer within the retry deadline.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether the object is there now."""
        ...

    def size(self, key: str) -> int | None:
        """Length in bytes of the object that is there now, or None: tells a torn one from a whole one."""
        ...

    def look(self, key: str) -> Seen | None:
        """What the store knows of the object that is there now, or None."""
        ...

    def delete(self, key: str) -> None:
        """Remove; a missing object is no error."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Keys under a prefix in any order. May lag behind: only garbage collection and recovery use it."""
        ...

    def survey(self, prefix: str) -> Iterator[Seen]:
        """Like `list`, with what the store knows of each object."""
        ...


def open_store(address: str) -> ObjectStore:
    """Open `s3://bucket/prefix`, `file:///path` or `memory://name` (one process, for tests).

    S3's endpoint and credentials come from boto3's usual chain (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...).

    Raises:
        AddressError: unknown scheme, or a folder, bucket or endpoint that cannot be used.
    """
    parts = urlsplit(address)
    if parts.query or parts.fragment:
        raise AddressError(f"object store address {address!r} has a '?' or '#'", "quote it (%3F, %23) if it is meant")
    if parts.scheme == "file":
        from .files import FileStore

        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise AddressError(f"object store address {address!r} has no absolute path", "write file:///path")
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from .s3 import S3Store

        return S3Store(bucket=parts.netloc, prefix=parts.path.strip("/"))
    if parts.scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore.named(parts.netloc)
    raise AddressError(
        f"object store address {address!r}: unknown scheme {parts.scheme!r}",
        "use s3://bucket/prefix or file:///path (option --store or EASYSCALE_STORE)",
    )
