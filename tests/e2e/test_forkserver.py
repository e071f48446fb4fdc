"""A fork server is killed under its children: they are lost with it, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
from cluster import JOBS

if TYPE_CHECKING:
    from cluster import Cluster, Process
    from reference import Reference

SMALL = JOBS / "small.py"


def kill_fork_server(process: Process) -> None:
    (fork_server,) = [child for child in psutil.Process(process.pid).children() if child.name() == "es:forkserver"]
    family = fork_server.children(recursive=True)
    fork_server.kill()
    assert psutil.wait_procs([fork_server, *family], timeout=20)[1] == []


def test_a_worker_goes_on_with_another_fork_server(cluster: Cluster, reference: Reference) -> None:
    cluster.coordinator()
    worker = cluster.worker("w0", alone=True, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until_step(job, 12)
    kill_fork_server(worker)
    result = cluster.result(job)
    assert worker.running
    assert cluster.job(job).attempts == {"died": 1}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_run_goes_on_with_other_workers(cluster: Cluster, reference: Reference) -> None:
    cluster.alone = True
    run = cluster.run(SMALL, workers=2, JOB_PACE="0.02")
    cluster.until_step("small", 12)
    kill_fork_server(run)
    done = run.wait()
    assert done.code == 0, done.err
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
