"""Whoever is killed -9, whenever: the job goes on, and comes to the bits of the undisturbed run."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import psutil
from cluster import JOBS
from easyscale.pipeline.spec import Retries
from reference import STEPS_PER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster import Cluster, Process
    from reference import Reference

SMALL = JOBS / "small.py"


def test_workers_killed_at_random_moments_are_replaced_while_the_others_go_on(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    chance = random.Random(1)
    cluster.coordinator("--policy", "even")  # else three would not serve four ESTs: two are as fast
    workers = {f"w{i}": cluster.worker(f"w{i}", JOB_PACE="0.04") for i in range(3)}
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 3)
    killed = 0
    while killed < 3:
        cluster.until_step(job, cluster.reached(job) + chance.randint(1, 9))
        with cluster.slowly():
            now = cluster.until(job, lambda now: now.state == "done" or len(now.workers) > 1)
        if now.state == "done":
            break
        workers.pop(chance.choice(now.workers).partition("-")[0]).kill()
        injected("SIGKILL of a worker")
        killed += 1
        workers[f"w{2 + killed}"] = cluster.worker(f"w{2 + killed}", JOB_PACE="0.04")
        cluster.until(job, lambda new, old=now: new.state == "done" or new.generation > old.generation)
    assert killed >= 2
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts["died"] == killed
    assert 1 <= len(after.recoveries) <= killed  # losses that follow each other at once are got over together
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_everything_killed_at_random_moments_and_rerun_comes_to_the_same_bits(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    chance = random.Random(2)

    def start() -> Process:
        return cluster.run(SMALL, workers=2, JOB_PACE="0.03")

    heads = [0]
    for moment in (chance.randint(1, 15), chance.randint(20, 30), chance.randint(40, 50)):
        run = start()
        cluster.until_step("small", max(moment, heads[-1] + 1))
        if len(heads) == 2:
            run.kill()  # the command alone: its workers, and their runners, die with it
            cluster.assert_nothing_left()
        else:
            cluster.kill_all()
        injected("SIGKILL of everything at once")
        heads.append(cluster.job("small").committed)
    done = start().wait()
    assert done.code == 0
    assert heads == sorted(heads)
    assert 0 < heads[-1] < 80
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])


def test_everything_killed_while_it_starts_does_no_harm(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    run = cluster.run(SMALL, workers=2)
    cluster.until("small", lambda now: True)  # the job exists: its workers are just being started
    run.kill()
    injected("SIGKILL of everything at once")
    cluster.assert_nothing_left()
    assert cluster.job("small").committed == 0
    done = cluster.run(SMALL).wait()
    assert done.code == 0
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])


def test_a_runner_killed_under_a_living_agent_is_counted_and_replaced(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    workers = [cluster.worker(f"w{i}", JOB_PACE="0.03") for i in range(2)]
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 12)
    (runner,) = workers[0].children
    runner.send_signal(signal.SIGKILL)
    injected("SIGKILL of a runner")
    cluster.until(job, lambda now: now.attempts.get("died") == 1)
    result = cluster.result(job)
    assert workers[0].running
    after = cluster.job(job)
    assert after.attempts == {"died": 1}
    assert [recovery.steps_recomputed for recovery in after.recoveries] == [1]
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_loader_processes_end_with_a_runner_that_is_killed(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    worker = cluster.worker("w0", JOB_PACE="0.02")
    job = cluster.submit(SMALL, loaders=2)
    cluster.until_step(job, 5)
    (runner,) = worker.children
    loaders = runner.children(recursive=True)
    assert len(loaders) >= 2
    runner.send_signal(signal.SIGKILL)
    injected("SIGKILL of a runner")
    _, alive = psutil.wait_procs([runner, *loaders], timeout=20)
    assert alive == []
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_step_that_always_kills_its_worker_is_quarantined_with_evidence(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    job = cluster.submit(SMALL, retries=Retries(died=1))
    killed = 0
    while (now := cluster.job(job)).state != "failed":
        assert killed < 4, "two without progress, and at most one more for each step that was first heard of late"
        killed += 1
        # A lease that ran out on a busy machine would be counted, too.
        worker = cluster.worker(f"w{killed}", ttl=5.0, JOB_FAULT="die-with-worker:1")
        cluster.until(job, lambda now: now.attempts.get("died") == killed)  # noqa: B023
        injected("SIGKILL of a worker by its own step")
        assert worker.wait().code == -signal.SIGKILL
        cluster.until(job, lambda now: now.state != "running")
    assert now.attempts == {"died": killed}, "counted although nobody was left to report it"
    assert "ended 2 attempts without progress; it is quarantined" in now.reason
    assert f"w{killed}-" in cluster.view(job).status.value.failure.worker
    shown = cluster.command("show", job)
    assert "it is quarantined" in shown.out
    assert f"retry {job}" in shown.out, "and how to go on"


def test_a_job_whose_build_always_kills_its_worker_is_quarantined(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    job = cluster.submit(SMALL, retries=Retries(died=1))
    for killed in (1, 2):
        worker = cluster.worker(f"w{killed}", JOB_FAULT="die-with-worker:-2")
        now = cluster.until(job, lambda now: now.attempts.get("died") == killed)  # noqa: B023
        injected("SIGKILL of a worker by the build of its job")
        assert worker.wait().code == -signal.SIGKILL
    assert (now.state, now.attempts) == ("failed", {"died": 2})
    assert "ended 2 attempts without progress; it is quarantined" in now.reason
    assert "while it got ready" in now.reason
    assert "w2-" in cluster.view(job).status.value.failure.worker
    other = cluster.worker("w3")
    cluster.until_true(lambda: "w3-" in other.text)
    assert cluster.job(job).attempts == {"died": 2}, "nobody else is killed by it"


def test_a_job_killed_at_every_step_within_an_epoch_takes_each_sample_once(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None], tmp_path: Path
) -> None:
    steps = range(1, STEPS_PER_EPOCH)
    cluster.coordinator()
    fault = "hang:" + ",".join(map(str, steps))
    worker = cluster.worker("w0", JOB_FAULT=fault, JOB_ONCE=str(tmp_path / "reached"))
    job = cluster.submit(SMALL, commit_every=1)  # the first step after a start is always committed
    for step in steps:
        cluster.until_true((tmp_path / f"reached-{step}").exists)
        cluster.until(job, lambda now, step=step: now.committed == step)
        (runner,) = worker.children
        runner.send_signal(signal.SIGKILL)
        injected("SIGKILL of a runner")
    result = cluster.result(job)
    assert cluster.job(job).attempts == {"died": len(steps)}
    assert [generation["step"] for generation in cluster.told("runner.generation")] == [0, *steps]
    reference.assert_same(cluster, result.manifest, result.state_digest)  # sample ids and learning rates included


def test_a_step_that_always_kills_its_runner_fails_the_job_with_evidence(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    cluster.worker("w0", JOB_FAULT="die:5")
    job = cluster.submit(SMALL, retries=Retries(died=1))
    now = cluster.until(job, lambda now: now.state == "failed")
    assert now.attempts == {"died": 2}
    injected("SIGKILL of a runner by its own step")
    assert "step 5 " in now.reason
    assert "quarantined" in now.reason
    assert "SIGKILL" in now.reason
    failure = cluster.view(job).status.value.failure
    assert (failure.cause, failure.step) == ("died", 5)
    assert "w0-" in failure.worker
