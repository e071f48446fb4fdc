"""Notes of commits whose states were collected: what tells a commit that was given up on purpose from a damaged one.

Collection removes the packs of a commit, which are nearly all of it, and keeps its manifest, marker and history: so
the chain of digests stays whole, and what was recorded of each step can still be read and computed anew. Before a pack
goes, a note names the manifests that lose theirs. A note only explains what is missing: a commit whose packs are all
there is whole, whatever notes say. Notes are never changed; each collection adds one to each job that loses commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from ..errors import NotFoundError
from .blobs import Digest, blob_digest, blob_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .manifests import Manifest
    from .objects import ObjectStore

log = structlog.get_logger()


class Note(msgspec.Struct, frozen=True):
    """The manifests that have lost their packs."""

    manifests: list[Digest]


def note_prefix(job: str) -> str:
    """Where a job's notes lie."""
    return f"jobs/{job}/collected/"


def write_note(store: ObjectStore, job: str, manifests: Iterable[str]) -> None:
    """Say that these will lose their packs. The same note again is the same object.

    Raises:
        UnavailableError: the store failed.
    """
    data = msgspec.json.encode(Note(sorted(manifests)))
    store.put(note_prefix(job) + blob_digest(data), data)


def read_note(store: ObjectStore, key: str) -> frozenset[str]:
    """What a note says. One that cannot be read says nothing: what it named is then taken for damaged."""
    try:
        return frozenset(msgspec.json.decode(store.get(key), type=Note).manifests)
    except (msgspec.DecodeError, UnicodeDecodeError, NotFoundError) as error:
        log.warning("collected.note_unreadable", store=store.address, key=key, error=str(error))
        return frozenset()


def read_notes(store: ObjectStore, job: str) -> frozenset[str]:
    """Digests of all of a job's manifests that were collected, as far as a listing knows."""
    return frozenset[str]().union(*(read_note(store, key) for key in store.list(note_prefix(job))))


def has_packs(store: ObjectStore, manifest: Manifest) -> bool:
    """Whether everything that a commit's state consists of is there.

    Raises:
        UnavailableError: the store failed.
    """
    return all(store.exists(blob_key(pack.digest)) for pack in manifest.packs)


def is_collected(store: ObjectStore, digest: str, manifest: Manifest, notes: Collection[str] | None = None) -> bool:
    """Whether a commit cannot be had because it was collected: there is a note of it, and it lacks a pack.

    Args:
        digest: of the manifest. notes: what `read_notes` says of its job, where that was read before.

    Raises:
        UnavailableError: the store failed.
    """
    notes = read_notes(store, manifest.job) if notes is None else notes
    return digest in notes and not has_packs(store, manifest)
