"""What refers to what in an object store: all jobs' markers, the manifests they lead to, and what these name.

Everything is reached from markers and from what the caller knows of heads; no manifest is found by listing blobs. Only
the outline of a manifest is kept, so ten thousand commits fit into memory.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptError, NotFoundError
from .collected import read_note
from .commits import Marker, read_marker
from .outlines import Outline, read_outline
from .submitted import read_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .objects import ObjectStore, Seen

THREADS = 16
"""Requests under way at a time: what hides the latency of a store that is asked for thousands of small objects."""

_MARKER = re.compile(r"jobs/([^/]+)/commits/([0-9]{12})")
_NOTE = re.compile(r"jobs/([^/]+)/collected/[0-9a-f]{64}")
_SUBMITTED = re.compile(r"jobs/([^/]+)/submitted")
_LANE = re.compile(r"jobs/([^/]+)/lane/([0-9]+)/.+")


class Known(NamedTuple):
    """What is known of a job outside the object store.

    Args:
        heads: digests of the manifests that it may go on from: its head, and the ancestor of a damaged one.
        blobs: digests of its specification and its code.
        generation: the current one. over: nothing of it runs.
        inputs: commits of other jobs that it starts from: job and step.
    """

    job: str
    heads: tuple[str, ...]
    blobs: tuple[str, ...]
    generation: int
    over: bool
    inputs: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class References:
    """All that was found.

    Args:
        markers: by job and step.
        outlines: of all manifests, by digest. unreadable: digest or key of what could not be read, and why.
        submitted: digests of the specifications and the code that jobs were last submitted with.
        noted: manifests that were collected before (see `collected.py`), by job.
        lanes: transient partials that lie about: (job, generation, what the store says of it).
    """

    markers: dict[str, dict[int, Marker]] = field(default_factory=dict)
    outlines: dict[str, Outline] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    submitted: set[str] = field(default_factory=set)
    noted: dict[str, set[str]] = field(default_factory=dict)
    lanes: list[tuple[str, int, Seen]] = field(default_factory=list)


def read_references(
    store: ObjectStore, known: Iterable[Known], looked: Callable[[int], None] = lambda _: None
) -> References:
    """Read all markers, and follow them and the known heads to all manifests.

    Args:
        store: where they are.
        known: see `Known`.
        looked: called now and then with how many manifests were read.

    Raises:
        UnavailableError: the store failed.
    """
    found = References()
    markers: list[tuple[str, int]] = []
    notes: list[tuple[str, str]] = []
    submissions: list[str] = []
    for seen in store.survey("jobs/"):
        if match := _MARKER.fullmatch(seen.key):
            markers.append((match[1], int(match[2])))
        elif match := _NOTE.fullmatch(seen.key):
            notes.append((match[1], seen.key))
        elif _SUBMITTED.fullmatch(seen.key):
            submissions.append(seen.key)
        elif match := _LANE.fullmatch(seen.key):
            found.lanes.append((match[1], int(match[2]), seen))
    with ThreadPoolExecutor(THREADS) as pool:
        for (job, step), marker in zip(markers, pool.map(lambda at: _marker(store, *at), markers), strict=True):
            if isinstance(marker, Marker):
                found.markers.setdefault(job, {})[step] = marker
            elif marker is not None:
                found.unreadable[f"marker {job} {step}"] = marker
        for (job, _), manifests in zip(notes, pool.map(lambda note: read_note(store, note[1]), notes), strict=True):
            found.noted.setdefault(job, set()).update(manifests)
        for digests in pool.map(lambda key: read_digests(store, key), submissions):
            found.submitted |= digests
        _follow(store, pool, found, {head for one in known for head in one.heads}, looked)
    return found


def _follow(
    store: ObjectStore, pool: ThreadPoolExecutor, found: References, wanted: set[str], looked: Callable[[int], None]
) -> None:
    """Read the outlines of these manifests, of those that markers name, and of all their ancestors."""
    for marker in (marker for steps in found.markers.values() for marker in steps.values()):
        wanted |= {marker.manifest} | ({marker.parent} if marker.parent is not None else set())
    while wanted:  # each round goes one generation up; all but the first are short
        order, wanted = sorted(wanted), set()
        for digest, outline in zip(order, pool.map(lambda digest: _outline(store, digest), order), strict=True):
            if not isinstance(outline, Outline):
                found.unreadable[digest] = outline
                continue
            found.outlines[digest] = outline
            wanted |= {outline.parent} if outline.parent is not None else set()
        wanted -= found.outlines.keys() | found.unreadable.keys()
        looked(len(found.outlines))


def _marker(store: ObjectStore, job: str, step: int) -> Marker | str | None:
    try:
        return read_marker(store, job, step)
    except CorruptError as error:
        return str(error)


def _outline(store: ObjectStore, digest: str) -> Outline | str:
    try:
        return read_outline(store, digest, Outline)
    except (CorruptError, NotFoundError) as error:
        return str(error)
