"""What can go from an object store: decided by a pure function from what refers to what, and carried out by `collect`.

Kept are the packs of the commits that `retention.py` keeps, and everything else that any manifest names: manifests,
histories, specifications, code. A commit that is collected loses its packs, unless another one names them too.

It runs beside commits, submits, forks and other collections, and may die at any point:

- An object goes only if nothing names it and it was last written more than the minimum age before we began to look.
  Whoever comes to rely on it later writes it again first (`blobs.FRESH_SECONDS`), which makes it young; whoever relied
  on it before has had at least `SLACK_SECONDS` for its marker, which we then have seen.
- Each object's age is looked at again just before it is removed, so a collection that was stopped for hours and wakes
  takes nothing that has been written meanwhile. What is left is the moment between that look and the removal. It can
  only hurt a commit that just then comes to the bits of one that was given up, and that commit's parent is kept.
- Notes (`collected.py`) are written before the first pack goes. Whatever dies then, the next collection goes on.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ..errors import CorruptError, listed
from .blobs import FRESH_SECONDS
from .collected import write_note
from .references import THREADS, Known, References, read_references
from .retention import Policy, kept, require_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from .objects import ObjectStore, Seen
    from .outlines import Outline

SLACK_SECONDS = 3600.0
"""How long a writer may take from a blob that it relies on to the marker that names it. A listing may lag as well."""

SAFE_AGE = FRESH_SECONDS + SLACK_SECONDS
"""The least minimum age, in seconds, beside anybody who writes."""

DEFAULT_AGE = 6 * 3600.0
"""The usual minimum age, in seconds."""

ROUNDING_SECONDS = 2.0
"""By how much an age may be wrong: some stores tell times in whole seconds."""

PROMPT_SECONDS = 2.0
"""An age that was looked at longer ago than this is looked at again before the object is removed."""

BATCH = 1000
"""Objects that are handed to the threads at a time."""

_BLOB = re.compile(r"blobs/[0-9a-f]{2}/([0-9a-f]{64})")


class JobPart(msgspec.Struct, frozen=True):
    """What becomes of one job's commits.

    Args:
        kept: steps whose states stay. collected: steps whose states go now.
        before: how many have gone before.
    """

    job: str
    kept: list[int]
    collected: list[int]
    before: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What stays and what is given up. Pure data.

    Args:
        marked: digests of the blobs that stay.
        notes: manifests that lose their packs now, by job.
        parts: what becomes of the commits, by job.
        problems: why it cannot be told what a commit needs that is to stay.
        lanes: keys of partials that nobody will ask for any more.
    """

    marked: frozenset[str]
    notes: Mapping[str, list[str]]
    parts: list[JobPart]
    problems: list[str]
    lanes: list[str]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection came to.

    Args:
        deleted: False for a dry run: then this is what would have been removed.
        objects, bytes: removed. kept: blobs that something names.
        young: blobs that nothing names yet, or any more, and that are too young to go.
        manifests: read.
    """

    deleted: bool
    objects: int
    bytes: int
    kept: int
    young: int
    manifests: int
    jobs: list[JobPart] = []
    problems: list[str] = []


def decide(
    found: References, known: Collection[Known], policy: Policy, only: Collection[str] | None = None
) -> Decision:
    """What is to be kept, and which commits are given up.

    Args:
        found: what refers to what.
        known: all jobs that the key-value store knows. The commits of another one are all kept: it may belong to
            another key-value store, or to one that was lost.
        policy: which commits to keep.
        only: the jobs that it is for; None: all. The commits of the others are all kept.

    Raises:
        UserError: a rule names a metric that no commit has.
    """
    by_job: dict[str, dict[int, list[str]]] = {}
    for digest, outline in found.outlines.items():
        by_job.setdefault(outline.job, {}).setdefault(outline.step, []).append(digest)
    require_metrics(policy, {name for outline in found.outlines.values() for name in outline.metrics})
    jobs = {one.job: one for one in known}
    needed = {point for one in known for point in one.inputs}
    marked = {digest for one in known for digest in (*one.blobs, *one.heads)}
    marked |= found.submitted
    marked |= {marker.manifest for steps in found.markers.values() for marker in steps.values()}
    notes: dict[str, list[str]] = {}
    parts = []
    problems = [why for name, why in found.unreadable.items() if name.startswith("marker ")]
    for job, steps in sorted(by_job.items()):
        noted = found.noted.get(job, set())
        mine = policy if job in jobs and (only is None or job in only) else Policy()
        staying = _staying(found.outlines, steps, noted, jobs.get(job), mine)
        staying |= {step for step in steps if (job, step) in needed and not noted.issuperset(steps[step])}
        for step, manifests in steps.items():
            for digest in manifests:
                marked |= _named(digest, found.outlines[digest], packs=step in staying)
        gone = {step for step in steps if noted.issuperset(steps[step])} - staying
        going = sorted(steps.keys() - staying - gone)
        parts.append(JobPart(job, sorted(staying), going, len(gone)))
        if going:
            notes[job] = sorted({digest for step in going for digest in steps[step]} - noted)
    all_noted = set[str]().union(*found.noted.values())
    problems += [
        why for name, why in found.unreadable.items() if not name.startswith("marker ") and name not in all_noted
    ]
    marked |= {name for name in found.unreadable if not name.startswith("marker ")}
    return Decision(frozenset(marked), notes, parts, problems, _idle_lanes(found, jobs))


def collect(
    store: ObjectStore,
    known: Callable[[], Collection[Known]],
    policy: Policy,
    *,
    only: Collection[str] | None = None,
    min_age: float = DEFAULT_AGE,
    delete: bool = False,
    despite: bool = False,
    show: Callable[[int, str], None] = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
) -> Collected:
    """Find what can go, and remove it if that is wanted.

    Args:
        store: what to collect in.
        known: asks the key-value store; see `decide`.
        policy, only: see `decide`.
        min_age: seconds; less than `SAFE_AGE` only while nobody writes to the store.
        delete: remove. Otherwise nothing is changed.
        despite: go on although a manifest cannot be read, so that what only that one names is lost.
        show: called now and then with how many objects were looked at, and what for.
        clock: monotonic, in seconds.

    Raises:
        UserError: see `decide`.
        CorruptError: a manifest cannot be read, so that it is not known what its commit needs. Nothing was removed.
        UnavailableError: a store failed; what was removed could go.
    """
    began = clock()
    jobs = known()
    found = read_references(store, jobs, lambda count: show(count, "reading manifests"))
    decision = decide(found, jobs, policy, only)
    if decision.problems and delete and not despite:
        raise CorruptError(
            f"{len(decision.problems)} object(s) that name others cannot be read, so nothing was removed:\n  "
            + listed(decision.problems, 4)
            + "\n  restore them from a backup (easyscale verify JOB says more), or give up what only they name:"
            " --despite-damage"
        )
    if delete:
        for job, manifests in decision.notes.items():
            write_note(store, job, manifests)
    sweep = _Sweep(
        store, decision.marked, lambda: min_age + ROUNDING_SECONDS + clock() - began, clock, delete=delete, show=show
    )
    lanes = set(decision.lanes)
    sweep.run(iter([seen for _, _, seen in found.lanes if seen.key in lanes]))
    for prefix in ("selftest/", "blobs/"):
        sweep.run(store.survey(prefix))
    return Collected(
        deleted=delete,
        objects=sweep.objects,
        bytes=sweep.bytes,
        kept=sweep.kept,
        young=sweep.young,
        manifests=len(found.outlines),
        jobs=decision.parts,
        problems=decision.problems,
    )


def _staying(
    outlines: Mapping[str, Outline], steps: Mapping[int, list[str]], noted: Collection[str], known: Known | None,
    policy: Policy,
) -> set[int]:  # fmt: skip
    """The steps of a job that keep their packs."""
    heads = {outlines[head].step for head in known.heads if head in outlines} if known is not None else set()
    newest = max(heads, default=-1)
    there = {step for step, manifests in steps.items() if not set(manifests) <= set(noted)} | (heads & steps.keys())
    always = heads | {step for step in there if step > newest}  # beyond the head: about to be published, perhaps
    always |= {step for step in there if any(_begins(outlines, outlines[digest]) for digest in steps[step])}
    metrics = {step: {} if step not in steps else _metrics(outlines[steps[step][0]]) for step in there}
    return kept(metrics, policy, always)


def _begins(outlines: Mapping[str, Outline], outline: Outline) -> bool:
    """Whether a job's history begins with a commit that cannot be computed from what is before it: that of a fork."""
    if outline.parent is None:
        return False
    parent = outlines.get(outline.parent)
    return parent is None or parent.job != outline.job


def _metrics(outline: Outline) -> dict[str, float]:
    return {name: float(value) for name, value in outline.metrics.items()}


def _named(digest: str, outline: Outline, *, packs: bool) -> set[str]:
    named = {digest, outline.spec, outline.code}
    named |= {outline.history} if outline.history is not None else set()
    named |= {outline.parent} if outline.parent is not None else set()
    return named | ({pack.digest for pack in outline.packs} if packs else set())


def _idle_lanes(found: References, jobs: Mapping[str, Known]) -> list[str]:
    return [
        seen.key
        for job, generation, seen in found.lanes
        if job in jobs and (jobs[job].over or generation < jobs[job].generation)
    ]


@dataclass(slots=True)
class _Sweep:
    """Removing what may go among objects that a store lists, a batch at a time."""

    store: ObjectStore
    marked: frozenset[str]
    old: Callable[[], float]
    clock: Callable[[], float]
    delete: bool = field(kw_only=True)
    show: Callable[[int, str], None] = field(kw_only=True)
    objects: int = 0
    bytes: int = 0
    kept: int = 0
    young: int = 0
    looked: int = 0

    def run(self, listing: Iterator[Seen]) -> None:
        """Go through a listing. Objects that are no blobs are taken to be named by nobody."""
        with ThreadPoolExecutor(THREADS) as pool:
            while batch := [*islice(listing, BATCH)]:
                self.looked += len(batch)
                self.show(self.looked, "looking for what can go")
                going = [seen for seen in batch if self._may_go(seen)]
                gone = pool.map(self._remove, going) if self.delete else [True] * len(going)
                for seen, removed in zip(going, gone, strict=True):
                    self.objects += removed
                    self.bytes += seen.size if removed else 0
                    self.young += not removed

    def _may_go(self, seen: Seen) -> bool:
        match = _BLOB.fullmatch(seen.key)
        if match is None and seen.key.startswith("blobs/"):
            return False  # not ours
        if match is not None and match[1] in self.marked:
            self.kept += 1
            return False
        if seen.age <= self.old():
            self.young += 1
            return False
        return True

    def _remove(self, seen: Seen) -> bool:
        """Whether it was removed: not if somebody has written it again."""
        while True:
            began = self.clock()
            now = self.store.look(seen.key)
            if now is not None and now.age <= self.old():
                return False
            if self.clock() - began < PROMPT_SECONDS:
                self.store.delete(seen.key)
                return True
