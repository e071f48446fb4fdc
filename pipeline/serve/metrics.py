"""The picture as Prometheus metrics. There is no label whose values users choose: a thousand jobs are as many series
as one. What is of one job is in the API."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ...coordinator import records
from .. import speeds
from ..summary import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from ...coordinator.views import View

KINDS = 20
"""Kinds of devices that are told apart, the most frequent ones; the rest is `other`."""

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of buckets, in seconds."""

WORKER_STATES = ("idle", "preparing", "ready", "running", "leaving", "away")
"""See `speeds.WorkerRow`: all are told, also those that nobody is in, so that no series comes and goes."""


def text(view: View) -> bytes:
    """The metrics of a picture, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Picture(view))
    return generate_latest(registry)


class _Picture(Collector):
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        jobs = [job for job in self._view.jobs.values() if job.spec is not None]
        found = [summarize(job) for job in jobs]
        statuses = [job.status.value for job in jobs if job.status]
        states = Counter(job.state for job in found)
        yield _labelled("easyscale_jobs", "Jobs.", ["state"], {(s,): states[s] for s in get_args(records.JobState)})
        yield GaugeMetricFamily("easyscale_steps", "Steps done, of all jobs.", value=sum(job.step for job in found))
        yield GaugeMetricFamily("easyscale_steps_wanted", "Steps of all jobs.", value=sum(job.steps for job in found))
        yield GaugeMetricFamily(
            "easyscale_samples_per_second", "Samples per second, of all jobs.",
            value=sum(job.samples_per_second for job in found),
        )  # fmt: skip
        yield _labelled("easyscale_workers", "Workers, which are devices.", ["state", "kind"], self._workers())
        attempts: Counter[str] = Counter()
        for status in statuses:
            attempts.update(status.attempts)
        ended = CounterMetricFamily("easyscale_attempts", "Attempts that ended, by cause.", labels=["cause"])
        for cause in get_args(records.Cause):
            ended.add_metric([cause], attempts[cause])
        yield ended
        yield CounterMetricFamily(
            "easyscale_recoveries", "Losses that jobs got over.", value=sum(status.recovered for status in statuses)
        )
        yield _histogram(
            "easyscale_recovery_seconds", "From the last sign of life of who was lost to the next step; newest ones.",
            [recovery.seconds for job in found for recovery in job.recoveries],
        )  # fmt: skip
        told = (job.progress.value for job in jobs if job.progress and job.state == "running")
        yield _histogram(
            "easyscale_step_seconds", "Seconds of the last step of each running job.",
            [progress.step_seconds for progress in told if progress.step_seconds],
        )  # fmt: skip
        yield GaugeMetricFamily(
            "easyscale_coordinator", "Whether a coordinator leads.", value=int(self._view.leader is not None)
        )
        yield GaugeMetricFamily("easyscale_unreadable_keys", "Keys that cannot be read.", value=len(self._view.damaged))

    def _workers(self) -> dict[tuple[str, ...], int]:
        rows = speeds.rows(self._view)
        kinds = [kind for kind, _ in Counter(row.kind for row in rows).most_common(KINDS)]
        counted = Counter((row.state, row.kind if row.kind in kinds else "other") for row in rows)
        every = [*sorted(kinds), *(["other"] if any(kind == "other" for _, kind in counted) else [])]
        return {(state, kind): counted[state, kind] for kind in dict.fromkeys(every) for state in WORKER_STATES}


def _labelled(name: str, what: str, labels: list[str], values: dict[tuple[str, ...], int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, what: str, values: Iterable[float]) -> GaugeHistogramMetricFamily:
    seconds = list(values)
    buckets = [(f"{bound:g}", float(sum(value <= bound for value in seconds))) for bound in BOUNDS]
    buckets.append(("+Inf", float(len(seconds))))
    return GaugeHistogramMetricFamily(name, what, buckets=buckets, gsum_value=sum(seconds))
