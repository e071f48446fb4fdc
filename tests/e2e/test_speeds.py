"""Ranges follow the speed of workers, whoever coordinates, and never show in the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from cluster import Cluster
    from reference import Reference


def lengths(cluster: Cluster) -> dict[str, int]:
    """ESTs by the name of the member."""
    return {m.worker.rpartition("-")[0]: m.last - m.first for m in cluster.view("small").members}


def test_the_first_ranges_follow_what_probes_took(cluster: Cluster, reference: Reference) -> None:
    cluster.coordinator()
    for name, factor in (("fast", "1"), ("slow", "4")):
        cluster.worker(name, "--slowdown", factor)
    with cluster.slowly():
        cluster.submit(JOBS / "small.py", min_workers=2)  # so nobody begins alone, and is measured first
        cluster.until("small", lambda now: now.generation == 1)
        assert lengths(cluster) == {"fast": 3, "slow": 1}, "planned before there was any step"
    done = cluster.result("small")
    reference.assert_same(cluster, done.manifest, done.state_digest)


def test_ranges_follow_a_slow_worker_whoever_coordinates(cluster: Cluster, reference: Reference) -> None:
    for _ in range(2):
        cluster.coordinator()
    cluster.worker("fast")
    with cluster.slowly():
        cluster.submit(JOBS / "small.py")
        cluster.until_true(lambda: cluster.view("small").rates)  # of a kind that is measured, probes do not count
        cluster.worker("slow", "--slowdown", "2.5")
        first = cluster.until("small", lambda now: len(now.workers) == 2).generation
        assert lengths(cluster) == {"fast": 2, "slow": 2}
        cluster.until("small", lambda now: now.generation > first)
        assert lengths(cluster) == {"fast": 3, "slow": 1}
        plan = cluster.view("small").plan
        assert plan is not None
        assert "x as fast as slow-" in plan.value.cause
        assert plan.value.cause.endswith(": ranges follow")
        leader = cluster.leader()
        assert leader is not None
        leader.kill()
        cluster.until_true(lambda: cluster.leader() not in (None, leader))
        cluster.until_step("small", cluster.reached("small") + 3)
    done = cluster.result("small")
    assert max(line["generation"] for line in cluster.told("runner.generation")) == first + 1, "the successor knows why"
    reference.assert_same(cluster, done.manifest, done.state_digest)
