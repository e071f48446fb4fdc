"""The user's code raises, or does not fit on a device: who hears of it, what it costs, how to go on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS
from easyscale.errors import RemoteError
from easyscale.pipeline.submit import Handle
from easyscale.storage import commits

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"
MISTAKE = 'if FAULT == "raise":'
ALWAYS = "if scheduler.last_epoch == 25:\n            raise ValueError('the user\\'s own mistake')\n        if scheduler"


def test_an_exception_in_the_users_code_is_shown_and_mended_from_the_newest_commit(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    script = tmp_path / "project" / "small.py"
    script.parent.mkdir()
    healthy = SMALL.read_text()
    script.write_text(healthy.replace("if scheduler", ALWAYS, 1))

    failed = cluster.run(script).wait()
    assert failed.code == 1
    assert "ValueError: the user's own mistake" in failed.err
    assert "small.py" in failed.err
    assert "in step" in failed.err
    assert "easyscale/pipeline" not in failed.err.partition("failed:")[2]  # our own frames are nobody's business
    assert failed.last["state"] == "failed"
    assert failed.last["attempts"] == {"raised": 1}
    assert cluster.left() == []
    shown = cluster.command("show", "small")
    assert "ValueError: the user's own mistake" in shown.out
    assert "in step" in shown.out
    with pytest.raises(RemoteError, match=r"(?s)step 25.*in step.*the user's own mistake"):
        Handle("small", cluster.kv).result(timeout=5)
    before = cluster.job("small")
    assert before.committed == 20

    script.write_text(healthy)
    refused = cluster.run(script).wait()
    assert refused.code == 2
    assert "--accept-changes" in refused.err
    assert "the user\\'s own mistake" in refused.err  # the line that was removed

    mended = cluster.run(script, "--accept-changes").wait()
    assert mended.code == 0
    codes = {manifest.step: manifest.code for _, manifest in commits.chain(cluster.store, mended.last["manifest"])}
    assert set(codes) == {10, 20, 30, 40, 50, 60, 70, 80}
    assert codes[10] == codes[20] != codes[30] == codes[80]
    assert before.manifest in [digest for digest, _ in commits.chain(cluster.store, mended.last["manifest"])]
    reference.assert_same(cluster, mended.last["manifest"], mended.last["state_digest"])


def test_a_worker_that_runs_out_of_memory_hands_its_work_back(cluster: Cluster, reference: Reference) -> None:
    cluster.coordinator()
    job = cluster.submit(SMALL)
    small = cluster.worker("small", JOB_FAULT="memory:5")
    now = cluster.until(job, lambda now: "every worker refused" in now.reason)
    assert now.state == "waiting"
    assert "small: out of memory at step 5" in now.reason
    cluster.worker("large")
    result = cluster.result(job)
    after = cluster.job(job)
    assert after.attempts == {"memory": 1}
    assert small.running
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_memory_that_runs_out_for_real_is_told_from_a_failure(cluster: Cluster, reference: Reference) -> None:
    cluster.coordinator()
    job = cluster.submit(SMALL)
    cluster.worker("w0", JOB_FAULT="limit:5")
    cluster.until(job, lambda now: now.attempts.get("memory") == 1)
    cluster.worker("w1")
    result = cluster.result(job)
    assert cluster.job(job).attempts == {"memory": 1}
    reference.assert_same(cluster, result.manifest, result.state_digest)
