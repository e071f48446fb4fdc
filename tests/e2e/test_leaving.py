"""Told to go: finish the step, commit if nobody else goes on, be gone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from cluster import JOBS
from easyscale.storage import commits

if TYPE_CHECKING:
    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_a_worker_told_to_go_leaves_after_its_step_and_nothing_is_computed_twice(
    cluster: Cluster, reference: Reference
) -> None:
    cluster.coordinator()
    first, _ = cluster.worker("w0", JOB_PACE="0.02"), cluster.worker("w1", JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 15)
    first.signal(signal.SIGTERM)
    assert first.wait().code == 0
    assert cluster.job(job).state == "running"
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.recoveries == []
    assert after.attempts.keys() <= {"preempted"}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_ctrl_c_commits_the_step_at_hand_and_the_same_command_goes_on_from_there(
    cluster: Cluster, reference: Reference
) -> None:
    stopped = []
    for number, step in ((signal.SIGINT, 15), (signal.SIGTERM, 45)):
        run = cluster.run(SMALL, workers=2, JOB_PACE="0.02")
        cluster.until_step("small", step)
        run.signal(number)
        done = run.wait()
        assert done.code == 130
        assert cluster.left() == []
        assert done.last["state"] != "done"
        newest = max(idle["held"] for idle in cluster.told("agent.runner_idle"))
        assert newest == done.last["step"] == done.last["committed"] >= step
        stopped.append(newest)
    done = cluster.run(SMALL).wait()
    assert done.code == 0
    steps = [manifest.step for _, manifest in commits.chain(cluster.store, done.last["manifest"])]
    assert set(stopped) <= set(steps)
    started = [generation["step"] for generation in cluster.told("runner.generation")]
    assert max(started) == stopped[-1]
    assert done.last["recoveries"] == []
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])


def test_ctrl_c_twice_ends_at_once_and_leaves_nothing_running(cluster: Cluster, reference: Reference) -> None:
    run = cluster.run(SMALL, workers=2, JOB_FAULT="hang:15")
    cluster.until_step("small", 15)
    run.signal(signal.SIGINT)
    run.until_written("once more to stop at once")
    assert run.running
    run.signal(signal.SIGINT)
    assert run.wait(timeout=20).code == 130
    cluster.assert_nothing_left()
    done = cluster.run(SMALL).wait()
    assert done.code == 0
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
