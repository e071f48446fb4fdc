"""A pipeline is killed at each stage and each point: the same command goes on, to the bits of the undisturbed run."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS, Cluster, Process, sabotaged
from easyscale.coordinator import keys
from easyscale.pipeline import stages
from easyscale.storage import commits
from once import once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHAIN = JOBS / "chain.py"
POINTS = [
    ("prepare", "begun"),
    ("prepare", "computed"),
    ("train", "building"),
    ("train", "step"),
    ("evaluate", "begun"),
    ("evaluate", "computed"),
]

FORK = """
import os, time
from pathlib import Path
import easyscale as es
import torch
FOLDER = Path(os.environ["JOB_STEPS"])
def meets(me, other):
    (FOLDER / me).touch()
    while not (FOLDER / other).exists():
        time.sleep(0.01)
    return torch.rand(3)
def left():
    return meets("left", "right")
def right():
    return meets("right", "left")
def both(left, right):
    return {{"sum": (left + right).sum().item()}}
def broken(left):
    {broken}
def after(broken):
    return broken
def flaky():
    (FOLDER / f"flaky.{{os.getpid()}}").touch()
    if len(list(FOLDER.glob("flaky.*"))) == 1:
        raise OSError("the network is down")
    return 1
pipe = es.Pipeline("pipe", [left, right, broken, after, both, es.Stage(flaky, retries={{"raised": 1}}, threads=2)])
"""


@pytest.fixture(scope="session")
def bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each stage comes to when nobody disturbs it, on one worker."""

    def undisturbed() -> dict[str, str]:
        with Cluster(tmp_path_factory.mktemp("chain") / "cluster") as it:
            return digests(it.run(CHAIN))

    return once(tmp_path_factory, "chain", undisturbed)


def digests(run: Process) -> dict[str, str]:
    """A run to its end."""
    done = run.wait()
    assert done.code == 0, done.err
    assert done.last["state"] == "done"
    return {stage["stage"]: stage["state_digest"] for stage in done.last["stages"]}


def stop(cluster: Cluster, stage: str, point: str) -> Path:
    sign = cluster.folder / "steps" / f"stop.{stage}.{point}"
    sign.touch()
    return sign


def come(cluster: Cluster, stage: str, point: str) -> set[int]:
    """The processes that have come to a point so far: the inspection of a job's build is one."""
    return {int(path.suffix[1:]) for path in (cluster.folder / "steps").glob(f"{stage}.{point}.*")}


def until_there(cluster: Cluster, stage: str, point: str, before: int = 0) -> int:
    """Wait until one more process is at a point; the newest."""
    cluster.until_true(lambda: len(come(cluster, stage, point)) > before)
    found = (cluster.folder / "steps").glob(f"{stage}.{point}.*")
    return int(max(found, key=lambda path: path.stat().st_mtime).suffix[1:])


def test_killed_at_each_stage_and_each_point_the_same_command_goes_on(
    cluster: Cluster, bits: dict[str, str], injected: Callable[[str], None]
) -> None:
    for number, (stage, point) in enumerate(POINTS):
        sign = stop(cluster, stage, point)
        run = cluster.run(CHAIN, workers=1 + number % 2)
        until_there(cluster, stage, point, len(come(cluster, stage, point)))
        if number % 2:
            run.kill()  # the command alone: its workers, and their runners, die with it
            cluster.assert_nothing_left()
        else:
            cluster.kill_all()
        injected("SIGKILL of everything at once")
        sign.unlink()
    assert digests(cluster.run(CHAIN, workers=2)) == bits
    assert len(come(cluster, "prepare", "begun")) == 3, "killed twice, and never called again once it was committed"
    assert len(come(cluster, "evaluate", "begun")) == 3
    assert [commits.read_marker(cluster.store, f"chain.{stage}", 1) is not None for stage in ("prepare", "evaluate")]
    before = {path.name for path in (cluster.folder / "steps").iterdir()}
    assert digests(cluster.run(CHAIN)) == bits
    after = {path.name for path in (cluster.folder / "steps").iterdir()} - before
    assert {name.rpartition(".")[0] for name in after} <= {"train.building"}, "it is only looked at"


def test_workers_killed_at_each_stage_are_replaced_under_a_living_command(
    cluster: Cluster, bits: dict[str, str], injected: Callable[[str], None]
) -> None:
    signs = [stop(cluster, stage, point) for stage, point in POINTS if stage != "train"]
    signs.append(stop(cluster, "train", "step"))
    falls = cluster.folder / "falls"
    falls.mkdir()
    for point in ("upload", "publish"):
        (falls / point).touch()
    run = cluster.run(CHAIN, workers=2, **sabotaged(f"falls={falls}"))
    order = [("prepare", "begun"), ("prepare", "computed"), ("train", "step"), *POINTS[4:]]
    for stage, point in order:
        runner = until_there(cluster, stage, point)
        (cluster.folder / "steps" / f"stop.{stage}.{point}").unlink()
        if (stage, point) == ("evaluate", "computed"):
            for commit in ("upload", "publish"):  # it is ended where its commit is written, and not published
                (falls / commit).touch()
        else:
            os.kill(runner, signal.SIGKILL)
        injected("SIGKILL of a runner")
    assert digests(run) == bits
    assert not list(falls.iterdir()), "all were made"
    assert len(come(cluster, "prepare", "begun")) == 4, "killed three times before its commit was written"
    assert len(come(cluster, "evaluate", "begun")) == 3
    assert cluster.job("chain.prepare").attempts == {"died": 4}
    assert cluster.job("chain.evaluate").attempts == {"died": 3}


def test_a_result_that_was_committed_and_not_published_is_taken_though_another_call_would_give_another(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    falls = cluster.folder / "falls"
    falls.mkdir()
    (falls / "publish").touch()
    run = cluster.run(CHAIN, JOB_RESTLESS="1", **sabotaged(f"falls={falls}"))
    found = digests(run)
    injected("SIGKILL of a runner")
    assert cluster.job("chain.prepare").attempts == {"died": 1}
    assert len(come(cluster, "prepare", "begun")) == 1
    marker = commits.read_marker(cluster.store, "chain.prepare", 1)
    assert marker is not None
    assert marker.state_digest == found["prepare"]
    verdict = cluster.command("verify", "chain.prepare", JOB_RESTLESS="1")
    assert verdict.code == 1, "it is called anew, and gives something else"
    assert "not traced operator by operator" in verdict.out


def test_of_a_worker_that_was_asleep_and_another_one_the_result_counts_that_was_committed_first(
    cluster: Cluster, injected: Callable[[str], None]
) -> None:
    cluster.coordinator()
    asleep = cluster.worker("w0", ttl=2, JOB_RESTLESS="1")
    sign = stop(cluster, "prepare", "computed")
    submit = cluster.start("submit", str(CHAIN), name="submit", JOB_RESTLESS="1")
    runner = until_there(cluster, "prepare", "computed")
    assert [child.pid for child in asleep.children] == [runner]
    asleep.signal(signal.SIGSTOP)  # not its runner
    injected("SIGSTOP of a worker")
    elsewhere = cluster.folder / "elsewhere's steps"
    elsewhere.mkdir()
    held = elsewhere / "stop.prepare.computed"
    held.touch()
    cluster.worker("w1", JOB_RESTLESS="1", JOB_STEPS=str(elsewhere))
    cluster.until_true(lambda: list(elsewhere.glob("prepare.computed.*")))
    sign.unlink()
    marker = cluster.until_true(lambda: commits.read_marker(cluster.store, "chain.prepare", 1))
    held.unlink()
    cluster.until("chain.prepare", lambda now: now.state == "done")
    asleep.signal(signal.SIGCONT)
    assert submit.wait().code == 0
    assert cluster.result("chain.evaluate").steps == 1
    assert len(list(elsewhere.glob("prepare.begun.*"))) == 1, "it took the other's result then"
    after = cluster.job("chain.prepare")
    assert after.state_digest == marker.state_digest
    assert after.attempts == {"died": 2}, "one was taken for dead, one came second"


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(cluster: Cluster, bits: dict[str, str]) -> None:
    sign = stop(cluster, "train", "step")
    run = cluster.run(CHAIN)
    until_there(cluster, "train", "step")
    run.signal(signal.SIGINT)
    sign.unlink()
    done = run.wait()
    assert done.code == 130, done.err
    assert done.last["state"] in ("waiting", "running"), done.last
    assert cluster.job("chain.train").committed > 0
    assert digests(cluster.run(CHAIN)) == bits


def test_stages_are_seen_before_they_are_jobs_and_act_by_their_names(cluster: Cluster, bits: dict[str, str]) -> None:
    cluster.coordinator()
    cluster.worker("w0", "--only", "chain")
    sign = stop(cluster, "train", "step")
    submit = cluster.start("submit", str(CHAIN), name="submit")
    until_there(cluster, "train", "step")
    shown = cluster.command("show", "chain", "-o", "json").last
    assert [(stage["stage"], stage["kind"], stage["state"]) for stage in shown["stages"]] == [
        ("prepare", "function", "done"),
        ("train", "training", "running"),
        ("evaluate", "function", "waiting"),
    ]
    assert shown["stages"][2]["reason"] == "waits for train"
    assert "waits for train" in cluster.command("jobs").out
    assert "name a stage: chain.prepare" in cluster.command("watch", "chain").err
    submit.kill()  # what is submitted goes on
    assert "wanted paused" in cluster.command("pause", "chain").out
    sign.unlink()
    at = cluster.until("chain.train", lambda now: now.state == "paused").committed
    again = cluster.start("submit", str(CHAIN), name="submit").wait()
    assert again.code == 0, again.err
    assert "is done already" in again.out
    assert "was paused: going on with it" in again.out
    assert "all stages of pipeline 'chain' are submitted" in again.out
    for stage, digest in bits.items():
        assert cluster.result(f"chain.{stage}").state_digest == digest
    assert cluster.command("verify", "chain.evaluate").code == 0
    assert cluster.command("verify", "chain.train").code == 0
    forked = cluster.command("fork", f"chain.train@{at}", "--name", "other", "--set", "lr=0.01")
    assert forked.code == 0, forked.err
    assert cluster.view("other").record.pipeline == ""
    refused = cluster.command("fork", f"chain.train@{at}", "--name", "chain")
    assert "there is a pipeline 'chain' already" in refused.err


def test_independent_stages_run_side_by_side_and_what_builds_on_a_failed_one_is_not_begun(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "user" / "pipe.py"
    script.parent.mkdir()
    script.write_text(FORK.format(broken='raise ValueError("no such column")'))
    done = cluster.run(script, workers=2).wait()
    assert done.code == 1
    found = {stage["stage"]: stage for stage in done.last["stages"]}
    states = {stage: found[stage]["state"] for stage in found}
    assert states == {
        "left": "done",
        "right": "done",
        "broken": "failed",
        "after": "waiting",
        "both": "done",
        "flaky": "done",
    }
    assert cluster.job("pipe.flaky").attempts == {"raised": 1}
    assert "no such column" in cluster.job("pipe.broken").traceback
    told = cluster.start("run", str(script), name="run").wait()  # with nothing mended
    assert told.code == 1
    assert "error: stage 'broken' failed" in told.err
    assert "stage 'after' was not begun: it builds on 'broken'" in told.err
    assert "stage 'left' is done already" in told.out
    script.write_text(FORK.format(broken="return {'mean': left.mean().item()}"))
    refused = cluster.start("run", str(script), name="run").wait()
    assert refused.code == 2
    assert "job 'pipe.left' has been submitted before and differs now" in refused.err
    assert "easyscale rewind pipe.left --to 0" in refused.err
    mended = cluster.start("run", str(script), "--accept-changes", name="run").wait()
    assert mended.code == 0, mended.err
    assert "it keeps what it came to before the changes" in mended.out
    assert digests(cluster.run(script))["after"] == cluster.job("pipe.broken").state_digest


def test_a_stage_is_computed_anew_after_a_rewind_and_later_ones_see_that_their_inputs_changed(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "user" / "pipe.py"
    script.parent.mkdir()
    text = "import easyscale as es\ndef one():\n    return 1\ndef two(one):\n    return one * 2\n"
    text += "pipe = es.Pipeline('pipe', [one, two])\n"
    script.write_text(text)
    before = digests(cluster.run(script))
    assert cluster.command("rewind", "pipe.one", "--to", "0").code == 0
    script.write_text(text.replace("return 1", "return 5"))
    run = cluster.start("run", str(script), "--accept-changes", name="run").wait()
    assert run.code == 0, run.err
    assert "stage 'one' is done, one 5" in run.out
    assert "stage 'two' is done already, two 2" in run.out
    assert "easyscale rewind pipe.two --to 0" in run.out
    assert cluster.command("rewind", "pipe.two", "--to", "0").code == 0
    after = digests(cluster.run(script))
    assert after["one"] != before["one"]
    assert cluster.job("pipe.two").metrics == {"two": 10.0}
    assert cluster.command("verify", "pipe.two").code == 0


def test_a_script_drives_its_own_pipeline_and_gets_the_results(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "user" / "pipe.py"
    script.parent.mkdir()
    script.write_text(
        "import easyscale as es, torch\ndef one():\n    return {'x': torch.ones(2), 'y': (1, None)}\n"
        "def two(one):\n    return one['x'].sum().item()\n"
        "pipe = es.Pipeline('pipe', [one, two])\n"
        "if __name__ == '__main__':\n    found = pipe.run()\n    print(found['one'].value(), found['two'].value())\n"
    )
    cluster.coordinator()
    cluster.worker("w0")
    done = cluster.python("-P", str(script), name="script").wait()
    assert done.code == 0, done.err
    assert done.out == "{'x': tensor([1., 1.]), 'y': (1, None)} 2.0\n"
    picture = stages.read(cluster.kv, "pipe")
    assert picture is not None
    assert picture.state == "done"
    assert cluster.kv.get(keys.pipeline("pipe")) is not None
