"""What a simulation comes to, in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from .traces import best_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .engine import Outcome
    from .progress import Running


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds. JCT: from a job's arrival to its end.

    Args:
        jobs: that came to their end. unfinished: that did not.
        makespan: from the first arrival to the last end. queueing: mean wait for the first devices.
        used: share of the devices' time for which there were jobs in which jobs had them.
        waste: share of the jobs' device time in which no EST was computed: starts, changes, exchanges, ESTs that do not
            divide evenly.
        changes: per job, of its devices while it ran, and times that it lost them all.
        unfair: JCT over what it would be if jobs shared the devices evenly all the time, of the worst percentile.
        freed: of devices that their owner took back: how many, the longest wait, and the longest beyond the step that
            had to end first.
        plans: times that the policy was asked.
    """

    policy: str
    jobs: int
    unfinished: int
    jct: float
    jct_median: float
    jct_p99: float
    makespan: float
    queueing: float
    used: float
    waste: float
    changes: float
    unfair: float
    freed: int
    freed_longest: float
    freed_beyond_step: float
    plans: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(policy: str, outcome: Outcome, devices: Mapping[str, int]) -> Figures:
    """Of one simulation."""
    ended = [job for job in outcome.jobs if job.job.name in outcome.ended]
    times = [outcome.ended[job.job.name] - job.job.at for job in ended] or [0.0]
    served = sum(sum(job.served.values()) for job in outcome.jobs)
    worked = sum(job.worked for job in outcome.jobs)
    begin = min((job.job.at for job in outcome.jobs), default=0.0)
    return Figures(
        policy=policy,
        jobs=len(ended),
        unfinished=len(outcome.jobs) - len(ended),
        jct=fmean(times),
        jct_median=median(times),
        jct_p99=float(np.percentile(times, 99)),
        makespan=max(outcome.ended.values(), default=begin) - begin,
        queueing=fmean([job.first - job.job.at for job in ended if job.first is not None] or [0.0]),
        used=served / max(outcome.there - outcome.unwanted, 1e-9),
        waste=1 - worked / max(served, 1e-9),
        changes=sum(job.changes + job.stops for job in outcome.jobs) / max(len(outcome.jobs), 1),
        unfair=float(np.percentile(_unfairness(ended, outcome, sum(devices.values())) or [0.0], 99)),
        freed=len(outcome.freed),
        freed_longest=max((seconds for seconds, _ in outcome.freed), default=0.0),
        freed_beyond_step=max((seconds - step for seconds, step in outcome.freed), default=0.0),
        plans=outcome.plans,
    )


def _unfairness(ended: list[Running], outcome: Outcome, devices: int) -> list[float]:
    """Finish-time fairness (as in Themis) of each job, with the mean number of jobs in its time as the sharers."""
    at = np.array([seconds for seconds, _ in outcome.active])
    wanted = np.array([number for _, number in outcome.active], dtype=float)
    area = np.concatenate([[0.0], np.cumsum(wanted[:-1] * np.diff(at))]) if len(at) else np.zeros(0)

    def until(seconds: float) -> float:
        place = int(np.searchsorted(at, seconds, side="right")) - 1
        return float(area[place] + wanted[place] * (seconds - at[place])) if place >= 0 else 0.0

    found = []
    for job in ended:
        end, begin = outcome.ended[job.job.name], job.job.at
        took = max(end - begin, 1e-9)
        sharers = (until(end) - until(begin)) / took
        alone = job.job.steps * best_step(job.job.shape)
        found.append(took / (alone * max(1.0, sharers * job.job.shape.ests / devices)))
    return found
