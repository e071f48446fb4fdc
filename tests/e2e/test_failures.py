"""The user's code raises, or does not fit on a device: who hears of it, what it costs, how to go on."""

from __future__ import annotations

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
ALWAYS = (
    "if scheduler.last_epoch == 25:\n            raise ValueError('the user\\'s own mistake')\n        if scheduler"
)


def test_an_exception_in_the_users_code_is_shown_and_mended_from_the_newest_commit(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    script = tmp_path / "project" / "small.py"
    script.parent.mkdir()
    healthy = SMALL.read_text()
    script.write_text(healthy.replace("if scheduler", ALWAYS, 1))

    failed = cluster.command("run", str(script), JOB_PACE="0.02")
    assert failed.code == 1
    assert "ValueError: the user's own mistake" in failed.err
    assert "small.py" in failed.err
    assert "in step" in failed.err
    assert "easyscale/pipeline" not in failed.err.partition("failed:")[2]  # our own frames are nobody's business
    assert cluster.left() == []
    shown = cluster.command("show", "small")
    assert "ValueError: the user's own mistake" in shown.out
    assert "in step" in shown.out
    with pytest.raises(RemoteError, match=r"(?s)step 25.*in step.*the user's own mistake"):
        Handle("small", cluster.kv).result(timeout=5)
    before = cluster.job("small")
    assert (before.state, before.attempts) == ("failed", {"raised": 1})
    assert before.committed in (10, 20)  # that of step 20 may have been under way

    script.write_text(healthy)
    refused = cluster.run(script).wait()
    assert refused.code == 2
    assert "--accept-changes" in refused.err
    assert "the user\\'s own mistake" in refused.err  # the line that was removed

    mended = cluster.run(script, "--accept-changes").wait()
    assert mended.code == 0
    chain = dict(commits.chain(cluster.store, mended.last["manifest"]))
    assert before.manifest in chain
    old = chain[before.manifest].code
    assert all((manifest.code == old) == (manifest.step <= before.committed) for manifest in chain.values())
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
