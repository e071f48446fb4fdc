"""A job that cannot run waits, and says what for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import torch
from cluster import JOBS

if TYPE_CHECKING:
    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_a_job_waits_for_workers_and_for_as_many_as_it_needs(cluster: Cluster, reference: Reference) -> None:
    job = cluster.submit(SMALL, min_workers=2)
    assert cluster.job(job).reason == "no coordinator has seen it yet"
    cluster.coordinator()
    now = cluster.until(job, lambda now: "no worker is alive" in now.reason)
    assert now.state == "waiting"
    cluster.worker("w0")
    now = cluster.until(job, lambda now: "needs 2" in now.reason)
    assert now.state == "waiting"
    assert now.workers == []
    shown = cluster.command("jobs")
    assert "needs 2" in shown.out
    cluster.worker("w1")
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_device_of_another_determinism_class_is_refused_by_name(cluster: Cluster, reference: Reference) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":  # nothing lower: another choice that the class knows
        other, part = {"MKL_CBWR": "COMPATIBLE"}, "MKL_CBWR: 'COMPATIBLE' here"
    else:
        other, part = {"ATEN_CPU_CAPABILITY": "default"}, "isa: 'DEFAULT' here"
    cluster.coordinator()
    native = cluster.worker("native", JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until_step(job, 5)
    native.signal(signal.SIGTERM)
    assert native.wait().code == 0
    stopped = cluster.job(job).committed
    cluster.worker("other", **other)
    now = cluster.until(job, lambda now: "refused" in now.reason)
    assert now.state == "waiting"
    assert "other: another determinism class than native-" in now.reason
    assert part in now.reason
    assert now.committed == stopped >= 5
    assert now.attempts.keys() <= {"preempted"}
    cluster.worker("native")
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)
