"""What becomes of a job's commits at the user's hand, in real processes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, Cluster
from easyscale.storage import commits
from easyscale.storage.collected import has_packs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reference import Reference

SMALL = JOBS / "small.py"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A job that is done: `small`, with a commit every five steps or so."""
    with Cluster(tmp_path_factory.mktemp("history") / "cluster") as it:
        done = it.run(SMALL, "--set", "commit_every=5", JOB_PACE="0.01").wait()
        assert done.code == 0, done.err
        yield it


def age(cluster: Cluster, hours: float = 7.0) -> None:
    """Everything in the object store was written so long ago."""
    then = time.time() - 3600 * hours
    for folder, _, names in os.walk(cluster.folder / "store"):
        for name in names:
            os.utime(f"{folder}/{name}", (then, then))


def whole(cluster: Cluster, job: str) -> list[int]:
    """Steps of the commits whose states are there, newest first."""
    manifest = cluster.job(job).manifest
    assert manifest is not None
    return [found.step for _, found in commits.chain(cluster.store, manifest) if has_packs(cluster.store, found)]


def test_gc_shows_then_removes_and_the_job_goes_on_and_is_verified_from_its_first_step(
    cluster: Cluster, reference: Reference
) -> None:
    run = cluster.run(SMALL, "--set", "commit_every=5", workers=2, JOB_PACE="0.02")
    cluster.until_step("small", 45)
    run.signal(2)
    assert run.wait().code == 130
    before = whole(cluster, "small")
    assert len(before) >= 5
    age(cluster)
    shown = cluster.command("gc", "--keep-last", "2", "-o", "json")
    assert shown.code == 0, shown.err
    assert not shown.last["deleted"]
    assert shown.last["objects"] > 0
    assert whole(cluster, "small") == before, "a dry run"
    removed = cluster.command("gc", "small", "--keep-last", "2", "--delete", "-o", "json")
    assert removed.code == 0, removed.err
    assert (removed.last["objects"], removed.last["bytes"]) == (shown.last["objects"], shown.last["bytes"])
    assert whole(cluster, "small") == before[:2]
    again = cluster.command("gc", "--keep-last", "2", "--delete")
    assert "removed: 0 object(s)" in again.out, again.out
    done = cluster.run(SMALL, "--set", "commit_every=5", workers=2).wait()
    assert done.code == 0, done.err
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
    verified = cluster.command("verify", "small", "-o", "json")
    assert verified.code == 0, verified.out + verified.err
    assert (verified.last["start"], verified.last["end"], verified.last["findings"]) == (0, 80, [])
    lost = before[3]
    part = cluster.command("verify", "small", "--from", str(lost), "--to", str(lost + 1), "-o", "json")
    assert part.code == 0, part.out + part.err
    assert part.last["start"] == 0, "what lies between was collected"


def test_what_gc_cannot_be_asked_is_one_clear_error(ended: Cluster) -> None:
    cases = {
        ("gc", "nobody", "--keep-last", "2"): "no job 'nobody'",
        ("gc", "small"): "not what to keep of them",
        ("gc", "--keep-last", "0"): "greater than or equal to 1",
        ("gc", "--keep-best", "weight_sun"): "the metrics are weight_sum",
        ("gc", "--keep-best", "weight_sum:least"): "METRIC:max or METRIC:min",
        ("gc", "--min-age", "soon"): "write a number and s, m, h or d",
        ("gc", "--store", (ended.folder / "other").as_uri()): "name the object store that they were submitted with",
    }
    require_refused(ended, cases)


def require_refused(cluster: Cluster, cases: dict[tuple[str, ...], str]) -> None:
    running = {arguments: cluster.start(*arguments, name="refused") for arguments in cases}
    for arguments, words in cases.items():
        done = running[arguments].wait()
        assert done.code == 2, (arguments, done.err)
        assert words in done.err, (arguments, done.err)
        assert done.out == ""
        assert "Traceback" not in done.err


def test_a_short_minimum_age_is_refused_while_workers_are_there(cluster: Cluster) -> None:
    cluster.worker("w0")
    cluster.until_true(lambda: cluster.command("workers", "-o", "json").last)
    done = cluster.command("gc", "--min-age", "30m")
    assert done.code == 2
    assert "1 worker(s) are here" in done.err
