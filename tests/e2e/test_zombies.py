"""A worker that was asleep while its lease ran out can compute, but not publish."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from cluster import JOBS, PATIENCE
from easyscale.pipeline.joblogs import read
from easyscale.storage import commits
from easyscale.storage.commits import read_marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import Cluster
    from reference import Reference

COMMIT = 30
"""The zombie's commit; the next one is at step 60, long after it was woken."""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_woken_after_its_lease_ran_out_is_refused_and_says_so(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    workers = {name: cluster.worker(name, ttl=4, JOB_PACE="0.05") for name in ("w0", "w1")}
    job = cluster.submit(JOBS / "small.py", commit_every=COMMIT)
    now = cluster.until(job, lambda now: len(now.workers) == 2)
    zombie = now.workers[0]  # slot 0 publishes
    agent = workers[zombie.partition("-")[0]]
    (runner,) = agent.children
    wait_for(lambda: cluster.step_at_hand() >= COMMIT - 10)

    agent.signal(signal.SIGSTOP)
    injected("SIGSTOP of a worker")
    wait_for(lambda: read_marker(cluster.store, job, COMMIT))  # written: now the runner wants it published,
    written = cluster.step_at_hand()
    wait_for(lambda: cluster.step_at_hand() >= written + 2)  # and has said so
    runner.send_signal(signal.SIGSTOP)
    lost = cluster.until(job, lambda now: len(now.workers) == 1)
    assert zombie not in lost.workers
    assert lost.committed == 0
    agent.signal(signal.SIGCONT)
    runner.send_signal(signal.SIGCONT)

    result = cluster.result(job)
    agent.signal(signal.SIGTERM)
    assert agent.wait().code == 0
    assert len(cluster.told("agent.publish_refused")) == 1, "not tried again and again"
    assert "fenced" in agent.text
    assert "lease_lost" in agent.text
    record = cluster.view(job).logs[zombie]
    assert b"".join(read(cluster.store, job, zombie, record)).count(b"commit.fenced") == 1
    after = cluster.job(job)
    assert after.state == "done"
    assert after.attempts["died"] == 1
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_of_two_groups_that_both_believe_to_be_the_job_one_publishes(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    agents = [cluster.worker(name, JOB_PACE="0.02") for name in ("w0", "w1")]
    job = cluster.submit(JOBS / "small.py")
    cluster.until(job, lambda now: len(now.workers) == 2)
    wait_for(lambda: cluster.step_at_hand() >= 15)
    asleep = [process for agent in agents for process in (*agent.children, agent)]
    for process in asleep:
        (process.signal if process in agents else process.send_signal)(signal.SIGSTOP)
    injected("SIGSTOP of all workers")

    cluster.worker("w2", JOB_PACE="0.02")
    new = cluster.until(job, lambda now: [it.partition("-")[0] for it in now.workers] == ["w2"])
    before = cluster.until(job, lambda now: now.committed > new.committed).committed
    for process in asleep:  # they have each other, and go on with the step that they were at
        (process.signal if process in agents else process.send_signal)(signal.SIGCONT)

    result = cluster.result(job)
    chain = [manifest for _, manifest in commits.chain(cluster.store, result.manifest)][::-1]
    generations = [manifest.generation for manifest in chain if manifest.generation]  # 0: made for those behind
    assert generations == sorted(generations)
    assert min(manifest.generation or new.generation for manifest in chain if manifest.step >= before) >= new.generation
    for agent in agents:
        wait_for(lambda agent=agent: "lease_lost" in agent.text)
        agent.signal(signal.SIGTERM)
        assert agent.wait().code == 0
    reference.assert_same(cluster, result.manifest, result.state_digest)
