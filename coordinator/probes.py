"""What is thought of kinds of devices on which no step of a job was measured yet, by their probes. Pure.

A probe is one EST, timed for a moment on a device that had just begun (see `pipeline/warm.py`). So it is for the first
ranges only: a kind that was measured has no use for probes, and no generation is made for the sake of one. Where some
kinds were measured and others were not, those that are both tell how probes compare with steps. Workers of one kind are
thought to be alike unless a probe says something else loudly. Leaves to others: what is measured (`throughput.py`).
"""

from __future__ import annotations

from statistics import fmean, median, median_low
from typing import TYPE_CHECKING

import msgspec

from . import records, throughput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .attempts import Alive
    from .views import JobView

LEAST_SECONDS = 1e-6
"""No EST takes less."""

LOUD = 2.0
"""A worker gets a factor of its own from here on. It is more than `throughput.NOTICED`, which is for medians of many
steps: one busy moment must not make ranges of equal devices uneven."""

MOST_TIMES = 8.0
"""No probe makes a kind, or a worker of its kind, so much slower or faster than the others: one that is off by more
would leave all ESTs to a single device until its steps are measured, and those would be the longest."""


def expected(job: JobView, workers: Sequence[str], alive: Alive) -> records.Rates | None:
    """What is known of the job, and for those of these workers whose kinds nobody has measured, what probes say.

    Returns:
        None if nothing is known by which any two devices differ.
    """
    known = throughput.known(job)
    kinds = known.kinds if known else {}
    if job.spec is None or all(throughput.kind_of(alive[worker]) in kinds for worker in workers):
        return known
    filled = fill(kinds, by_kind(job.record.spec, workers, alive))
    found = factors(job, workers, alive)
    if known is None:
        return records.Rates(spec=job.record.spec, kinds=filled, factors=found) if found or len(filled) > 1 else None
    return msgspec.structs.replace(known, kinds=filled, factors={**found, **known.factors})


def by_kind(spec: str, workers: Sequence[str], alive: Alive) -> dict[str, float]:
    """Seconds of an EST by kind, as these workers' probes say: the median, of two the faster one's."""
    return {kind: median_low(told.values()) for kind, told in sorted(_told(spec, workers, alive).items())}


def factors(job: JobView, workers: Sequence[str], alive: Alive) -> dict[str, float]:
    """Which of these workers are thought to be far from their kind, and how far. Not of kinds that were measured."""
    known = throughput.known(job)
    found: dict[str, float] = {}
    for kind, told in _told(job.record.spec, workers, alive).items():
        if known is not None and kind in known.kinds:
            continue
        middle = median_low(told.values())
        ratios = {worker: _within(seconds / middle, 1.0) for worker, seconds in told.items()}
        found |= {worker: ratio for worker, ratio in ratios.items() if max(ratio, 1 / ratio) >= LOUD}
    return found


def fill(
    known: Mapping[str, records.Rate], probed: Mapping[str, float], guess: records.Rate | None = None
) -> dict[str, records.Rate]:
    """The rates that were measured, and those of other kinds by their probes.

    Args:
        probed: seconds by kind. guess: if nothing was measured, the fastest is thought to be as fast as this.
    """
    both = [known[kind].est / probed[kind] for kind in known.keys() & probed.keys()]
    scale = median(both) if both else 1.0
    if guess is not None and probed and not known:
        scale = guess.est / min(probed.values())
    others = {kind: seconds * scale for kind, seconds in probed.items() if kind not in known}
    if not others:
        return dict(known)
    middle = fmean(rate.est for rate in known.values()) if known else median_low(others.values())
    fixed = fmean(rate.fixed for rate in known.values()) if known else guess.fixed if guess else 0.0
    return {**known, **{kind: records.Rate(_within(est, middle), fixed) for kind, est in others.items()}}


def _told(spec: str, workers: Sequence[str], alive: Alive) -> dict[str, dict[str, float]]:
    """Seconds by kind and worker, of those that have told any that can be."""
    found: dict[str, dict[str, float]] = {}
    for worker in workers:
        seconds = alive[worker].probes.get(spec)
        if seconds is not None and LEAST_SECONDS <= seconds <= throughput.MOST_SECONDS:  # not so if it is no number
            found.setdefault(throughput.kind_of(alive[worker]), {})[worker] = seconds
    return found


def _within(value: float, middle: float) -> float:
    return min(max(value, middle / MOST_TIMES), middle * MOST_TIMES)
