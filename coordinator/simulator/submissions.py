"""What a trace comes to, whatever its format: jobs that are submitted, and devices that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..scheduling.jobs import Shape


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it is submitted.

    Args:
        at: seconds since the trace began. steps: global mini-batches. See `scheduling.jobs.Job` for the rest.
    """

    name: str
    at: float
    shape: Shape
    steps: float
    tenant: str = ""
    priority: int = 0


def fits(shape: Shape, devices: Mapping[str, int], *, rigid: bool) -> bool:
    """Whether a job can run on a cluster: on devices of one kind; `rigid`: on as many as it has ESTs."""
    counts = {kind: shape.ests if rigid else min(there, shape.most) for kind, there in devices.items()}
    return any(
        counts[kind] <= there and shape.step_seconds(((kind, counts[kind]),)) < float("inf")
        for kind, there in devices.items()
    )


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Devices that their owner takes (`count` > 0) or gives back (`count` < 0).

    Args:
        at: seconds since the trace began.
    """

    at: float
    kind: str
    count: int
