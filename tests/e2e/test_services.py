"""On real services: etcd for the records; SeaweedFS, and moto's imitation of S3, for the objects."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, Cluster, told_on_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from etcd_service import EtcdCluster
    from reference import Reference
    from services import S3Server

SMALL = JOBS / "small.py"


@pytest.fixture
def services(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_cluster: Callable[..., EtcdCluster], seaweedfs: S3Server
) -> Iterator[Cluster]:
    """A cluster on an etcd of its own (the prefix of the keys is fixed) and a bucket of its own."""
    etcd = etcd_cluster(1)
    store = f"s3://{seaweedfs.new_bucket()}/here"
    with told_on_failure(Cluster(tmp_path / "cluster", etcd.address, store, seaweedfs.env), request) as it:
        yield it
    etcd.close()


def test_a_job_from_a_script_on_workers_started_by_hand_survives_a_kill(
    services: Cluster, reference: Reference, tmp_path: Path, injected: Callable[[str], None]
) -> None:
    services.coordinator()
    first, _ = services.worker("w0", JOB_PACE="0.04"), services.worker("w1", JOB_PACE="0.04")
    script = tmp_path / "project" / "small.py"
    script.parent.mkdir()
    shutil.copy(SMALL, script)
    submitted = services.python(str(script), name="script").wait()
    assert submitted.code == 0, submitted.err
    assert submitted.out == "small\n"  # a script's output is its own
    job = "small"
    shutil.rmtree(script.parent)  # workers need nothing but the two addresses
    services.until(job, lambda now: len(now.workers) == 2)
    services.until_step(job, 15)
    with services.slowly():
        first.kill()
        injected("SIGKILL of a worker")
        services.worker("w2", JOB_PACE="0.04")
        services.until(job, lambda now: any("w2" in worker for worker in now.workers))
    result = services.result(job)
    assert services.job(job).attempts == {"died": 1}
    reference.assert_same(services, result.manifest, result.state_digest)


@pytest.mark.parametrize("services", ["seaweedfs"], indirect=True)
def test_pause_resume_cancel_and_retry_never_show_in_the_bits(services: Cluster, reference: Reference) -> None:
    services.coordinator()
    for name in ("w0", "w1"):
        services.worker(name, JOB_PACE="0.03")
    job = services.submit(SMALL)
    services.until(job, lambda now: len(now.workers) == 2)
    services.until_step(job, 12)

    with services.slowly():
        assert services.command("pause", job, "-o", "json").code == 0
        paused = services.until(job, lambda now: now.state == "paused")
    assert 10 < paused.committed == paused.step < 80
    assert services.job(job).workers == []

    assert services.command("resume", job).code == 0
    services.until_step(job, paused.step + 8)
    with services.slowly():
        assert services.command("cancel", job).code == 0
        cancelled = services.until(job, lambda now: now.state == "cancelled")
    assert paused.committed <= cancelled.committed < 80
    assert services.command("resume", "nobody").code == 2

    assert services.command("retry", job).code == 0
    result = services.result(job)
    assert services.job(job).attempts.keys() <= {"preempted"}
    shown = services.command("show", job, "-o", "json").last
    assert shown["state_digest"] == result.state_digest
    reference.assert_same(services, result.manifest, result.state_digest)
