"""What a job was last submitted with, as the object store knows it: found when the key-value store is lost.

It names the job's specification and code also before there is a commit, so garbage collection keeps both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import NotFoundError
from .blobs import Digest  # noqa: TC001 - msgspec reads annotations

if TYPE_CHECKING:
    from .objects import ObjectStore


class Submitted(msgspec.Struct, frozen=True):
    """What garbage collection reads of it. The whole is a `coordinator.records.JobRecord`."""

    spec: Digest
    code: Digest


def submitted_key(job: str) -> str:
    """Where it lies."""
    return f"jobs/{job}/submitted"


def read_digests(store: ObjectStore, key: str) -> set[str]:
    """The blobs that it names. One that cannot be read names none: manifests and the key-value store name the same."""
    try:
        found = msgspec.json.decode(store.get(key), type=Submitted)
    except (msgspec.DecodeError, UnicodeDecodeError, NotFoundError):
        return set()
    return {found.spec, found.code}
