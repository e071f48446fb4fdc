"""The loader processes of a runner: one pool that fetches batches ahead for all its ESTs, in the order they will run.

Each item is seeded by (job seed, epoch, sample) and each collation by its samples, so neither the number of processes
nor what was fetched before reaches the bits. Which samples make a batch is for `data.py` to say.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ..errors import ProcessDiedError, RemoteError, shown
from .data import epoch_of, item_error, sample_ids, split_evenly, told
from .randomness import SampleSeeds, derive, derive_samples, seed_collate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .spec import JobSpec

    Piece = tuple[int, Any]
    """One micro-batch: how many samples it has, and what `collate` made of them."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What a loader process is asked for."""

    step: int
    est: int
    epoch: int
    pieces: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What it gives back. An error is sent as text: its type may not exist, or not be picklable, over here."""

    step: int
    est: int
    pieces: list[Piece]
    error: str = ""


class _Requests:
    """The order in which the ESTs run: by step, then by rank. Iterated anew after each `begin`."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.begin: tuple[int, range] = (0, range(0))

    def __iter__(self) -> Iterator[_Request]:
        first, ests = self.begin
        for step in range(first, self._spec.total_steps):
            epoch, _ = epoch_of(self._spec, step)
            for est in ests:
                pieces = split_evenly(sample_ids(self._spec, step, est), self._spec.micro_batches)
                yield _Request(step, est, epoch, pieces)


class _Batches(Dataset[_Answer]):
    """The user's dataset, indexed by request. Runs in the loader processes."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._seeds = SampleSeeds()
        self._collate = collate

    def __getitem__(self, request: _Request) -> _Answer:
        try:
            with _one_thread():
                pieces = [(len(ids), self._batch(request.epoch, ids)) for ids in request.pieces]
        except RemoteError as error:
            where = f"step {request.step}, EST {request.est}: "
            return _Answer(request.step, request.est, [], error=where + str(error))
        return _Answer(request.step, request.est, pieces)

    def _batch(self, epoch: int, ids: list[int]) -> Any:
        items = self._items(epoch, ids)
        if self._collate is not default_collate:  # which draws no random numbers
            seed_collate(self._seed, epoch, tuple(ids))
        try:
            return self._collate(items)
        except Exception as error:
            raise RemoteError(f"collating the samples {shown(ids)} (epoch {epoch}) raised {told(error)}") from error

    def _items(self, epoch: int, ids: list[int]) -> list[Any]:
        """The items, each as if all generators had been seeded for it."""
        dataset, values = self._dataset, derive_samples(self._seed, epoch, ids)
        while True:
            seeders = self._seeds.begin()
            items, failure = [], None
            try:
                for sample, value in zip(ids, values, strict=True):
                    for seed in seeders:
                        seed(value)
                    items.append(dataset[sample])
            except Exception as error:  # noqa: BLE001 - whatever a dataset raises
                failure = item_error(ids[len(items)], epoch, error)
            if not self._seeds.end():
                continue  # an item drew from a generator that none did before
            if failure is not None:
                raise failure
            return items


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in loader processes, so that sums inside an item come out alike without them.

    Nothing is set where one thread is all there is: to set it costs a step of a small net 4 % (measured).
    """
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def _settle(_worker: int) -> None:
    """In a new loader process: what asks to stop is for the agent, and a handler of the runner's is not ours.

    Service managers ask all processes at once, and a step that is to be finished needs its samples. A loader process
    ends with its runner: when it is told so, when it sees it gone, or with the runner's group.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Undo the SIGCHLD handler that DataLoader installs: it raises in the middle of whatever the main thread does,
    even of an update of the parameters. `next` notices a dead process too, within five seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # then DataLoader installs none
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)


def _as_it_is(answer: Any) -> Any:
    return answer


class Loader:
    """One pool of `spec.loaders` processes that fetches ahead for all ESTs of a runner, in the order they will run.

    Without processes the items are fetched when asked for, in this process: then the global generators are left in
    whatever state, so whoever draws from them seeds them first.

    Args:
        dataset: map-style.
        spec: the job.
        collate: list of samples -> batch; default torch's `default_collate`.
        pin_memory: copy batches to page-locked memory, from where a GPU reads while it computes.
    """

    def __init__(
        self,
        dataset: Any,
        spec: JobSpec,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        pin_memory: bool = False,
    ) -> None:
        self._batches = _Batches(dataset, spec.seed, collate or default_collate)
        self._requests = _Requests(spec)
        self._spec = spec
        self._pin_memory = pin_memory
        self._pool: DataLoader[_Answer] | None = None
        self._answers: Iterator[_Answer] | None = None
        self._ests = range(0)
        self._next = (-1, -1)

    def start(self, step: int, ests: range) -> None:
        """Make `(step, ests.start)` what `next` gives next; nothing happens if it is already.

        The processes are kept; what they fetched for other steps and ESTs is thrown away.
        """
        if not ests or (self._answers is not None and ests == self._ests and self._next == (step, ests.start)):
            return
        self._requests.begin = (step, ests)
        self._ests = ests
        self._next = (step, ests.start)
        try:
            if self._spec.loaders == 0 and not self._pin_memory:  # a DataLoader would cost 50 microseconds a batch
                self._answers = map(self._batches.__getitem__, self._requests)
                return
            if self._pool is None:
                self._pool = self._new_pool()
            with _own_child_handler():
                self._answers = iter(self._pool)
        except BaseException:
            self.close()
            raise

    def _new_pool(self) -> DataLoader[_Answer]:
        some = self._spec.loaders > 0
        return DataLoader(
            self._batches,
            batch_size=None,
            sampler=self._requests,
            collate_fn=_as_it_is,
            num_workers=self._spec.loaders,
            multiprocessing_context="fork" if some else None,
            persistent_workers=some,
            worker_init_fn=_settle,
            pin_memory=self._pin_memory,
            generator=torch.Generator().manual_seed(derive(self._spec.seed, "loader")),
        )

    def next(self, step: int, est: int) -> list[Piece]:
        """The micro-batches of one EST at one step.

        Raises:
            RemoteError: the dataset or `collate` raised.
            ProcessDiedError: a loader process died.
            ValueError: it is not this EST's and step's turn, or the job ends before that step.
        """
        if self._answers is None or self._next != (step, est):
            raise ValueError(f"step {step} of EST {est} was asked for, but {self._next} is next")
        try:
            answer = next(self._answers, None)
        except (RuntimeError, OSError, EOFError) as error:
            # The dataset's own errors are answers, so this is the pool's. What a dead process had fetched cannot be
            # read either: its memory is handed over on request.
            self.close()
            raise ProcessDiedError(f"a loader process died (out of memory, or killed?): {error}") from error
        except BaseException:
            self.close()
            raise
        if answer is None:
            raise ValueError(f"step {step} was asked for, but the job ends after {self._spec.total_steps} steps")
        if answer.error:
            self._answers = None
            raise RemoteError(answer.error)
        assert (answer.step, answer.est) == (step, est)
        self._next = (step, est + 1) if est + 1 in self._ests else (step + 1, self._ests.start)
        return answer.pieces

    def close(self) -> None:
        """End the loader processes. A later `start` makes new ones."""
        self._answers = None
        self._pool = None
