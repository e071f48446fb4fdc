"""Order of samples, loader processes, and the dataset's fingerprint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import torch
import toys
from easyscale.errors import ProcessDiedError, RemoteError, SpecError
from easyscale.pipeline.data import fingerprint, order, sample_ids, split_evenly
from easyscale.pipeline.loader import Loader
from easyscale.pipeline.randomness import seed_sample
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Ids(Dataset[int]):
    """Items that are their own number."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Where(Ids):
    """Items that say which process made them."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Damaged(Ids):
    """Sample 7 cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise OSError("file 7.png is truncated")
        return index


@pytest.fixture
def loaders() -> Iterator[list[Loader]]:
    made: list[Loader] = []
    yield made
    for loader in made:
        loader.close()


@settings(max_examples=60)
@given(st.data())
def test_every_est_sees_what_distributed_sampler_and_data_loader_give_its_rank(data: st.DataObject) -> None:
    ests = data.draw(st.integers(1, 7))
    batch_size = data.draw(st.integers(1, 5))
    job = toys.spec(
        ests=ests,
        batch_size=batch_size,
        samples=ests * batch_size + data.draw(st.integers(0, 40)),
        drop_last=data.draw(st.booleans()),
        shuffle=data.draw(st.booleans()),
    )
    for est in range(ests):
        sampler = DistributedSampler(
            Ids(job.samples), ests, est, shuffle=job.shuffle, seed=job.seed, drop_last=job.drop_last
        )
        loader = DataLoader(Ids(job.samples), batch_size, sampler=sampler, drop_last=job.drop_last)
        step = 0
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches = [batch.tolist() for batch in loader]
            assert len(batches) == job.steps_per_epoch
            assert order(job, epoch)[est::ests] == list(sampler)
            for batch in batches:
                assert sample_ids(job, step, est) == batch
                step += 1


def test_an_epoch_has_every_sample_once_and_pads_with_its_first() -> None:
    job = toys.spec(samples=50)
    first = [i for step in range(job.steps_per_epoch) for est in range(4) for i in sample_ids(job, step, est)]
    counts = Counter(first)
    assert set(counts) == set(range(50))
    assert sorted(i for i, n in counts.items() if n == 2) == sorted(order(job, 0)[:2])


@given(st.integers(1, 30), st.integers(1, 8))
def test_micro_batches_are_even_and_never_empty(samples: int, pieces: int) -> None:
    found = split_evenly(list(range(samples)), pieces)
    assert [i for piece in found for i in piece] == list(range(samples))
    lengths = [len(piece) for piece in found]
    assert len(found) == min(samples, pieces)
    assert max(lengths) - min(lengths) <= 1


def batches(loader: Loader, ests: range, steps: range) -> list[torch.Tensor]:
    loader.start(steps.start, ests)
    return [piece[1][0].clone() for step in steps for est in ests for piece in loader.next(step, est)]


@pytest.mark.parametrize("number", [1, 3])
def test_the_number_of_loader_processes_never_reaches_the_items(number: int, loaders: list[Loader]) -> None:
    loaders += [Loader(toys.Images(), toys.spec(loaders=n, micro_batches=2)) for n in (0, number)]
    here, there = (batches(loader, range(1, 3), range(3, 7)) for loader in loaders)
    assert len(here) > 8
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_augmentation_differs_by_epoch_and_sample_but_not_by_what_was_drawn_before(loaders: list[Loader]) -> None:
    loaders.append(Loader(toys.Images(), toys.spec(ests=1, batch_size=50, shuffle=False)))
    random.seed(1)
    first = batches(loaders[0], range(1), range(2))
    random.seed(2)
    again = batches(loaders[0], range(1), range(2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])
    noise = first[0] - again[1]
    assert len({float(x) for x in noise[:, 0, 0, 0]}) > 40


def test_collate_gets_the_items_in_order_and_random_numbers_of_its_own(loaders: list[Loader]) -> None:
    def collate(items: list[int]) -> tuple[list[int], float]:
        return items, random.random()

    loaders += [Loader(Ids(50), toys.spec(loaders=number), collate) for number in (0, 2)]
    seen = []
    for loader in loaders:
        loader.start(0, range(4))
        seen.append([loader.next(step, est)[0][1] for step in range(2) for est in range(4)])
    assert seen[0] == seen[1]
    assert seen[0][1][0] == sample_ids(toys.spec(), 0, 1)
    assert len({number for _, number in seen[0]}) == 8


def test_a_pool_is_kept_when_range_and_step_change_and_ended_by_close() -> None:
    loader = Loader(Where(50), toys.spec(loaders=2))
    try:
        pids = set()
        for step, ests in ((0, range(4)), (1, range(2)), (7, range(1, 4)), (2, range(4))):
            loader.start(step, ests)
            for t in (step, step + 1):
                for est in ests:
                    pids |= set(loader.next(t, est)[0][1].tolist())
        assert len(pids) == 2
        assert os.getpid() not in pids
        processes = [psutil.Process(pid) for pid in pids]
    finally:
        loader.close()
    psutil.wait_procs(processes, timeout=10)
    assert not any(process.is_running() for process in processes)


def test_loader_processes_survive_orders_to_stop_and_their_death_is_an_error_of_the_next_batch(
    loaders: list[Loader],
) -> None:
    loaders.append(Loader(Where(50), toys.spec(loaders=1)))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    child_handler = signal.getsignal(signal.SIGCHLD)
    try:
        loaders[0].start(0, range(4))
        process = psutil.Process(int(loaders[0].next(0, 0)[0][1][0]))
        process.send_signal(signal.SIGINT)
        process.terminate()
        assert int(loaders[0].next(0, 1)[0][1][0]) == process.pid
        process.kill()
        with pytest.raises(ProcessDiedError, match="a loader process died"):
            drain(loaders[0], 0, range(2, 4))
        assert not process.is_running()
        loaders[0].start(1, range(4))
        assert int(loaders[0].next(1, 0)[0][1][0]) != process.pid
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGCHLD) is child_handler


def drain(loader: Loader, step: int, ests: range) -> None:
    """Ask for what was fetched ahead, and then for more."""
    for est in ests:
        loader.next(step, est)
    for later in range(step + 1, step + 5):
        for est in range(4):
            loader.next(later, est)


def test_out_of_turn_requests_are_refused(loaders: list[Loader]) -> None:
    loaders.append(Loader(Ids(50), toys.spec(steps=3)))
    loaders[0].start(1, range(4))
    with pytest.raises(ValueError, match=r"step 1 of EST 1 was asked for, but \(1, 0\) is next"):
        loaders[0].next(1, 1)
    loaders[0].start(3, range(4))
    with pytest.raises(ValueError, match="the job ends after 3 steps"):
        loaders[0].next(3, 0)


@pytest.mark.parametrize("number", [0, 2])
def test_a_sample_that_raises_is_named_and_the_pool_stays_usable(number: int, loaders: list[Loader]) -> None:
    job = toys.spec(loaders=number, shuffle=False)
    loaders.append(Loader(Damaged(50), job))
    loaders[0].start(0, range(4))
    seven = next(est for est in range(4) if 7 in sample_ids(job, 0, est))
    for est in range(seven):
        loaders[0].next(0, est)
    with pytest.raises(
        RemoteError, match=r"(?s)sample 7 of the dataset \(epoch 0\) raised OSError.*7.png is truncated"
    ):
        loaders[0].next(0, seven)
    loaders[0].start(1, range(4))
    assert loaders[0].next(1, 0)[0][1].tolist() == sample_ids(job, 1, 0)


def test_a_collation_that_raises_names_its_samples(loaders: list[Loader]) -> None:
    def collate(items: list[int]) -> Any:
        raise KeyError("label")

    loaders.append(Loader(Ids(50), toys.spec(shuffle=False), collate))
    loaders[0].start(0, range(4))
    with pytest.raises(RemoteError, match=r"collating the samples \[0, 4, 8\].*raised KeyError"):
        loaders[0].next(0, 0)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("dataset", "reason"), [(Stream(), "is an IterableDataset"), (Endless(), "has no length")])
def test_a_dataset_without_length_or_order_is_refused(dataset: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        fingerprint(dataset, 0)


class Structured(Ids):
    """Items of many kinds."""

    def __init__(self, samples: int, change: str = "") -> None:
        super().__init__(samples)
        self.change = change

    def __getitem__(self, index: int) -> Any:
        item: dict[str, Any] = {
            "image": np.arange(6, dtype=np.float32).reshape(2, 3) + index,
            "noise": torch.rand(2, dtype=torch.float64).to(torch.bfloat16),
            "label": np.int64(index),
            "text": "naïve",
            "boxes": [(1, 2.5, None), (True, b"x", index)],
            "names": np.array(["a", "bc"], dtype=object),
        }
        if self.change == "value":
            item["image"][0, 0] += 1
        if self.change == "dtype":
            item["image"] = item["image"].astype(np.float64)
        if self.change == "shape":
            item["image"] = item["image"].reshape(3, 2)
        if self.change == "structure":
            item["boxes"] = tuple(item["boxes"])
        return item


def test_a_fingerprint_is_the_same_in_another_process_and_leaves_the_generators_alone() -> None:
    seed_sample(0, 0, 0)
    expected = torch.rand(())
    seed_sample(0, 0, 0)
    found = fingerprint(Structured(100), 3)
    assert torch.equal(torch.rand(()), expected)
    code = "from test_data import *; print(fingerprint(Structured(100), 3))"
    places = os.pathsep.join([str(Path(__file__).parent), str(Path(toys.__file__).parent)])
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": places, "PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    assert other.stdout.decode().strip() == found


@pytest.mark.parametrize("change", ["value", "dtype", "shape", "structure"])
def test_a_fingerprint_notices_a_change_of(change: str) -> None:
    assert fingerprint(Structured(100, change), 3) != fingerprint(Structured(100), 3)


def test_a_fingerprint_notices_length_and_class() -> None:
    assert len({fingerprint(d, 3) for d in (Ids(99), Ids(100), Where(99), Ids(1), Ids(0))}) == 5


class Late(Ids):
    """Items that draw from one generator at most, and some of them not before the second batch; which were made."""

    def __init__(self, draw: Callable[[], float], first: int) -> None:
        super().__init__(50)
        self.draw, self.first = draw, first
        self.made: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.made.append(index)
        return index, self.draw() if index >= self.first else 0.0


DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),
    "numpy normal": lambda: float(np.random.normal()),
    "torch": lambda: float(torch.rand(())),
    "torch normal": lambda: float(torch.randn(())),
}


@pytest.mark.parametrize("first", [0, 4, 49])
@pytest.mark.parametrize("name", DRAWS)
def test_items_have_their_own_numbers_although_unused_generators_are_not_seeded(name: str, first: int) -> None:
    dataset = Late(DRAWS[name], first)
    job = toys.spec(ests=1, shuffle=False)
    loader = Loader(dataset, job, collate=list)
    loader.start(0, range(1))
    for step in range(40):  # more than two epochs
        expected = []
        for sample in sample_ids(job, step, 0):
            seed_sample(job.seed, step // job.steps_per_epoch, sample)
            expected.append((sample, DRAWS[name]() if sample >= first else 0.0))
        random.seed(step), np.random.seed(step), torch.manual_seed(step)  # what runs between two batches
        assert loader.next(step, 0)[0][1] == expected
    again = len(dataset.made) - sum(len(sample_ids(job, step, 0)) for step in range(40))
    assert again == {0: 3, 4: 3, 49: 2}[first], "a batch is made again only when a generator is drawn from first"


def test_an_item_that_raises_because_of_a_number_that_was_not_seeded_is_made_again(loaders: list[Loader]) -> None:
    def draw() -> float:
        if random.random() == unseeded:
            raise ValueError("not seeded")
        return 0.0

    random.seed(0)
    unseeded = random.random()
    loaders.append(Loader(Late(draw, 4), toys.spec(ests=1, shuffle=False), collate=list))
    loaders[0].start(0, range(1))
    assert [item[0] for step in range(3) for item in loaders[0].next(step, 0)[0][1]] == list(range(9))


def test_an_item_that_hides_what_it_draws_does_not_depend_on_what_was_learned(loaders: list[Loader]) -> None:
    """It draws and puts the generator back, so nobody can tell. A loader that begins later must make the same of it."""

    def draw() -> float:
        with torch.random.fork_rng():
            return float(torch.rand(()))

    loaders += [Loader(Late(draw, 0), toys.spec(ests=1, shuffle=False), collate=list) for _ in range(2)]
    loaders[0].start(0, range(1))
    loaders[1].start(2, range(1))
    batches = [loaders[0].next(step, 0) for step in range(3)]
    assert loaders[1].next(2, 0) == batches[2]
