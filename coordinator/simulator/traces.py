"""Traces of jobs: Gavel's, Philly's, and made-up ones; and Alibaba's pods that come for devices and go."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING

from ...errors import UserError
from ..scheduling.jobs import Shape
from .lines import number, opened, read, whole
from .submissions import Reclaim, Submission

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .throughputs import Throughputs

PHILLY, PODS = "timestamp,duration,num_gpus", "name,cpu_milli,memory_mib"
"""How the files begin. Gavel's have no header."""

WINDOW = 30 * 86400.0
"""Seconds at the end of Alibaba's trace that are used: most of its pods came in its last weeks."""

SIZES = (1, 1, 1, 1, 2, 4, 8, 8, 16)
"""ESTs of made-up jobs: as likely as they stand here."""


def jobs(
    path: Path, throughputs: Throughputs, *, seed: int = 0, mixes: bool = True, skip: bool = False
) -> list[Submission]:
    """Jobs of a trace, by arrival, which begins at 0.

    Args:
        throughputs: of models on the cluster's kinds.
        seed: chooses models where the trace does not name them.
        mixes: their devices may be of several kinds. skip: leave broken lines out.

    Raises:
        UserError: it cannot be read.
    """
    with opened(path) as lines:
        first = next(lines, "")
    random = Random(seed)  # noqa: S311 - to draw models, reproducibly
    if first.startswith(PHILLY):
        found = _philly(path, throughputs, random, mixes, skip)
    elif first.startswith(PODS):
        found = _pods(path, throughputs, random, mixes, skip)
    else:
        found = _gavel(path, throughputs, mixes, skip)
    if not found:
        raise UserError(f"{path} has no jobs")
    begin = min(job.at for job in found)
    shifted = [Submission(j.name, j.at - begin, j.shape, j.steps, j.tenant, j.priority) for j in found]
    return sorted(shifted, key=lambda job: job.at)


def _gavel(path: Path, throughputs: Throughputs, mixes: bool, skip: bool) -> list[Submission]:
    """Model, command, argument, needs data, steps, arrival in s, devices. Its steps are mini-batches of one device; a
    job on n devices does n of them in a step of ours."""

    def parse(line: int, row: list[str]) -> Submission:
        rates = throughputs.models.get(row[0])
        if rates is None:
            raise ValueError(f"model {row[0][:60]!r} is not in the table of throughputs")
        ests = whole(row[6], "the number of devices", least=1)
        steps = number(row[4], "the number of steps", above=0.0) / ests
        return Submission(
            f"job-{line}", number(row[5], "the arrival"), Shape(rates, ests, 1, ests, mixes), max(1.0, steps)
        )

    return read(path, "\t", parse, fields=7, skip=skip)


def _philly(path: Path, throughputs: Throughputs, random: Random, mixes: bool, skip: bool) -> list[Submission]:
    """Submission, duration in s, devices, device seconds, virtual cluster. It names no models: they are drawn."""

    def parse(line: int, row: list[str]) -> Submission:
        ests = whole(row[2], "num_gpus", least=1)
        at = datetime.fromisoformat(row[0]).timestamp()
        return _drawn(
            f"job-{line}", at, number(row[1], "duration", above=0.0), ests, row[4], throughputs, random, mixes
        )

    return read(path, ",", parse, fields=5, header=PHILLY, skip=skip)


def _pods(path: Path, throughputs: Throughputs, random: Random, mixes: bool, skip: bool) -> list[Submission]:
    """Alibaba's pods of best effort. What has no GPU, or has not run, is no job."""

    def parse(_: int, row: list[str]) -> Submission | None:
        if row[6] != "BE" or not whole(row[3], "num_gpu") or not row[10]:
            return None
        seconds = number(row[9], "deletion_time") - number(row[10], "scheduled_time")
        at = number(row[8], "creation_time")
        return _drawn(row[0], at, max(1.0, seconds), whole(row[3], "num_gpu"), "", throughputs, random, mixes)

    return [job for job in read(path, ",", parse, fields=11, header=PODS, skip=skip) if job is not None]


def _drawn(
    name: str, at: float, seconds: float, ests: int, tenant: str, throughputs: Throughputs, random: Random, mixes: bool
) -> Submission:
    """A job that took so long on as many devices as it asked for, of the fastest kind."""
    rates = throughputs.models[random.choice(sorted(throughputs.models))]
    shape = Shape(rates, ests, 1, ests, mixes)
    return Submission(name, at, shape, max(1.0, seconds / best_step(shape)), tenant)


def best_step(shape: Shape) -> float:
    """Seconds of a step with a device of the fastest kind for each EST."""
    return min(shape.step_seconds(((kind, shape.ests),)) for kind, _ in shape.rates.paces)


def made_up(
    count: int, throughputs: Throughputs, *, seed: int, every: float, seconds: float = 3600.0, mixes: bool = True
) -> list[Submission]:
    """Jobs that come at random, one in `every` seconds, and last `seconds` in the median (log-normal, sigma 1.5)."""
    random, at, found = Random(seed), 0.0, []  # noqa: S311 - as above
    for place in range(count):
        at += random.expovariate(1 / every)
        lasts = seconds * random.lognormvariate(0.0, 1.5)
        found.append(_drawn(f"job-{place + 1}", at, lasts, random.choice(SIZES), "", throughputs, random, mixes))
    return found


def reclaims(path: Path, devices: Mapping[str, int], *, skip: bool = False) -> list[Reclaim]:
    """What Alibaba's latency-sensitive pods take and give back in the last 30 days of the trace.

    Each takes whole devices, of the kind of which most are left.

    Raises:
        UserError: it cannot be read, or has none.
    """

    def parse(_: int, row: list[str]) -> tuple[float, float, int] | None:
        if row[6] != "LS" or not whole(row[3], "num_gpu"):
            return None
        begin, end = number(row[8], "creation_time"), number(row[9], "deletion_time")
        return (begin, end, whole(row[3], "num_gpu")) if end > begin else None

    pods = [pod for pod in read(path, ",", parse, fields=11, header=PODS, skip=skip) if pod is not None]
    if not pods:
        raise UserError(f"{path} has no latency-sensitive pods with a GPU")
    first = max(begin for begin, _, _ in pods) - WINDOW
    pods = [(max(begin - first, 0.0), end - first, count) for begin, end, count in pods if end > first]
    # Who goes at the same moment as another comes makes room for it.
    events = sorted([(end, False, place) for place, (_, end, _) in enumerate(pods)]
                    + [(begin, True, place) for place, (begin, _, _) in enumerate(pods)])  # fmt: skip
    free, kind_of, found = Counter(devices), {}, []
    for at, comes, place in events:
        count = pods[place][2]
        if comes:
            kind_of[place] = max(sorted(devices), key=lambda kind: free[kind])
        free[kind_of[place]] -= count if comes else -count
        found.append(Reclaim(at, kind_of[place], count if comes else -count))
    return found
