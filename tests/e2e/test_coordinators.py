"""The coordinator dies, at any point: steps go on without one, a successor takes over and loses no count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS
from easyscale.coordinator import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_a_coordinator_killed_at_every_stage_of_a_job_is_succeeded_and_nothing_is_miscounted(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    for _ in range(2):
        cluster.coordinator()

    def kill_the_leader() -> None:
        leader = cluster.until_true(cluster.leader)
        leader.kill()
        injected("SIGKILL of the coordinator")
        successor = cluster.until_true(lambda: (found := cluster.leader()) is not leader and found)
        assert successor.running
        cluster.coordinator()

    kill_the_leader()  # before there is a job
    workers = {name: cluster.worker(name, JOB_PACE="0.02") for name in ("w0", "w1")}
    job = cluster.submit(SMALL)
    cluster.until_true(lambda: cluster.kv.range(keys.ASSIGNED))
    kill_the_leader()  # while the workers prepare
    cluster.until_true(lambda: cluster.view(job).plan)
    kill_the_leader()  # when it has just planned
    now = cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 15)
    workers[now.workers[0].partition("-")[0]].kill()
    injected("SIGKILL of a worker")
    kill_the_leader()  # with a worker, before it can have counted it
    cluster.until(job, lambda now: len(now.workers) == 1)
    gone, left = now.workers
    known = f"{gone} died", f"{gone} lost by {left}"  # whichever the successor hears of first
    assert cluster.view(job).plan.value.cause in known, "recorded with the plan that it led to"
    cluster.until(job, lambda now: now.committed >= 60)
    kill_the_leader()  # towards the end
    result = cluster.result(job)
    assert cluster.job(job).attempts == {"died": 1}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_steps_and_commits_go_on_without_a_coordinator(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    only = cluster.coordinator()
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    only.kill()
    injected("SIGKILL of the coordinator")
    now = cluster.until(job, lambda now: now.committed == 80)
    assert cluster.kv.get(keys.LEADER) is None
    assert now.state == "running", "nobody has called it done"
    cluster.coordinator()
    result = cluster.result(job)
    assert cluster.job(job).attempts == {}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_job_that_says_running_though_everybody_was_lost_is_claimed_again(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE="0.02")
    job = cluster.submit(SMALL)
    with cluster.slowly():  # else one may still be joining, and be counted though it is in no list of workers
        cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 15)
    cluster.kill_all()
    injected("SIGKILL of everything at once")
    lost = cluster.job(job)
    assert lost.state == "running"
    assert lost.workers
    cluster.coordinator()
    cluster.worker("w2")
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts == {"died": len(lost.workers)}
    assert after.generation > lost.generation
    reference.assert_same(cluster, result.manifest, result.state_digest)
