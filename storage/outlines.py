"""What a manifest says of everything but tensors: read without torch, and small enough to keep ten thousand of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from ..errors import CorruptError
from .blobs import Digest, blob_key, get_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .objects import ObjectStore

FORMAT = 1
"""Version of the manifest and of everything it describes: skeleton, packs, digests."""

Number = float | Literal["nan", "inf", "-inf"]
"""A metric: JSON has no such numbers. `float()` of each gives it back."""


class _Format(msgspec.Struct, frozen=True):
    format: int


class PackEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pack: the digest of its blob and its length in bytes."""

    digest: Digest
    length: int


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a `Manifest`: its fields have the same meaning there."""

    job: str
    step: int
    parent: Digest | None
    spec: Digest
    code: Digest
    generation: int
    state_digest: Digest
    metrics: dict[str, Number]
    history: Digest | None
    created: float
    packs: list[PackEntry]


class Descendant(Protocol):
    """What says which commit comes before it."""

    @property
    def job(self) -> str:
        """See `Manifest`."""
        ...

    @property
    def step(self) -> int:
        """See `Manifest`."""
        ...

    @property
    def parent(self) -> str | None:
        """See `Manifest`."""
        ...


M = TypeVar("M")
D = TypeVar("D", bound=Descendant)
O = TypeVar("O", bound=Outline)  # noqa: E741 - of what it stands for


def decode(data: bytes, where: str, kind: type[M]) -> M:
    """A manifest, or a part of one.

    Args:
        data: JSON of the whole. where: what to call it in an error. kind: what to read of it.

    Raises:
        CorruptError: not a manifest, or written by another version of EasyScale.
    """
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version != FORMAT:
            raise CorruptError(
                f"{where} has format {version}; this EasyScale reads format {FORMAT}: use the version that wrote it"
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{where} is not a valid manifest: {error}") from error


def where_is(store: ObjectStore, digest: str) -> str:
    """A manifest's place, for errors."""
    return f"{store.address}: {blob_key(digest)}"


def read_outline(store: ObjectStore, digest: str, kind: type[O]) -> O:
    """Read a part of the manifest with this digest. Raises `NotFoundError` or `CorruptError`, naming the key."""
    return decode(get_blob(store, digest), where_is(store, digest), kind)


def descend(store: ObjectStore, digest: str, read: Callable[[ObjectStore, str], D]) -> Iterator[tuple[str, D]]:
    """Digest and manifest of a commit and of each of its ancestors, newest first.

    Those that were collected are among them. A fork's history ends with its own first commit.

    Args:
        store: where they are. digest: of the newest. read: one of them, or what is wanted of it.

    Raises:
        CorruptError: one is not before its successor; and what `read` raises.
    """
    following: str | None = digest
    step: float = math.inf
    job: str | None = None
    while following is not None:
        found = read(store, following)
        if found.job != (job := job or found.job):
            return
        if found.step >= step:
            raise CorruptError(f"{store.address}: manifest {following} is of step {found.step} and parent of {step}")
        yield following, found
        following, step = found.parent, found.step
