"""Histories of jobs, read from the object store in the background and kept: no request ever waits for the store.

A commit never changes, so only those since the last reading are read, newest first. What has been read so far can be
shown meanwhile, and says that it is not complete.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from ...errors import CorruptError, EasyScaleError, NotFoundError, headline
from .. import history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...storage.objects import ObjectStore
    from ..history import Commit

log = structlog.get_logger()

KEPT_JOBS = 64
"""Histories kept in memory: those looked at last."""

KEPT_STEPS = 1_000_000
"""Steps of a job that are kept, the newest ones: 16 bytes each."""

BATCH = 64
"""Commits whose records are fetched together, and after which the rest can be seen."""

READERS = 8
"""Records that are fetched at the same time."""

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Span:
    """The steps that lead to a commit, by the number of steps done after each.

    Args:
        first: the first of these numbers. loss, lr: of each step (NaN: none).
    """

    commit: Commit
    first: int
    loss: array[float]
    lr: array[float]


@dataclass(frozen=True, slots=True)
class Past:
    """What has been read of a job.

    Args:
        spans: oldest first. head: the manifest that it was read from.
        complete: nothing is left to be read. trouble: why it cannot be read further; "": it can.
        older: steps before the first span are left out, since there are more than `KEPT_STEPS`.
    """

    spans: tuple[Span, ...] = ()
    head: str = ""
    complete: bool = False
    trouble: str = ""
    older: bool = False

    @property
    def commits(self) -> Iterator[Commit]:
        """Newest first."""
        return (span.commit for span in reversed(self.spans))


@dataclass(slots=True)
class _Job:
    past: Past = field(default_factory=Past)
    reading: bool = False


class Archive:
    """Histories by job.

    Args:
        store: where the commits are.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._walkers = ThreadPoolExecutor(4, "history")
        self._readers = ThreadPoolExecutor(READERS, "records")
        self._pending: set[Future[None]] = set()
        self._closed = False

    def of(self, job: str, head: str | None) -> Past:
        """What is known of a job whose newest commit has this manifest; the rest is being read from now on."""
        if head is None:
            return Past(complete=True)
        with self._lock:
            entry = self._jobs.setdefault(job, _Job())
            self._jobs.move_to_end(job)
            while len(self._jobs) > KEPT_JOBS:
                self._jobs.popitem(last=False)
            past = entry.past
            if past.head == head and past.complete:
                return past
            if not entry.reading and not self._closed:
                entry.reading = True
                walk = self._walkers.submit(self._read, job, entry, head)
                self._pending.add(walk)
                walk.add_done_callback(self._pending.discard)
            # It is whole as far as it goes, and the newest steps come in a moment.
            return past

    def settle(self) -> None:
        """Wait until nothing is being read."""
        with self._lock:
            pending = list(self._pending)
        wait(pending)

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._walkers.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)

    def _read(self, job: str, entry: _Job, head: str) -> None:
        try:
            for past in self._walk(job, entry.past, head):
                entry.past = past
        except EasyScaleError as error:  # the next one who asks has it tried again
            log.warning("serve.history_unread", job=job, error=str(error))
            entry.past = replace(entry.past, complete=False, trouble=headline(error))
        finally:
            entry.reading = False

    def _walk(self, job: str, before: Past, head: str) -> Iterator[Past]:
        """Read from the newest commit down to what is known already; what is known on the way."""
        known = {span.commit.manifest: place for place, span in enumerate(before.spans)} if before.complete else {}
        fresh: list[Span] = []
        batch: list[Commit] = []
        shown, steps = 0, 0
        past = Past(head=head, complete=True)
        try:
            for commit in history.commits(self._store, head):
                if commit.manifest in known:
                    kept = before.spans[: known[commit.manifest] + 1]
                    past = replace(past, spans=kept, older=before.older, trouble=before.trouble)
                    break
                if self._closed:
                    return
                if steps >= KEPT_STEPS:
                    past = replace(past, older=True)
                    break
                batch.append(commit)
                if len(batch) == BATCH:
                    fresh += self._spans(job, batch)
                    steps, batch = sum(len(span.loss) for span in fresh), []
                    if not known and len(fresh) >= 2 * shown:  # not each time: all of it is copied
                        shown = len(fresh)
                        yield Past(tuple(reversed(fresh)), head)
        except (CorruptError, NotFoundError) as error:
            log.warning("serve.history_damaged", job=job, error=str(error))
            past = replace(past, trouble=headline(error))
        fresh += self._spans(job, batch)
        yield replace(past, spans=(*past.spans, *reversed(fresh)))

    def _spans(self, job: str, batch: list[Commit]) -> list[Span]:
        return list(self._readers.map(lambda commit: self._span(job, commit), batch))

    def _span(self, job: str, commit: Commit) -> Span:
        try:
            steps = history.steps(self._store, commit)
        except (CorruptError, NotFoundError) as error:  # a gap in the curve is all that comes of it
            log.warning("serve.record_damaged", job=job, error=str(error))
            steps = []
        lrs = (step.lr[0] if step.lr else None for step in steps)
        return Span(
            commit=commit,
            first=steps[0].step + 1 if steps else commit.step,
            loss=array("d", (NAN if step.loss is None else step.loss for step in steps)),
            lr=array("d", (NAN if lr is None else lr for lr in lrs)),
        )
