"""Faults of the object store under a running job: a LIST that lags for ever (24), a disk that fills (27)."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, Cluster, told_on_failure
from easyscale.storage.commits import read_commit
from http_server import serving
from lying_s3 import LyingS3
from services import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reference import Reference

SMALL = JOBS / "small.py"


@pytest.fixture
def on_a_lagging_list(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose S3 server lists nothing, whatever is there."""
    with serving(LyingS3()) as server:
        env = {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.endpoint}
        with told_on_failure(Cluster(tmp_path / "cluster", store="s3://bucket/here", env=env), request) as it:
            yield it


def test_24_a_job_is_killed_and_resumed_on_a_store_that_lists_nothing(
    on_a_lagging_list: Cluster, reference: Reference
) -> None:
    cluster = on_a_lagging_list
    run = cluster.run(SMALL, workers=2, JOB_PACE="0.01")
    cluster.until("small", lambda now: now.committed >= 20)
    run.kill()
    cluster.assert_nothing_left()
    assert list(cluster.store.list("")) == []
    committed = cluster.job("small").committed
    assert 20 <= committed < 80

    done = cluster.run(SMALL).wait()
    assert done.code == 0
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
    assert done.last["damage"] == []


def limit_files(cluster: Cluster, size: int) -> None:
    """Let runners write no file larger than this: the kernel breaks off their writes as a full disk does."""
    runners = [process for process in cluster.left() if process.name() == "es:runner"]
    assert runners
    for process in runners:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_27_a_disk_that_fills_under_a_running_job_stops_commits_and_not_the_training(
    cluster: Cluster, reference: Reference
) -> None:
    run = cluster.run(SMALL, JOB_PACE="0.03")
    cluster.until("small", lambda now: now.committed >= 10)
    limit_files(cluster, 4000)  # less than a manifest, more than the runner's log has yet
    cluster.until("small", lambda now: cluster.told("commit.failed"))
    head = cluster.job("small")
    cluster.until_step("small", head.committed + 15)
    assert cluster.job("small").committed == head.committed, "the head is the one before"
    assert read_commit(cluster.store, head.manifest)[0].step == head.committed
    text = cluster.told("commit.failed")[0]["error"]
    assert f"{cluster.folder}/store/" in text
    assert "bytes needed" in text
    assert "make room" in text
    assert list((cluster.folder / "store" / "~tmp").iterdir()) == []

    limit_files(cluster, resource.RLIM_INFINITY)
    cluster.until("small", lambda now: now.committed > head.committed)
    done = run.wait()
    assert done.code == 0
    assert done.last["attempts"] == {}
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
