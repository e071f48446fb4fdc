"""Commits: durable states of a job, written as packs, then a manifest, then a marker, and read with every bit checked.

A commit is visible once its marker is there, and by then it is complete. Any number of workers may commit the same
step at once: they share the blobs, and the marker settles whether their states agree. Publishing the head (and so
fencing) is the coordinator's part.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ..errors import CorruptError, DivergenceError, NotFoundError, OutcomeUnknownError, listed
from . import packs, trees
from .blobs import Digest, put_blob
from .collected import is_collected, read_notes
from .digest import has_nan, has_nonfinite, state_digest
from .manifests import (
    Manifest,
    TensorEntry,
    decode_manifest,
    encode_manifest,
    plain_metrics,
    read_manifest,
)
from .outlines import FORMAT, descend
from .transfers import at_once, read_pack, store_packs, tensor_entries, wait_for, weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from .objects import ObjectStore
    from .trees import Skeleton

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """S(t) in host memory, out of the reach of training.

    Args:
        step: t. skeleton, tensors: see `trees.flatten`.
        copied: when the tensors are there, if they come from a GPU: see `trees.snapshot`.
    """

    step: int
    skeleton: Skeleton
    tensors: dict[str, torch.Tensor]
    copied: torch.Event | None = None

    @classmethod
    def take(cls, step: int, tree: Any, reuse: Snapshot | None = None) -> Snapshot:
        """Copy a state (see `trees.flatten`), into the buffers of a snapshot nobody reads any more if one is given."""
        # A state that says its step must be of this one: else the copy was taken from a later step.
        assert not isinstance(tree, dict) or tree.get("step", step) == step, (tree["step"], step)
        skeleton, tensors = trees.flatten(tree)
        return cls(step, skeleton, *trees.snapshot(tensors, reuse.tensors if reuse else None))

    def arrive(self) -> None:
        """Wait until the tensors are there; from any thread."""
        if self.copied is not None:
            self.copied.synchronize()


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as published: step, digest of its manifest, digest of its state."""

    step: int
    manifest_digest: str
    state_digest: str


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `jobs/<job>/commits/<step>` says. `parent` leads around a manifest that was lost."""

    step: int
    manifest: Digest
    state_digest: Digest
    parent: Digest | None


class CommitConflictError(DivergenceError):
    """A step was committed before with another state. Both manifests are in the store.

    Args:
        job, step: which step.
        ours, theirs: digests of the two manifests.
        differing: paths of the tensors and values that differ.
    """

    def __init__(self, job: str, step: int, ours: str, theirs: str, differing: list[str]) -> None:
        super().__init__(
            f"job {job!r}, step {step}: two computations differ in {listed(differing)}\n"
            f"  ours   is manifest {ours}\n  theirs is manifest {theirs}\n"
            "  the same step must give the same bits: compare the determinism classes of the two manifests"
        )
        self.ours, self.theirs, self.differing = ours, theirs, differing


def marker_key(job: str, step: int) -> str:
    """Where the marker of a commit lies; the order of the keys is the order of the steps."""
    return f"jobs/{job}/commits/{step:012d}"


def nonfinite(snapshot: Snapshot) -> list[str]:
    """Names of the model's parameters with a NaN or an infinity, and of its buffers with a NaN.

    An infinity in a buffer may be meant: attention masks have them.
    """
    snapshot.arrive()
    kinds = {"model/parameters/": has_nonfinite, "model/buffers/": has_nan}
    return [
        name
        for name, tensor in snapshot.tensors.items()
        for prefix, broken in kinds.items()
        if name.startswith(prefix) and broken(tensor)
    ]


def upload_share(
    store: ObjectStore, snapshot: Snapshot, index: int, count: int, *, overwrite: bool = False
) -> list[str]:
    """Upload this replica's part of the packs, so that `count` replicas of one state share the work.

    Returns:
        The digests of packs number `index`, `index + count`, ...; with `overwrite` of all, see `write_commit`.
    """
    snapshot.arrive()
    parts = packs.partition(snapshot.tensors)
    mine = parts if overwrite else parts[index::count]
    return at_once(lambda pack: put_blob(store, *packs.pieces(pack), overwrite=overwrite), mine, weight)


def write_commit(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    job: str,
    parent: str | None,
    spec: str,
    code: str,
    ests: int,
    determinism: Mapping[str, str],
    generation: int,
    metrics: Mapping[str, float],
    history: bytes | None,
    share: tuple[int, int] = (0, 1),
    patience: float = 0.0,
    overwrite: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Commit:
    """Commit a state. May be repeated at will, by anybody who holds the same state, until it succeeds.

    Args:
        store: where to.
        snapshot: S(t), not to be written to meanwhile.
        job, parent, spec, code, ests, determinism, generation, metrics: see `Manifest`.
        history: JSON lines, a record per step since the parent.
        share: `(index, count)`: this replica's part of the upload; the others are expected to upload theirs.
        patience: seconds to wait for the packs of others before uploading them as well.
        overwrite: send all blobs, of whatever share, even if they are there: heals those that `read_latest` found
            damaged.
        clock, sleep: a monotonic clock and a pause, in seconds.

    Returns:
        The commit with *our* manifest. It is stored, even if the marker names that of somebody who was faster.

    Raises:
        CommitConflictError: the step was committed with another state.
        CorruptError: the marker that is there contradicts its manifest, or the arguments make no valid manifest.
        UnavailableError: the store failed; nothing half done is visible.
    """
    snapshot.arrive()
    index, count = share
    parts = packs.partition(snapshot.tensors)
    ours = set(range(len(parts)) if overwrite else range(index, len(parts), count))
    entries, digests = store_packs(store, parts, ours, overwrite=overwrite)
    missing = wait_for(store, [i for i in range(len(parts)) if i not in ours], entries, patience, clock, sleep)
    for i in missing:
        log.info("commit.pack_adopted", job=job, step=snapshot.step, pack=entries[i].digest)
        again = put_blob(store, *packs.pieces(parts[i]))
        assert again == entries[i].digest, "the snapshot was written to while it was being committed"
    manifest = Manifest(
        format=FORMAT,
        job=job,
        step=snapshot.step,
        parent=parent,
        spec=spec,
        code=code,
        ests=ests,
        determinism=dict(determinism),
        generation=generation,
        state_digest=state_digest(snapshot.skeleton, digests),
        metrics=plain_metrics(metrics),
        history=None if history is None else put_blob(store, history, overwrite=overwrite),
        created=time.time(),
        packs=entries,
        tensors=tensor_entries(parts, digests),
        skeleton=snapshot.skeleton,
    )
    data = encode_manifest(manifest)
    decode_manifest(data, "our own manifest")  # encoding checks no values, and what cannot be read is no commit
    digest = put_blob(store, data, overwrite=overwrite)
    mark(store, manifest, digest)
    log.debug("commit.written", job=job, step=snapshot.step, manifest=digest, state=manifest.state_digest)
    return Commit(snapshot.step, digest, manifest.state_digest)


def read_marker(store: ObjectStore, job: str, step: int) -> Marker | None:
    """The marker of a step, or None if it has not been committed.

    Raises:
        CorruptError: there is something else.
    """
    key = marker_key(job, step)
    try:
        marker = msgspec.json.decode(store.get(key), type=Marker)
    except NotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{store.address}: {key} is damaged: {error}") from error
    if marker.step != step:
        raise CorruptError(f"{store.address}: {key} is damaged: it says step {marker.step}")
    return marker


def read_commit(store: ObjectStore, manifest_digest: str) -> tuple[Manifest, Any]:
    """Read a commit: its manifest and the state as a tree of host tensors.

    Every blob is checked by its hash, every tensor and the state as a whole by the digest of its meaning.

    Raises:
        NotFoundError, CorruptError: a blob is missing or damaged; the message names it.
    """
    manifest = read_manifest(store, manifest_digest)
    return manifest, _read_state(store, manifest)


def read_latest(
    store: ObjectStore,
    manifest_digest: str,
    max_back: int = 8,
    *,
    at: tuple[str, int] | None = None,
    job: str | None = None,
) -> tuple[Manifest, Any, list[str]]:
    """Read a commit, or the nearest of its ancestors that is undamaged and was not collected.

    A fork's history ends with its own first commit.

    Args:
        store: where from.
        manifest_digest: the newest commit.
        max_back: how many damaged commits to pass over, besides those that were collected.
        at: `(job, step)` of the newest commit: its marker leads to the parent if the manifest itself is damaged.
        job: whose history it is; default: that of `at`, or of the newest commit.

    Returns:
        Manifest, state, and what was damaged, one line each; empty if all was well.

    Raises:
        CorruptError: no undamaged commit within reach; it lists the damage.
        UnavailableError: the store does not answer (which is no reason to go back).
    """
    damage: list[str] = []
    digest: str | None = manifest_digest
    tried: set[str] = set()
    job = at[0] if at is not None else job
    notes: frozenset[str] | None = None
    while digest is not None and len(damage) <= max_back:
        tried.add(digest)
        try:
            manifest = read_manifest(store, digest)
        except (CorruptError, NotFoundError) as error:
            damage.append(f"manifest {digest}: {error}")
            digest = _way_around(store, at, tried, damage)
            continue
        if manifest.job != (job := job or manifest.job):
            break
        if notes is not None and is_collected(store, digest, manifest, notes):
            digest = manifest.parent
            continue
        try:
            return manifest, _read_state(store, manifest), damage
        except (CorruptError, NotFoundError) as error:
            notes = read_notes(store, job) if notes is None else notes
            if not (isinstance(error, NotFoundError) and digest in notes):
                damage.append(f"step {manifest.step}: {error}")
            digest = manifest.parent
    listed = "\n  ".join(damage)
    raise CorruptError(
        f"{store.address}: no undamaged commit among the newest {len(damage)}:\n  {listed}\n"
        "  restore these objects from a backup, or start the job anew under another name"
    )


def chain(store: ObjectStore, manifest_digest: str) -> Iterator[tuple[str, Manifest]]:
    """See `outlines.descend`. Raises as `read_manifest`."""
    return descend(store, manifest_digest, read_manifest)


def mark(store: ObjectStore, manifest: Manifest, digest: str) -> None:
    """Make a commit visible, of which everything is stored. Whoever comes second to the same state does no harm.

    Raises:
        CommitConflictError, CorruptError, UnavailableError: as `write_commit` does.
    """
    key = marker_key(manifest.job, manifest.step)
    marker = Marker(manifest.step, digest, manifest.state_digest, manifest.parent)
    unknown = OutcomeUnknownError(f"{store.address}: {key} was there and is gone: commit again")
    try:
        if store.create(key, msgspec.json.encode(marker)):
            return
    except OutcomeUnknownError as error:
        unknown = error
    there = read_marker(store, manifest.job, manifest.step)
    if there is None:
        raise unknown
    if there.state_digest == manifest.state_digest:
        return
    theirs = read_manifest(store, there.manifest)
    if theirs.state_digest != there.state_digest:
        raise CorruptError(f"{store.address}: {key} is damaged: its state digest is not that of its manifest")
    raise CommitConflictError(manifest.job, manifest.step, digest, there.manifest, _differing(manifest, theirs))


def _differing(ours: Manifest, theirs: Manifest) -> list[str]:
    def values(manifest: Manifest) -> dict[str, Any]:
        tensors = {entry.name: entry.digest for entry in manifest.tensors}
        return {**{path: msgspec.json.encode(node) for path, node in trees.leaves(manifest.skeleton)}, **tensors}

    a, b = values(ours), values(theirs)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def _read_state(store: ObjectStore, manifest: Manifest) -> Any:
    members: list[list[TensorEntry]] = [[] for _ in manifest.packs]
    for entry in manifest.tensors:
        members[entry.pack].append(entry)

    def one(number: int) -> dict[str, torch.Tensor]:
        return read_pack(store, manifest.packs[number], members[number])

    parts = at_once(one, range(len(members)), lambda number: manifest.packs[number].length)
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    try:
        tree = trees.restore(manifest.skeleton, tensors)
        found = state_digest(manifest.skeleton, {entry.name: entry.digest for entry in manifest.tensors})
        if found != manifest.state_digest:
            raise CorruptError(f"the state has the digest {found}, its manifest says {manifest.state_digest}")
    except CorruptError as error:
        raise CorruptError(f"{store.address}: job {manifest.job!r}, step {manifest.step}: {error}") from error
    return tree


def _way_around(store: ObjectStore, at: tuple[str, int] | None, tried: set[str], damage: list[str]) -> str | None:
    """Another manifest of the same state, or its parent, as the marker knows them."""
    if at is None:
        return None
    try:
        marker = read_marker(store, *at)
    except CorruptError as error:
        damage.append(str(error))
        return None
    known = [marker.manifest, marker.parent] if marker else []
    return next((digest for digest in known if digest is not None and digest not in tried), None)
