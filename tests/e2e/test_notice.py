"""Told to go in the middle of anything, with little time, or all at once: the step at hand is what it costs."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from cluster import JOBS, STAGES, Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from reference import Reference

SECONDS = 60.0


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stage", ["build", "step", "evaluate", "commit"])
def test_sigterm_for_all_processes_is_honoured_while_warming_up_training_evaluating_and_uploading(
    cluster: Cluster, tmp_path: Path, digest: str, stage: str
) -> None:
    """As service managers send it: to agent, runner, loader processes and, in the middle of a step, a fork server."""
    sign = tmp_path / "sign"
    cluster.coordinator()
    alone = stage == "step"
    worker = cluster.worker("w0", alone=alone, JOB_PAUSE=stage, JOB_SIGN=str(sign))
    job = cluster.submit(STAGES, loaders=2)
    until_exists(sign)
    (runner,) = worker.children
    family = [runner, *runner.children(recursive=True), *psutil.Process(worker.pid).children()]
    assert len(family) == (1 if stage == "build" else 3) + alone, "its runner, two loaders, a fork server of its own"
    for process in family:
        process.send_signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    worker.until_written("agent.leaving")
    if stage != "build":
        assert worker.running
        sign.unlink()
    assert worker.wait().code == 0
    assert psutil.wait_procs(family, timeout=SECONDS)[1] == []
    now = cluster.job(job)
    assert now.attempts.keys() <= {"preempted"}
    assert now.committed == now.step
    assert now.committed > 0 or stage == "build"
    cluster.worker("w1")
    assert cluster.result(job).state_digest == digest


def test_notice_shorter_than_a_step_drops_the_step_and_lets_go_of_the_claim_at_once(
    cluster: Cluster, reference: Reference
) -> None:
    cluster.coordinator()
    short = cluster.worker("short", "--grace", "0.5", JOB_FAULT="hang:15", JOB_PACE="0.02")
    cluster.worker("w1", JOB_PACE="0.02")
    job = cluster.submit(JOBS / "small.py")
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 15)
    short.signal(signal.SIGTERM)
    assert short.wait().code == 0
    assert "agent.step_dropped" in short.text
    view = cluster.view(job)
    assert not [claim for claim in view.all_claims.values() if claim.value.worker.startswith("short")]
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts.keys() <= {"preempted"}  # it may be planned out before it reports
    assert after.recoveries == []
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_an_attempt_ends_although_one_of_its_loader_processes_is_stuck(cluster: Cluster, tmp_path: Path) -> None:
    """They do not hear SIGTERM, by which multiprocessing would end them before it waits for them for ever."""
    cluster.coordinator()
    worker = cluster.worker("w0", JOB_PAUSE="loader", JOB_SIGN=str(tmp_path / "sign"))
    job = cluster.submit(STAGES, loaders=2)
    now = cluster.until(job, lambda now: now.state == "failed")
    assert "enough" in now.reason
    worker.until_written("agent.attempt_ended")
    assert worker.children == []
