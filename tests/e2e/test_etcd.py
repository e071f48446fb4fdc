"""What a real etcd does to leases, watches and servers: no worker publishes by a lease that is over, nothing hangs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cluster import JOBS, Cluster, sabotaged, told_on_failure
from easyscale.coordinator import keys
from easyscale.storage.commits import read_marker
from reference import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from etcd_service import EtcdCluster
    from reference import Reference

pytestmark = pytest.mark.etcd

SMALL = JOBS / "small.py"
LONG_TTL = 60.0
"""A lease that does not end by itself while the test lasts."""


class On(NamedTuple):
    """A cluster on an etcd of its own."""

    cluster: Cluster
    etcd: EtcdCluster


@pytest.fixture
def on(request: pytest.FixtureRequest, tmp_path: Path, etcd_cluster: Callable[..., EtcdCluster]) -> Iterator[On]:
    """One member, unless the test asks for more."""
    etcd = etcd_cluster(getattr(request, "param", 1))
    with told_on_failure(Cluster(tmp_path / "cluster", etcd.address), request) as it:
        yield On(it, etcd)
    etcd.close()


def blobs(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """The blobs in the store and when each was written."""
    found = {path: path.stat() for path in (cluster.folder / "store" / "blobs").rglob("*") if path.is_file()}
    return {path.name: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


def test_a_lease_revoked_under_a_running_worker_is_noticed_before_its_commit_counts(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on
    cluster.coordinator()
    agent = cluster.worker("w0", ttl=LONG_TTL, alone=True, JOB_PACE="0.005")
    job = cluster.submit(SMALL, commit_every=STEPS)
    cluster.until_step(job, 10)
    (worker,) = cluster.job(job).workers
    agent.signal(signal.SIGSTOP)
    injected("SIGSTOP of a worker")
    cluster.until_true(lambda: read_marker(cluster.store, job, STEPS))  # written: the runner wants it published
    written = blobs(cluster)
    etcd.revoke(cluster.lease_of(worker))
    injected("a live lease revoked by etcd")
    agent.signal(signal.SIGCONT)

    result = cluster.result(job)
    assert len(cluster.told("agent.publish_refused")) == 1, "refused once, and not tried again and again"
    (fenced,) = cluster.told("commit.fenced")
    assert fenced["step"] == STEPS
    after = cluster.job(job)
    assert cluster.view(job).head.value.generation > 1, "published under a claim made after the loss"
    again = blobs(cluster)
    assert {name: again[name] for name in written} == written, "what was uploaded is not sent again"
    assert len(again) <= len(written) + 1, "another manifest, and no other blob"
    started = [generation["step"] for generation in cluster.told("runner.generation")]
    # The job may be called done before the second one has said that it starts: all steps are made already.
    assert started in ([0], [0, STEPS]), "what it held in memory was not computed again"
    assert after.attempts.keys() <= {"died", "preempted"}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_revoked_lease_whose_renewals_are_answered_ok_publishes_nothing(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on
    cluster.coordinator()
    liar = cluster.worker("liar", ttl=LONG_TTL, alone=True, JOB_PACE="0.005", **sabotaged("lying-renewals"))
    job = cluster.submit(SMALL, commit_every=STEPS)
    cluster.until_step(job, 10)
    (worker,) = cluster.job(job).workers
    liar.signal(signal.SIGSTOP)
    cluster.until_true(lambda: read_marker(cluster.store, job, STEPS))
    etcd.revoke(cluster.lease_of(worker))
    injected("a revoked lease that is renewed happily")
    liar.signal(signal.SIGCONT)

    cluster.until_true(lambda: cluster.told("agent.publish_refused"))
    result = cluster.result(job)
    assert cluster.view(job).head.value.generation > 1
    assert len(cluster.told("txn.lease_gone")) <= 2, "one refused write tells that the lease is over"
    assert "sabotaged" in liar.text
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_worker_restarted_under_the_same_name_does_not_pass_for_the_old_one(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on
    cluster.coordinator()
    first = cluster.worker("same", ttl=LONG_TTL, JOB_PACE="0.015")
    job = cluster.submit(SMALL)
    cluster.until_step(job, 15)
    (old,) = cluster.job(job).workers
    lease = cluster.lease_of(old)
    first.kill()
    injected("SIGKILL of a worker")
    cluster.worker("same", JOB_PACE="0.015")
    (new,) = cluster.until_true(
        lambda: {kv.key.removeprefix(keys.WORKERS) for kv in cluster.kv.range(keys.WORKERS)} - {old}
    )
    now = cluster.view(job)
    assert new.rpartition("-")[0] == old.rpartition("-")[0] == "same"
    assert [entry.value.worker for entry in now.all_claims.values()] == [old], (
        "its claim lives, and is not the new one's"
    )
    assert etcd.seconds_left(lease) > 0
    etcd.revoke(lease)  # rather than wait for it
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts == {"died": 1}
    assert len(after.recoveries) == 1
    reference.assert_same(cluster, result.manifest, result.state_digest)


@pytest.mark.parametrize("on", [3], indirect=True)
def test_a_dead_worker_whose_lease_an_election_restarts_is_planned_out_all_the_same(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on
    cluster.impatient_coordinator(stale=4.0)
    workers = {name: cluster.worker(name, ttl=LONG_TTL, JOB_PACE="0.015") for name in ("w0", "w1")}
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 12)
    dead = cluster.job(job).workers[0]
    lease = cluster.lease_of(dead)
    workers[dead.partition("-")[0]].kill()
    injected("SIGKILL of a worker")
    etcd.kill_leader()
    injected("SIGKILL of etcd's leader")
    now = cluster.until(job, lambda now: now.generation > 1 and dead not in now.workers)
    assert etcd.seconds_left(lease) > LONG_TTL / 2, "etcd takes it for alive"
    assert len(now.workers) == 1
    claims = [entry.value.worker for entry in cluster.view(job).all_claims.values()]
    assert dead not in claims, "nobody waits for its partials"
    result = cluster.result(job)
    assert cluster.job(job).attempts == {"died": 1}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_an_etcd_that_stands_still_hangs_nobody_and_steps_go_on(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on
    cluster.coordinator()
    for name in ("w0", "w1"):
        cluster.worker(name, ttl=4.0, JOB_PACE="0.015")
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_true(lambda: cluster.step_at_hand() >= 12)
    etcd.pause(0)
    injected("SIGSTOP of etcd")
    before = cluster.step_at_hand()
    shown = cluster.command("show", job)
    assert shown.code == 2
    assert "no answer" in shown.err
    assert "Traceback" not in shown.err
    assert cluster.step_at_hand() > before, "steps need no etcd"
    etcd.resume(0)
    result = cluster.result(job)
    assert "done" in cluster.command("show", job).out
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_without_any_word_from_watches_polling_notices_all(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, _ = on
    blind = sabotaged("blind-watches")
    cluster.coordinator(**blind)
    first = cluster.worker("w0", JOB_PACE="0.025", **blind)
    cluster.worker("w1", JOB_PACE="0.025", **blind)
    job = cluster.submit(SMALL)
    cluster.until(job, lambda now: len(now.workers) == 2)
    cluster.until_step(job, 12)
    first.kill()
    injected("SIGKILL of a worker")
    injected("watches that never wake")
    cluster.until(job, lambda now: len(now.workers) == 1)  # at once: its peer has lost it,
    cluster.until(job, lambda now: now.attempts.get("died") == 1)  # and when its lease has ended it is counted
    shown = cluster.command("show", job)
    assert "1 died" in shown.out
    result = cluster.result(job)
    assert cluster.job(job).attempts == {"died": 1}
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_twentieth_of_all_calls_failing_costs_no_attempt_and_no_step(
    on: On, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster, _ = on
    failing = sabotaged("errors=0.05")
    cluster.coordinator(**failing)
    for name in ("w0", "w1"):
        cluster.worker(name, ttl=4.0, JOB_PACE="0.015", **failing)
    job = cluster.submit(SMALL, min_workers=2)
    result = cluster.result(job)
    for event in ("txn.unknown", "txn.unavailable", "worker.store_unavailable", "lease_renewal_failed"):
        for _ in cluster.told(event):
            injected("a call to etcd that failed")
    after = cluster.job(job)
    assert after.attempts == {}
    assert after.recoveries == []
    assert after.generation == 2, "one that trained, and the empty one that ends the job"
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_clocks_an_hour_apart_change_nothing(on: On, reference: Reference, injected: Callable[[str], None]) -> None:
    cluster, _ = on
    cluster.coordinator()
    for name, ahead in (("early", 3600), ("late", -3600)):
        worker = cluster.worker(name, ttl=3.0, JOB_PACE="0.015", **sabotaged(f"clock={ahead}"))
        injected("a clock an hour off")
        worker.until_written("sabotaged")
    job = cluster.submit(SMALL, min_workers=2)
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts == {}
    assert after.generation == 2
    reference.assert_same(cluster, result.manifest, result.state_digest)
