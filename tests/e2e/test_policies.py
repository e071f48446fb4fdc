"""Jobs that share workers by a policy: who goes first has them, the others go on later or with fewer, whoever leads and
whatever it is that takes the workers; the bits are those of a job left alone, and nothing is held against anybody."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, STAGES
from easyscale.pipeline.speeds import read_workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster import Cluster, Process
    from reference import Reference

SMALL = JOBS / "small.py"
PACE = "0.02"
PAUSED_IN = 3
"""The step in which `JOB_PAUSE=step` has `stages.py` wait."""

KILLS = 8
MOST_SECONDS = 1.5
"""Between two kills of leaders: a takeover takes some seconds of lease besides."""


def by_policy(cluster: Cluster) -> Process:
    return cluster.coordinator("--policy", "easyscale")


def members(cluster: Cluster, job: str) -> int:
    return len(cluster.view(job).members)


def nothing_but_preemptions(cluster: Cluster, *jobs: str) -> None:
    for job in jobs:
        assert cluster.job(job).attempts.keys() <= {"preempted"}, "which is nobody's fault"
        assert cluster.job(job).recoveries == []


def test_a_short_job_has_the_workers_of_a_long_one_which_then_comes_to_the_state_of_one_left_alone(
    cluster: Cluster, reference: Reference
) -> None:
    by_policy(cluster)
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE=PACE)
    long = cluster.submit(SMALL)
    cluster.until(long, lambda now: len(now.workers) == 2)
    cluster.until_step(long, 10)
    short = cluster.submit(SMALL, name="short", steps=6)
    cluster.until(short, lambda now: len(now.workers) == 2 or now.state == "done")
    assert cluster.job(long).workers == [], "it is nearer to its end with both"
    ended = cluster.result(short)
    assert cluster.history(ended.manifest) == reference.history[:6]
    assert cluster.job(long).state != "done"
    result = cluster.result(long)
    nothing_but_preemptions(cluster, long)
    reference.assert_same(cluster, result.manifest, result.state_digest)


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 2)], ids=["which_shrinks_and_goes_on", "which_stops"])
def test_a_job_of_higher_priority_takes_what_it_asks_for_of_a_running_one_and_gives_it_back(
    cluster: Cluster, reference: Reference, least: int, most: int
) -> None:
    by_policy(cluster)
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE=PACE)
    first = cluster.submit(SMALL)
    cluster.until(first, lambda now: len(now.workers) == 2)
    cluster.until_step(first, 10)
    with cluster.slowly():  # it must not end before the other one has begun
        urgent = cluster.submit(SMALL, name="urgent", steps=12, priority=1, min_workers=least, max_workers=most)
        cluster.until(urgent, lambda now: len(now.workers) == most)
        assert members(cluster, first) == 2 - most
        if most < 2:
            before = cluster.reached(first)
            cluster.until(first, lambda now: cluster.reached(first) > before)
            assert members(cluster, first) == 1
            assert members(cluster, urgent) == 1
        else:
            waits = cluster.until(first, lambda now: now.state == "waiting")
            assert "by policy easyscale" in waits.reason
    ended = cluster.result(urgent)
    assert cluster.job(first).state != "done"
    with cluster.slowly():
        cluster.until(first, lambda now: len(now.workers) == 2)
    result = cluster.result(first)
    nothing_but_preemptions(cluster, first, urgent)
    assert cluster.history(ended.manifest) == reference.history[:12]
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_leaders_that_die_at_any_moment_leave_both_jobs_as_if_each_had_been_alone(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    chance = random.Random(7)
    for _ in range(2):
        by_policy(cluster)
    for name in ("w0", "w1", "w2"):
        cluster.worker(name, JOB_PACE="0.1")
    both = [cluster.submit(SMALL, name=name, max_workers=2) for name in ("small", "other")]
    with cluster.slowly():
        for kill in range(KILLS):
            leader = cluster.until_true(cluster.leader)
            time.sleep(chance.uniform(0.0, MOST_SECONDS))  # there is no event: it may be in the middle of anything
            leader.kill()
            injected("SIGKILL of the coordinator")
            by_policy(cluster)
            cluster.until_true(lambda: cluster.leader() not in (None, leader))  # noqa: B023 - it is called here
            cluster.submit(SMALL, name="other", max_workers=2, priority=kill % 3 - 1)  # workers go to and fro
        assert "done" not in {cluster.job(job).state for job in both}, "all that happened to both"
    for job in both:
        result = cluster.result(job)
        reference.assert_same(cluster, result.manifest, result.state_digest)
    nothing_but_preemptions(cluster, *both)


@pytest.mark.parametrize(
    "with_it", ["nobody", "one_that_cannot_go_on_alone", "one_that_can_from_now_on", "one_that_joins"]
)
def test_an_owner_who_takes_a_worker_in_the_middle_of_a_step_has_it_when_that_step_is_done(
    cluster: Cluster, tmp_path: Path, digest: str, with_it: str
) -> None:
    sign = tmp_path / "sign"
    by_policy(cluster)
    taken = cluster.worker("taken", JOB_PAUSE="step", JOB_SIGN=str(sign))
    both = with_it in ("one_that_cannot_go_on_alone", "one_that_can_from_now_on")
    if both:
        cluster.worker("stays")
    job = cluster.submit(STAGES, min_workers=1 + both)
    cluster.until_true(sign.exists)
    if with_it == "one_that_can_from_now_on":  # runners begin anew when a setting changes: at the same time
        cluster.submit(STAGES, min_workers=1)
    if with_it == "one_that_joins":
        cluster.worker("joins")
        cluster.until_true(lambda: "ready" in [worker.state for worker in read_workers(cluster.kv).values()])
    taken.signal(signal.SIGTERM)
    taken.until_written("agent.leaving")
    assert taken.running, "it is in the middle of a step"
    sign.unlink()
    assert taken.wait().code == 0
    told = [json.loads(line) for line in taken.text.splitlines()]
    (held,) = [line["held"] for line in told if line["event"] == "agent.runner_idle"]
    assert held == PAUSED_IN + 1, "it has done this step, and no other"
    if with_it in ("nobody", "one_that_cannot_go_on_alone"):
        waits = cluster.until(job, lambda now: now.state == "waiting")
        assert (waits.committed, waits.workers) == (held, [])
        cluster.worker("comes")
    done = cluster.result(job)
    assert done.state_digest == digest
    first, *later = sorted({(line["generation"], line["step"]) for line in cluster.told("runner.generation")})
    assert (first[1], later[0][1]) == (0, held), "nothing is computed twice"
    nothing_but_preemptions(cluster, job)


def test_an_unknown_policy_is_refused(cluster: Cluster) -> None:
    done = cluster.command("coordinator", "--policy", "srtf")
    assert done.code == 2
    assert "srtf" in done.err
