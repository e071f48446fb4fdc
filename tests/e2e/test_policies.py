"""Jobs that share workers by a policy: who is done sooner goes first, the other goes on later, with the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_a_short_job_has_the_workers_of_a_long_one_which_then_comes_to_the_state_of_one_left_alone(
    cluster: Cluster, reference: Reference
) -> None:
    cluster.coordinator("--policy", "easyscale")
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE="0.02")
    long = cluster.submit(SMALL)
    cluster.until(long, lambda now: len(now.workers) == 2)
    cluster.until_step(long, 10)
    short = cluster.submit(SMALL, name="short", steps=6)
    cluster.until(short, lambda now: len(now.workers) == 2 or now.state == "done")
    assert cluster.job(long).workers == [], "it is nearer to its end with both"
    assert cluster.result(short).state_digest
    assert cluster.job(long).state != "done"
    result = cluster.result(long)
    assert cluster.job(long).attempts.keys() <= {"preempted"}, "which is nobody's fault"
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_an_unknown_policy_is_refused(cluster: Cluster) -> None:
    done = cluster.command("coordinator", "--policy", "srtf")
    assert done.code == 2
    assert "srtf" in done.err
