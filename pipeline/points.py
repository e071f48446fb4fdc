"""A point in a job's history that something shall begin with: the commit of a step, found and made safe to rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptError, NotFoundError, UserError
from ..storage import commits
from ..storage.blobs import blob_key, get_blob, put_blob
from ..storage.collected import is_collected, read_notes
from ..storage.transfers import at_once
from .commit_checks import markers

if TYPE_CHECKING:
    from ..coordinator.views import JobView
    from ..storage.manifests import Manifest
    from ..storage.objects import ObjectStore

SHOWN = 8
"""Commits that are named when another one was asked for."""


class Point(NamedTuple):
    """A commit: the digest of its manifest, and what that says."""

    digest: str
    manifest: Manifest


def find(store: ObjectStore, job: JobView, step: int | None) -> Point:
    """The commit of a step in the history that the job's head has; None: its head.

    Raises:
        UserError: there is none, or its state was collected; names those that there are.
        CorruptError, NotFoundError: the history cannot be read.
    """
    assert job.head is not None, "the caller has seen that there is a commit"
    head = job.head.value
    for digest, manifest in commits.chain(store, head.manifest):
        if step is not None and manifest.step > step:
            continue
        if step is not None and manifest.step < step:
            break
        if is_collected(store, digest, manifest):
            raise UserError(
                f"the state of job {job.name!r} at step {manifest.step} was collected (easyscale gc)",
                _those_there(store, job),
            )
        return Point(digest, manifest)
    raise UserError(f"job {job.name!r} has no commit of step {step}", _those_there(store, job))


def refresh(store: ObjectStore, point: Point) -> None:
    """Read everything that a commit consists of, check each bit, and write what is not fresh again.

    From then on garbage collection that began before knows that somebody relies on it: see `storage/collection.py`.

    Raises:
        CorruptError, NotFoundError: something is damaged or missing; names it.
        UnavailableError: the store failed.
    """
    manifest = point.manifest
    blobs = {pack.digest: pack.length for pack in manifest.packs} | {manifest.spec: 0, manifest.code: 0}
    digests = [*blobs]
    at_once(lambda digest: put_blob(store, get_blob(store, digest)), digests, lambda digest: blobs[digest])


def require_there(store: ObjectStore, point: Point) -> None:
    """The last look before something comes to rely on it.

    Raises:
        NotFoundError: a pack went just now.
    """
    for pack in point.manifest.packs:
        if not store.exists(blob_key(pack.digest)):
            raise NotFoundError(
                f"{store.address}: {blob_key(pack.digest)} of step {point.manifest.step} has just been collected by a "
                "garbage collection that ran at the same time: choose another commit"
            )


def _those_there(store: ObjectStore, job: JobView) -> str:
    assert job.head is not None
    notes = read_notes(store, job.name)
    there = []
    for step in reversed([step for step in markers(store, job.name) if step <= job.head.value.step]):
        try:
            marker = commits.read_marker(store, job.name, step)
        except CorruptError:
            continue
        if marker is not None and marker.manifest not in notes:
            there.append(str(step))
    there = there[:SHOWN] + (["..."] if len(there) > SHOWN else [])
    return f"there are commits of the steps {', '.join(there)}" if there else "wait for its next commit"
