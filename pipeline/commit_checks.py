"""What lies in the store of a job's commits, looked at without running anything: the chain, the markers, every blob.

A commit that was collected (`storage/collected.py`) lacks its packs on purpose, and everything else of it is checked.
Each thing that is not as it should be is one `Finding`, with the tensors that it holds. Reading never stops at the
first: a commit that is damaged is gone around.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import CorruptError, NotFoundError, listed
from ..storage import commits
from ..storage.blobs import blob_digest, blob_key, get_blob
from ..storage.collected import is_collected, read_notes
from ..storage.digest import state_digest
from ..storage.manifests import Manifest, read_manifest
from ..storage.transfers import at_once
from .messages import Base

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.objects import ObjectStore


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something stored that is not as it should be.

    Args:
        what: `manifest`, `chain`, `marker`, `pack`, `history`, `spec` or `code`.
        step: of the commit that it belongs to.
        key: of the object. problem: in words.
        tensors: names of those that lie in it.
    """

    what: str
    step: int
    key: str
    problem: str
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        holds = f"; it holds {listed(self.tensors)}" if self.tensors else ""
        return f"commit {self.step}: {self.what} {self.key} {self.problem}{holds}"


class Stop(NamedTuple):
    """A commit as a place where spans begin and end; the initial state has no manifest.

    Args:
        base: its step and manifest. state_digest: empty for the initial state.
        spec, code: digests of what led here. history: digest of the record since the stop before.
        determinism: the class that computed it. parent: digest of the manifest before, None for the initial state.
        collected: its state cannot be loaded any more.
    """

    base: Base
    state_digest: str = ""
    spec: str = ""
    code: str = ""
    history: str | None = None
    determinism: dict[str, str] = {}  # noqa: RUF012 - never written to
    parent: str | None = None
    collected: bool = False

    @property
    def step(self) -> int:
        """The t of S(t)."""
        return self.base.step


INITIAL = Stop(Base())


def markers(store: ObjectStore, job: str) -> list[int]:
    """Steps that have a marker, in order. A listing may lag: then the newest are missing."""
    prefix = f"jobs/{job}/commits/"
    return sorted(int(name) for name in (key.removeprefix(prefix) for key in store.list(prefix)) if name.isdigit())


def recorded(store: ObjectStore, history: str) -> dict[int, str]:
    """What the blob of a history says of each step, as it was written: a line of JSON.

    Raises:
        CorruptError: it is damaged, or no history. NotFoundError: it is missing.
    """
    try:
        lines = get_blob(store, history).decode().splitlines()
        return {msgspec.json.decode(line)["step"]: line for line in lines}
    except (msgspec.DecodeError, ValueError, LookupError, TypeError) as error:
        raise CorruptError(f"{store.address}: {blob_key(history)} is no record of steps: {error}") from error


def nearest(store: ObjectStore, job: str, head: Base, last: int) -> Base:
    """The first commit at `last` or after it."""
    steps = markers(store, job) if last < head.step else []
    place = bisect_left(steps, last)
    while place < len(steps) and steps[place] < head.step:
        marker = _marker(store, job, steps[place])
        if marker is not None:
            return Base(step=marker.step, manifest=marker.manifest)
        place += 1
    return head


def examine(
    store: ObjectStore, job: str, head: Base, first: int, looked: Callable[[int], None]
) -> tuple[list[Stop], list[Finding]]:
    """Go down the chain from a commit to the nearest one at `first` or before it whose state is there, and check
    everything on the way.

    Args:
        head: where to begin. looked: called with the step of each commit that was looked at.

    Returns:
        The commits from the oldest to the newest, and what is wrong. If there is none before, `INITIAL` is the oldest,
        or the commit that a fork began with.
    """
    stops: list[Stop] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    notes = read_notes(store, job)
    digest, most = head.manifest, head.step
    while digest is not None:
        seen.add(digest)
        try:
            manifest = read_manifest(store, digest)
        except (CorruptError, NotFoundError) as error:
            findings.append(_finding("manifest", _step_of(store, job, digest, most), blob_key(digest), error))
            digest = _around(store, job, most, seen)
            continue
        if stops and manifest.job != job:  # where it was forked
            return stops[::-1], findings
        if wrong := _out_of_place(manifest, job, stops):
            findings.append(Finding(what="chain", step=manifest.step, key=blob_key(digest), problem=wrong))
            break
        base = Base(step=manifest.step, manifest=digest)
        collected = is_collected(store, digest, manifest, notes)
        stops.append(
            Stop(
                base,
                manifest.state_digest,
                manifest.spec,
                manifest.code,
                manifest.history,
                manifest.determinism,
                manifest.parent,
                collected,
            )
        )
        findings += _check(store, manifest, digest, seen)
        findings += [] if collected else _check_packs(store, manifest, seen)
        looked(manifest.step)
        if manifest.step <= first and not collected:
            return stops[::-1], findings
        digest, most = manifest.parent, manifest.step - 1
    return [INITIAL, *stops[::-1]], findings


def _out_of_place(manifest: Manifest, job: str, stops: list[Stop]) -> str:
    if manifest.job != job:
        return f"is of job {manifest.job!r}"
    if stops and manifest.step >= stops[-1].step:
        return f"is of step {manifest.step} and parent of {stops[-1].step}"
    return ""


def _check(store: ObjectStore, manifest: Manifest, digest: str, seen: set[str]) -> list[Finding]:
    """Everything that belongs to one commit but its packs; blobs that were seen before are not read again."""
    step = manifest.step
    findings = []
    found = state_digest(manifest.skeleton, {entry.name: entry.digest for entry in manifest.tensors})
    if found != manifest.state_digest:
        problem = f"contradicts itself: it says state {manifest.state_digest}, its tensors make {found}"
        findings.append(Finding(what="manifest", step=step, key=blob_key(digest), problem=problem))
    findings += _check_marker(store, manifest)
    blobs = {"spec": manifest.spec, "code": manifest.code, "history": manifest.history}
    for what, blob in blobs.items():
        if blob is not None and blob not in seen:
            seen.add(blob)
            try:
                recorded(store, blob) if what == "history" else get_blob(store, blob)
            except (CorruptError, NotFoundError) as error:
                findings.append(_finding(what, step, blob_key(blob), error))
    return findings


def _check_packs(store: ObjectStore, manifest: Manifest, seen: set[str]) -> list[Finding]:
    """Its packs, but for those that were seen before."""
    fresh = [i for i, pack in enumerate(manifest.packs) if pack.digest not in seen]
    seen.update(pack.digest for pack in manifest.packs)
    found_in_packs = at_once(lambda i: _check_pack(store, manifest, i), fresh, lambda i: manifest.packs[i].length)
    return [finding for finding in found_in_packs if finding is not None]


def _check_pack(store: ObjectStore, manifest: Manifest, number: int) -> Finding | None:
    key = blob_key(manifest.packs[number].digest)
    try:
        found = blob_digest(store.view(key))
        if found == manifest.packs[number].digest:
            return None
        error = f"is damaged: its bytes have the digest {found}"
    except NotFoundError:
        error = "is missing"
    names = tuple(entry.name for entry in manifest.tensors if entry.pack == number)
    return Finding(what="pack", step=manifest.step, key=key, problem=error, tensors=names)


def _check_marker(store: ObjectStore, manifest: Manifest) -> list[Finding]:
    key = commits.marker_key(manifest.job, manifest.step)
    try:
        marker = commits.read_marker(store, manifest.job, manifest.step)
    except CorruptError as error:
        return [_finding("marker", manifest.step, key, error)]
    if marker is None:
        return [Finding(what="marker", step=manifest.step, key=key, problem="is missing")]
    if marker.state_digest != manifest.state_digest:
        problem = f"says state {marker.state_digest}, the chain has {manifest.state_digest}"
        return [Finding(what="marker", step=manifest.step, key=key, problem=problem)]
    return []


def _finding(what: str, step: int, key: str, error: Exception) -> Finding:
    problem = "is missing" if isinstance(error, NotFoundError) else str(error).partition(f"{key} ")[2] or str(error)
    return Finding(what=what, step=step, key=key, problem=problem)


def _around(store: ObjectStore, job: str, most: int, seen: set[str]) -> str | None:
    """The newest commit at step `most` or before it that has another manifest than those that were tried."""
    for step in reversed([known for known in markers(store, job) if known <= most]):
        marker = _marker(store, job, step)
        if marker is not None and marker.manifest not in seen:
            return marker.manifest
    return None


def _step_of(store: ObjectStore, job: str, digest: str, most: int) -> int:
    """The step of a manifest that cannot be read, as the markers tell it; at most `most`."""
    newest = max((known for known in markers(store, job) if known <= most), default=most)
    marker = _marker(store, job, newest)
    return newest if marker is not None and marker.manifest == digest else most


def _marker(store: ObjectStore, job: str, step: int) -> commits.Marker | None:
    try:
        return commits.read_marker(store, job, step)
    except CorruptError:
        return None
