"""Ranges keep to the memory of workers, and never show in the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, Cluster
from easyscale.coordinator.room import HEADROOM
from once import once

if TYPE_CHECKING:
    from easyscale.coordinator import records

WIDE = JOBS / "wide.py"
EST = 16 << 20
"""Bytes of an EST's buffer."""


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `jobs/wide.py` comes to on one worker that nobody disturbs."""

    def undisturbed() -> str:
        with Cluster(tmp_path_factory.mktemp("wide") / "cluster") as it:
            done = it.run(WIDE).wait()
            assert done.code == 0, done.err
            return str(done.last["state_digest"])

    return once(tmp_path_factory, "wide", undisturbed)


def lengths(cluster: Cluster) -> dict[str, int]:
    """ESTs by the name of the member."""
    return {m.worker.rpartition("-")[0]: m.last - m.first for m in cluster.view("wide").members}


def measured(cluster: Cluster) -> records.Rate | None:
    """What is known of the memory that the job takes."""
    rates = cluster.view("wide").rates
    return next((rate for rate in rates.value.kinds.values() if rate.memory), None) if rates else None


def test_a_worker_gets_no_more_ests_than_its_memory_has_room_for(cluster: Cluster, plain: str) -> None:
    cluster.coordinator()
    with cluster.slowly():
        cluster.submit(WIDE)
        cluster.worker("large")
        rate = cluster.until_true(lambda: measured(cluster))
        assert rate.est_bytes == EST
        assert rate.memory > 4 * EST, "each replica holds the buffers of all ESTs"
        memory = int((rate.memory + 1.5 * EST) / (1 - HEADROOM))
        cluster.worker("little", "--max-memory", f"{memory}B")
        cluster.until("wide", lambda now: len(now.workers) == 2)
        assert lengths(cluster) == {"large": 3, "little": 1}, "they are equally fast"
        listed = cluster.command("workers").out
        assert "room for 1 EST" in next(line for line in listed.splitlines() if line.startswith("little"))
    assert cluster.result("wide").state_digest == plain
    assert cluster.job("wide").attempts == {}


def test_a_worker_that_ran_out_of_memory_goes_on_with_fewer_ests(cluster: Cluster, plain: str) -> None:
    cluster.coordinator()
    with cluster.slowly():
        cluster.submit(WIDE)
        cluster.worker("large")
        cluster.until_true(lambda: measured(cluster))
        # Of this much memory, an EST's is enough to be the reason.
        cluster.worker("little", "--max-memory", "1.5GiB", JOB_ROOM="1")
        cluster.until("wide", lambda now: now.attempts == {"memory": 1})
        cluster.until("wide", lambda now: len(now.workers) == 2)
        assert lengths(cluster) == {"large": 3, "little": 1}
    assert cluster.result("wide").state_digest == plain
    assert cluster.job("wide").attempts == {"memory": 1}
