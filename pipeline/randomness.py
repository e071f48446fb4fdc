"""Derived randomness: every random number of a job is a function of (job seed, what it is for), never of history.

Seeding is done right before the use it is for, so nothing that ran earlier (on this device, in this process, in this
run) can be seen in the numbers, and no RNG state is ever stored. Which numbers a generator then gives on which device
is PyTorch's business (see the determinism class).
"""

from __future__ import annotations

import hashlib
import random
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def derive(seed: int, *parts: int | str) -> int:
    """A 64-bit seed for one purpose: BLAKE2b-64, read little-endian, of the ASCII Python literal `(seed, *parts)`.

    `derive(1, "step", 7, 0)` hashes the 17 bytes `(1, 'step', 7, 0)`. About 1 microsecond.
    """
    literal = ascii((seed, *parts)).encode()
    return int.from_bytes(hashlib.blake2b(literal, digest_size=8).digest(), "little")


def derive_samples(seed: int, epoch: int, samples: Sequence[int]) -> list[int]:
    """`derive(seed, "sample", epoch, sample)` for each sample, in two thirds of the time."""
    start = ascii((seed, "sample", epoch))[:-1]
    blake2b = hashlib.blake2b
    digests = [blake2b(f"{start}, {sample})".encode(), digest_size=8).digest() for sample in samples]
    return list(struct.unpack(f"<{len(digests)}Q", b"".join(digests)))


def seed_everything(value: int) -> None:
    """Seed `random`, numpy's global generator, torch's CPU generator and, once CUDA is in use, its generators.

    About 9 microseconds, which is why it is not `torch.manual_seed` (105 microseconds: it visits every backend).
    Generators that user code makes itself without a seed (`numpy.random.default_rng()`) cannot be reached.
    """
    seed_host(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


def seed_host(value: int) -> None:
    """Seed the generators of this process that live on the host. `value` is in 0 .. 2**64 - 1."""
    random.seed(value)
    _seed_numpy(value)
    torch.default_generator.manual_seed(value)


def _seed_numpy(value: int) -> None:
    np.random.seed(value & 0xFFFFFFFF)  # an integer seed is 32 bits; seeding by an array takes six times as long


def _draw_torch() -> int:
    return int(torch.empty((), dtype=torch.int64).random_())


def seed_build(seed: int) -> None:
    """Before the user's `build()`: every process initialises the same model."""
    seed_everything(derive(seed, "build"))


def seed_step(seed: int, step: int, est: int) -> None:
    """Before the forward and backward passes of one EST in one step (dropout and the like)."""
    seed_everything(derive(seed, "step", step, est))


def seed_update(seed: int, step: int) -> None:
    """Before the optimizer's part of a step, which every worker does: an optimizer may draw random numbers."""
    seed_everything(derive(seed, "update", step))


def seed_evaluation(seed: int, step: int) -> None:
    """Before an evaluation of the state after `step` steps."""
    seed_everything(derive(seed, "evaluate", step))


def seed_sample(seed: int, epoch: int, sample: int) -> None:
    """Before `dataset[sample]` (random augmentation): independent of the loader process, the batch and the EST."""
    seed_host(derive(seed, "sample", epoch, sample))


def seed_collate(seed: int, epoch: int, samples: tuple[int, ...]) -> None:
    """Before samples are collated (masking of tokens and the like)."""
    seed_host(derive(seed, "collate", epoch, *samples))


@dataclass(frozen=True, slots=True)
class _Generator:
    """One of the host's global generators.

    Args:
        seed: sets its whole state from a number in 0 .. 2**64 - 1.
        draw: at least 53 bits; its state moves on.
    """

    seed: Callable[[int], object]
    draw: Callable[[], int | float]

    def first(self, value: int) -> int | float:
        """What `draw` gives right after `seed(value)`; the state it had is lost."""
        self.seed(value)
        return self.draw()


_GENERATORS = (
    _Generator(random.seed, lambda: random.getrandbits(64)),
    _Generator(_seed_numpy, np.random.random_sample),
    _Generator(torch.default_generator.manual_seed, _draw_torch),
)


class SampleSeeds:
    """Seeds the host's generators before each item of a dataset, as `seed_sample`, but for those it does not draw from.

    Seeding all three costs 9 microseconds an item, and most datasets draw from one of them, or from none. So none is
    seeded until it is drawn from: all get one fixed state before each batch, and must still have it after. One that
    does not is seeded for each item from then on, and the batch is made again. (An item that draws from a generator and
    puts back the state that it found goes unnoticed: it always draws what follows the fixed state.) One for each
    process that makes items.
    """

    def __init__(self) -> None:
        self._used: list[_Generator] = []
        self._unused: dict[_Generator, int | float] | None = None

    def begin(self) -> list[Callable[[int], object]]:
        """Before a batch. What to call with `derive(seed, "sample", epoch, sample)` before each of its items."""
        if self._unused is None:
            self._unused = {generator: generator.first(0) for generator in _GENERATORS}
        for generator in self._unused:
            generator.seed(0)
        return [generator.seed for generator in self._used]

    def end(self) -> bool:
        """After a batch, also one that raised. False: it has to be made again."""
        assert self._unused is not None
        drawn = [generator for generator, first in self._unused.items() if generator.draw() != first]
        for generator in drawn:
            del self._unused[generator]
            self._used.append(generator)
        return not drawn


@contextmanager
def preserved() -> Iterator[None]:
    """Leave all generators as they were found, whatever the body does to them. About 0.1 milliseconds."""
    python = random.getstate()
    array = np.random.get_state()
    cpu = torch.default_generator.get_state()
    cuda_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if cuda_in_use else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        torch.default_generator.set_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
