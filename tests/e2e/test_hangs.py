"""Code that holds the interpreter is left alone; code that makes no progress is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_code_that_holds_the_gil_for_longer_than_the_lease_costs_nothing(
    cluster: Cluster, reference: Reference, tmp_path: Path, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    once = tmp_path / "held"
    for name in ("w0", "w1"):
        cluster.worker(name, ttl=2.0, JOB_FAULT="hold:25", JOB_ONCE=str(once), JOB_PACE="0.01")
    job = cluster.submit(SMALL)
    before = cluster.until(job, lambda now: len(now.workers) == 2)
    result = cluster.result(job)
    assert once.exists()
    injected("user code that holds the GIL")
    after = cluster.job(job)
    assert after.attempts == {}
    assert after.recoveries == []
    assert after.generation == before.generation + 1  # the empty one that ends the job
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_step_that_hangs_is_ended_with_its_stacks_and_the_job_goes_on(
    cluster: Cluster, reference: Reference, tmp_path: Path, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    once = tmp_path / "hung"
    for name in ("w0", "w1"):
        # ten times as long before anything has been learned
        cluster.worker(name, "--hang", "8", JOB_FAULT="hang:25", JOB_ONCE=str(once), JOB_PACE="0.01")
    job = cluster.submit(SMALL)
    result = cluster.result(job)
    assert once.exists()
    injected("user code that hangs")
    after = cluster.job(job)
    assert after.attempts["hang"] == 1
    assert after.attempts.keys() <= {"hang", "preempted"}
    logs = cluster.command("logs", job, "--folder", str(cluster.folder / "local"))
    assert "in misbehave" in logs.out
    assert "most recent call first" in logs.out
    reference.assert_same(cluster, result.manifest, result.state_digest)
