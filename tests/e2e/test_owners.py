"""Workers on machines that belong to others: they yield to the owner within the step, and return when he has gone."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS
from easyscale.coordinator import keys
from easyscale.pipeline.speeds import read_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"
OWNER = "nobody" if os.getuid() == 0 else getpass.getuser()
"""Other tests work on this machine as well, so that only another user's processes should count."""

IDLE = ("--only-when-idle", "--owner", OWNER, "--busy", "0.05", "--quiet", "1")


@contextmanager
def busy() -> Iterator[None]:
    """A user keeps the machine busy."""
    user = OWNER if os.getuid() == 0 else None
    work = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], user=user) for _ in range(2)]
    try:
        yield
    finally:
        for one in work:
            one.kill()
            one.wait()


def state_of(cluster: Cluster, name: str) -> str:
    """What `easyscale workers` says that it does."""
    done = cluster.command("workers", "-o", "json")
    assert done.code == 0, done.err
    return next((row["state"] for row in json.loads(done.out) if row["name"] == name), "gone")


def test_a_worker_yields_to_a_competing_process_and_comes_back_and_the_bits_are_the_same(
    cluster: Cluster, reference: Reference
) -> None:
    cluster.coordinator()
    spare = cluster.worker("spare", *IDLE, JOB_PACE="0.05")
    cluster.worker("own", JOB_PACE="0.05")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 5)
    with busy():
        cluster.until(job, lambda now: len(now.workers) == 1)
        cluster.until_true(lambda: not spare.children)
        assert spare.running
        assert state_of(cluster, "spare") == "away"
        at = cluster.job(job).step
        cluster.until_step(job, at + 2)
        assert len(cluster.job(job).workers) == 1
    cluster.until(job, lambda now: len(now.workers) == 2)
    result = cluster.result(job)
    assert cluster.job(job).attempts.keys() <= {"preempted"}
    reference.assert_same(cluster, result.manifest, result.state_digest)
    for event in ("agent.away", "agent.back"):
        assert cluster.told(event), event


def test_a_job_whose_only_worker_is_away_has_committed_and_says_what_it_waits_for(
    cluster: Cluster, reference: Reference
) -> None:
    cluster.coordinator()
    spare = cluster.worker("spare", *IDLE, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until_step(job, 5)
    with busy():
        now = cluster.until(job, lambda now: now.state == "waiting" and "owners" in now.reason)
        assert "others use" in now.reason
        assert now.committed == now.step > 0
        cluster.until_true(lambda: not spare.children)
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_worker_begins_nothing_out_of_its_hours(cluster: Cluster) -> None:
    cluster.coordinator()
    now = datetime.now().astimezone()
    soon, later = (now + timedelta(hours=hours) for hours in (3, 4))
    worker = cluster.worker("spare", "--hours", f"{soon:%H:%M}-{later:%H:%M}")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: "it serves" in now.reason)
    assert state_of(cluster, "spare") == "away"
    assert worker.children == []


@pytest.mark.parametrize("how", ["file", "command"])
def test_a_notice_that_the_machine_will_go_is_honoured_like_sigterm(
    cluster: Cluster, tmp_path: Path, reference: Reference, how: str
) -> None:
    notice = tmp_path / "notice"
    option = ("--notice-file", str(notice)) if how == "file" else ("--notice-command", f"test -e '{notice}'")
    cluster.coordinator()
    worker = cluster.worker("spot", *option, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until_step(job, 5)
    notice.touch()
    assert worker.wait().code == 0
    worker.until_written("worker.notice")
    assert cluster.job(job).committed == cluster.job(job).step > 0
    cluster.worker("next")
    result = cluster.result(job)
    assert cluster.job(job).attempts.keys() <= {"preempted"}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_one_command_has_a_worker_for_each_device_of_a_machine_replaces_one_that_dies_and_leaves_with_all(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    crew = cluster.worker("host", "--device", "cpu,cpu,cpu", *IDLE, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)  # of 4 ESTs, with three of them one would have two as well
    cluster.until_step(job, 5)
    before = read_workers(cluster.kv)
    assert {record.name for record in before.values()} == {"host-0", "host-1", "host-2"}
    os.kill(next(record.pid for record in before.values() if record.name == "host-0"), signal.SIGKILL)
    injected("SIGKILL of a worker")
    cluster.until_true(lambda: read_workers(cluster.kv).keys() - before.keys())
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)
    crew.signal(signal.SIGTERM)
    assert crew.wait().code == 0
    assert cluster.kv.range(keys.WORKERS) == []
