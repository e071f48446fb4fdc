"""Which lies are told how often. Every seed has its own mixture, and the faulty phase ends with all of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@dataclass
class Faults:
    """Rates per call."""

    kv_lost: float = 0.0
    """A request gets lost, and there is no answer."""
    kv_answer_lost: float = 0.0
    """It was applied, and there is no answer."""
    kv_late: float = 0.0
    """A write is applied after its sender has given up and gone on."""
    kv_stale: float = 0.0
    """A read answers from an older revision."""
    kv_slow: float = 0.0
    """It takes long, but not too long."""
    kv_stopped: float = 0.0
    """Whoever is about to send a decision is stopped (SIGSTOP) first: what it was decided from may change meanwhile."""
    watch_lost: float = 0.0
    watch_late: float = 0.0
    watch_repeated: float = 0.0
    watch_silent: float = 0.0
    """After a compaction a watch hears nothing any more."""
    store_lost: float = 0.0
    """A request does not arrive: connection refused, 500, 503 SlowDown."""
    store_answer_lost: float = 0.0
    """It was applied: connection closed, 500."""
    store_late: float = 0.0
    """A write is applied after its sender has gone on."""
    store_conflict: float = 0.0
    """409 on a conditional create."""
    store_slow: float = 0.0
    store_cut: float = 0.0
    """The connection breaks in the middle of an answer."""
    store_flip: float = 0.0
    """A bit of an answer is flipped."""
    store_torn: float = 0.0
    """Only the first half of a blob is kept."""
    store_hollow: float = 0.0
    """Finishing a multipart upload answers 200, with an error inside, or with nothing behind it."""
    store_undeleted: float = 0.0
    """A delete is not carried out."""


LEVELS = {
    "kv_late": 0.02,
    "kv_stopped": 0.03,
    "kv_stale": 0.05,
    "watch_silent": 0.01,
    "watch_lost": 0.5,
    "watch_late": 0.5,
    "watch_repeated": 0.3,
    "store_flip": 0.04,
    "store_torn": 0.03,
    "store_hollow": 0.2,
    "store_conflict": 0.2,
}
"""The highest rate of each; of the others 0.08."""


def mixture(rng: random.Random) -> Faults:
    """Half of the kinds, each at its own rate."""
    faults = Faults()
    for field in dataclasses.fields(Faults):
        if rng.random() < 0.5:
            setattr(faults, field.name, rng.choice([0.1, 0.5, 1.0]) * LEVELS.get(field.name, 0.08))
    return faults
