"""Content-addressed objects: a blob's key is the SHA-256 of its bytes, and every read is checked against it.

Putting a blob twice is harmless, so nothing here coordinates writers. What a blob means is up to others. A blob that is
there already is relied on only for `FRESH_SECONDS` after it was written, and written again after that: garbage
collection removes nothing that young, so it never takes what a commit under way has just found.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import structlog

from ..errors import CorruptError, EasyScaleError, OutcomeUnknownError
from .objects import length

if TYPE_CHECKING:
    from collections.abc import Callable

    from .objects import Data, ObjectStore

log = structlog.get_logger()

T = TypeVar("T")

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A SHA-256 in lower-case hex, checked when decoded: a digest from outside becomes part of a key."""


FRESH_SECONDS = 3600.0
"""How old a blob may be, by the store's clock, for a writer to rely on it. What is kept unchanged from commit to commit
(frozen parameters) is therefore sent once an hour."""


def blob_key(digest: str) -> str:
    """Where a blob lies."""
    return f"blobs/{digest[:2]}/{digest}"


def blob_digest(*pieces: Data) -> str:
    """The digest of a blob given in one or more pieces. Large pieces are hashed without holding the GIL."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return sha.hexdigest()


def put_blob(store: ObjectStore, *pieces: Data, overwrite: bool = False) -> str:
    """Store a blob, given in one or more pieces, unless it is there already and fresh.

    Args:
        store: where to.
        pieces: not copied, where the store can send them apart.
        overwrite: send it even then: heals a blob that was found damaged.

    Returns:
        Its digest.

    Raises:
        OutcomeUnknownError: no answer, and it cannot be read back.
    """
    digest = blob_digest(*pieces)
    if overwrite or not ready_to_use(store, digest, length(pieces)):
        try:
            store.put(blob_key(digest), pieces)
        except OutcomeUnknownError as error:
            try:
                get_blob(store, digest)
            except EasyScaleError:
                raise error from None
    return digest


def ready_to_use(store: ObjectStore, digest: str, size: int) -> bool:
    """Whether a blob is there, fresh (see `FRESH_SECONDS`), and with all its `size` bytes.

    A power cut can leave a short file under the right name.
    """
    seen = store.look(blob_key(digest))
    if seen is None:
        return False
    if seen.size != size:
        log.warning("blob.torn", store=store.address, key=blob_key(digest), found=seen.size, expected=size)
    return seen.size == size and seen.age < FRESH_SECONDS


def get_blob(store: ObjectStore, digest: str) -> bytes:
    """Read a blob and check it.

    Raises:
        CorruptError: its bytes have another digest.
        NotFoundError: it is not there.
    """
    return read_twice(lambda: _get_blob(store, digest))


def read_twice(read: Callable[[], T]) -> T:
    """Read something, and once more if it is damaged: it may have been so only on its way."""
    try:
        return read()
    except CorruptError as error:
        log.warning("blob.read_again", error=str(error))
        return read()


def _get_blob(store: ObjectStore, digest: str) -> bytes:
    data = store.get(blob_key(digest))
    found = blob_digest(data)
    if found != digest:
        raise CorruptError(
            f"{store.address}: {blob_key(digest)} is damaged: its {len(data)} bytes have the digest {found}"
        )
    return data
