"""Derived randomness: every random number of a job is a function of (job seed, what it is for), never of history.

Seeding is done right before the use it is for, so nothing that ran earlier (on this device, in this process, in this
run) can be seen in the numbers, and no RNG state is ever stored. Which numbers a generator then gives on which device
is PyTorch's business (see the determinism class).
"""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def derive(seed: int, *parts: int | str) -> int:
    """A 64-bit seed for one purpose: BLAKE2b-64, read little-endian, of the ASCII Python literal `(seed, *parts)`.

    `derive(1, "step", 7, 0)` hashes the 17 bytes `(1, 'step', 7, 0)`. About 1 microsecond.
    """
    literal = ascii((seed, *parts)).encode()
    return int.from_bytes(hashlib.blake2b(literal, digest_size=8).digest(), "little")


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
    np.random.seed(value & 0xFFFFFFFF)  # an integer seed is 32 bits; seeding by an array takes six times as long
    torch.default_generator.manual_seed(value)


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
