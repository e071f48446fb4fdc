"""The commands of Slurm's scripts and of systemd's units really run and are told to go: nothing shows in the bits."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from certificates import Authority
from cluster import JOBS, Cluster, told_on_failure
from deployment import DEPLOY, INSTALLED, unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster import Process
    from etcd_service import EtcdCluster
    from reference import Reference

SMALL = JOBS / "small.py"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Slurm:
    """A node of Slurm's, with a device of another kind: runs scripts, and keeps what it is asked to queue again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._bin = cluster, cluster.folder / "bin"
        self._queue = cluster.folder / "requeued"
        program(self._bin / "easyscale", f'#!/bin/sh\nexec {sys.executable} -P -m easyscale.pipeline.cli "$@"\n')
        program(self._bin / "scontrol", f'#!/bin/sh\necho "$@" >> {self._queue}\n')
        places = {"EASYSCALE_KV": cluster.kv_address, "EASYSCALE_STORE": cluster.store_address}
        settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in places.items())
        (cluster.folder / "easyscale.env").write_text(settings)  # that is $HOME

    def run(self, script: str, **env: str) -> Process:
        """Run a script as `sbatch` would."""
        here = self._cluster.folder / script
        here.write_text((DEPLOY / "slurm" / script).read_text().replace("--device cuda", "--device cpu"))
        env |= {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "USER": "somebody"}
        env |= {"SLURM_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NAME": "easyscale-worker"}
        code = "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"
        return self._cluster.python("-c", code, str(here), name=script.partition(".")[0], **env)

    @property
    def requeued(self) -> list[str]:
        """What `scontrol` was told."""
        return self._queue.read_text().splitlines() if self._queue.exists() else []


def test_slurm_worker_leaves_in_order_before_its_time_is_up_and_when_it_is_cancelled(
    cluster: Cluster, reference: Reference
) -> None:
    slurm = Slurm(cluster)
    coordinator = slurm.run("coordinator.sbatch")
    job = cluster.submit(SMALL)
    worker = slurm.run("worker.sbatch", JOB_PACE="0.02")
    cluster.until_step(job, 15)
    worker.signal(signal.SIGUSR1)  # to the shell alone, as --signal=B: says
    assert worker.wait().code == 0
    assert slurm.requeued == ["requeue 4711"]
    again = slurm.run("worker.sbatch", JOB_PACE="0.02")
    cluster.until_step(job, 45)
    os.killpg(again.pid, signal.SIGTERM)  # to all processes of the job, as scancel sends it
    assert again.wait().code == 0
    assert slurm.requeued == ["requeue 4711"], "who is cancelled does not come back"
    now = cluster.job(job)
    assert now.committed == now.step < 80
    cluster.worker("last")
    result = cluster.result(job)
    assert cluster.job(job).attempts.keys() <= {"preempted"}
    assert cluster.job(job).recoveries == []
    reference.assert_same(cluster, result.manifest, result.state_digest)
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait().code == 0


@pytest.fixture
def secured(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_cluster: Callable[..., EtcdCluster]
) -> Iterator[Cluster]:
    """A cluster on an etcd with TLS, client certificates and users, all of it told by the environment."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("client")
    etcd = etcd_cluster(1, authority)
    etcd.enable_users("s3 cret")
    env = {
        "EASYSCALE_ETCD_CA": str(authority.ca),
        "EASYSCALE_ETCD_CERT": str(cert),
        "EASYSCALE_ETCD_KEY": str(key),
        "EASYSCALE_ETCD_USER": "root",
        "EASYSCALE_ETCD_PASSWORD": "s3 cret",
    }
    with told_on_failure(Cluster(tmp_path / "cluster", etcd.address, env=env), request) as it:
        yield it
    etcd.close()


def started(cluster: Cluster, name: str, *more: str, **env: str) -> Process:
    """What systemd starts for a unit, instance `cpu`."""
    service = unit(DEPLOY / "systemd" / name)
    command = shlex.split(service["ExecStart"].replace("%I", "cpu"))
    assert command[0] == INSTALLED
    assert service["KillSignal"] == "SIGTERM"
    return cluster.start(*command[1:], *more, name=name.partition(".")[0], **env)


def test_systemd_services_leave_in_order_and_come_back_on_an_etcd_with_tls_and_users(
    secured: Cluster, reference: Reference
) -> None:
    coordinator = started(secured, "easyscale-coordinator.service")
    job = secured.submit(SMALL)
    nobody_else = ("--busy", "1", "--quiet", "0")  # the machine that runs the tests is hardly ever idle
    for step in (15, 45):
        worker = started(secured, "easyscale-worker@.service", *nobody_else, JOB_PACE="0.02")
        secured.until_step(job, step)
        worker.signal(signal.SIGTERM)
        assert worker.wait().code == 0
        now = secured.job(job)
        assert step <= now.committed == now.step < 80
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait().code == 0
    started(secured, "easyscale-coordinator.service")
    started(secured, "easyscale-worker@.service", *nobody_else)
    result = secured.result(job)
    assert secured.job(job).attempts.keys() <= {"preempted"}
    reference.assert_same(secured, result.manifest, result.state_digest)
