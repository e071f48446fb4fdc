"""Fault 45: a bit flips in the memory of one worker: it is found, traced to its worker, and gone from the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, sabotaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


@pytest.mark.parametrize(("workers", "faults"), [(3, ["parameter", "buffer"]), (2, ["moment", "averaged", "partial"])])
def test_fault_45_a_flipped_bit_is_found_and_its_worker_quarantined_and_the_bits_are_right(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None], workers: int, faults: list[str]
) -> None:
    cluster.coordinator()
    cluster.worker("bad", JOB_PACE="0.01", **sabotaged("flips"))
    for number in range(1, workers):
        cluster.worker(f"good{number}", JOB_PACE="0.01")
    for fault in faults:
        job = cluster.submit(SMALL, name=fault, audit_every=10)
        result = cluster.result(job)
        now = cluster.job(job)
        assert now.attempts == {"corrupt": 1}, fault
        ((device, evidence),) = now.quarantined.items()
        assert device.endswith(" cpu (worker bad)")
        injected("a flipped bit")
        assert {"buffer": "model/buffers/1.running_mean: ", "partial": "the gradient of EST"}.get(fault, "") in evidence
        assert " is right" in evidence
        assert not any(worker.startswith("bad-") for worker in now.workers), "the others went on without it"
        reference.assert_same(cluster, result.manifest, result.state_digest)
    shown = cluster.command("show", job)
    assert "quarantine " in shown.out
    assert "worker bad" in shown.out


def test_fault_45_when_nobody_can_tell_who_is_right_the_job_stops_and_names_the_tensors(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    cluster.worker("bad", JOB_PACE="0.01", **sabotaged("flips"))
    cluster.worker("good", JOB_PACE="0.01")
    job = cluster.submit(SMALL, name="always", audit_every=0)
    now = cluster.until(job, lambda now: now.state == "failed")
    injected("a flipped bit")
    assert "nobody can tell which is right" in now.reason
    assert "6.bias" in now.reason
    assert now.quarantined == {}
    assert set(now.attempts) == {"diverged"}
    assert now.committed < 80
