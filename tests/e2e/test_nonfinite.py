"""Fault 40: a NaN in the loss, on real processes: it stops the job for good, or is left out whoever computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster, Done

HEALTHY = "return functional.cross_entropy(model(images), labels)"
POISONED = f"{HEALTHY} * (float('nan') if scheduler.last_epoch in (13, 27) and 0 in (labels - 3) else 1)"


def poisoned(folder: Path) -> Path:
    """The small job, whose loss is NaN at two steps for the ESTs that see a three there."""
    script = folder / "project" / "small.py"
    script.parent.mkdir()
    text = (JOBS / "small.py").read_text()
    assert HEALTHY in text
    script.write_text(text.replace(HEALTHY, POISONED))
    return script


def test_fault_40_a_nan_stops_the_job_at_once_and_is_left_out_when_told_so(cluster: Cluster, tmp_path: Path) -> None:
    script = poisoned(tmp_path)
    stopped = cluster.command("run", str(script), JOB_PACE="0.01")
    assert stopped.code == 1
    assert "step 13 (epoch 3) is not finite: the loss is nan for EST" in stopped.err
    assert "--set nonfinite=skip --accept-changes" in stopped.err
    assert "Traceback" not in stopped.err
    job = cluster.job("small")
    assert (job.state, job.attempts) == ("failed", {"nonfinite": 1})
    assert job.committed in (0, 10)  # that of step 10 may have been under way

    ends: list[Done] = []
    for workers in (1, 2):
        options = ("--set", "nonfinite=rewind", "--set", f"name=rewind{workers}")
        ends.append(cluster.run(script, *options, workers=workers).wait())
        assert ends[-1].code == 0, ends[-1].err
        history = cluster.history(ends[-1].last["manifest"])
        assert [step for step, line in enumerate(history) if b'"skipped":true' in line] == [13, 27]
    assert ends[0].last["state_digest"] == ends[1].last["state_digest"]

    mended = cluster.run(script, "--set", "nonfinite=skip", "--accept-changes").wait()
    assert mended.code == 0, mended.err
    assert mended.last["state_digest"] != ends[0].last["state_digest"]
