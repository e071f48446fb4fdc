"""Ctrl-C, once and twice, at every stage of a command: in order, without a traceback, and nothing stays behind.

A terminal sends SIGINT to the whole foreground process group, and so do these tests.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import PATIENCE, STAGES, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import Done, Process


@pytest.fixture(autouse=True, scope="module")
def in_the_foreground() -> None:
    """Background jobs of a script ignore SIGINT from the start, and so would all that these tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the commands have their temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ctrl_c(process: Process) -> None:
    """As a terminal does it."""
    os.killpg(process.pid, signal.SIGINT)


def paused(cluster: Cluster, stage: str, scratch: Path, *command: str) -> tuple[Process, Path]:
    """A command that has come to that stage; it goes on when the file is removed."""
    sign = scratch.parent / "sign"
    process = cluster.start(
        *command, str(STAGES), name=command[-1], JOB_PAUSE=stage, JOB_SIGN=str(sign), TMPDIR=str(scratch)
    )
    until(lambda: sign.exists() or not process.running)
    assert process.running, process.text
    return process, sign


def ended(cluster: Cluster, process: Process, scratch: Path) -> Done:
    """It ended as it should, and nothing stayed."""
    done = process.wait()
    # Python may end itself by the signal, when it came while a class was being made: a shell shows 130 for that too.
    assert done.code in (130, -signal.SIGINT), done.err
    assert "Traceback" not in done.err
    cluster.assert_nothing_left()
    assert [path for path in scratch.iterdir() if not path.name.startswith("torchinductor_")] == []
    assert not [path for path in stored(cluster) if "~tmp" in path.parts]
    return done


def goes_on(cluster: Cluster, digest: str) -> None:
    """The same command comes to the same end."""
    done = cluster.run(STAGES).wait()
    assert done.code == 0, done.err
    assert done.last["state_digest"] == digest
    assert done.last["attempts"].keys() <= {"preempted", "died"}  # who was stopped at once could not say so


def stored(cluster: Cluster) -> list[Path]:
    """Files in the object store, those in the making too."""
    return [path for path in (cluster.folder / "store").rglob("*") if path.is_file()]


def loaded(process: Process, library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize("command", ["run", "submit", "worker", "coordinator"])
def test_while_the_command_starts(cluster: Cluster, scratch: Path, command: str) -> None:
    rest = [str(STAGES)] if command in ("run", "submit") else []
    process = cluster.start(command, *rest, name=command, alone=True, TMPDIR=str(scratch))
    until(lambda: loaded(process, "msgspec"))  # one of the first of a few hundred imports
    ctrl_c(process)
    ended(cluster, process, scratch)
    assert stored(cluster) == []


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("command", ["run", "submit"])
def test_while_the_script_is_inspected(cluster: Cluster, scratch: Path, command: str, times: int) -> None:
    process, _ = paused(cluster, "inspect", scratch, command)
    for _ in range(times):
        ctrl_c(process)
    done = ended(cluster, process, scratch)
    assert times == 2 or "run the same command again" in done.err
    assert stored(cluster) == []


def test_while_the_job_is_submitted(cluster: Cluster, scratch: Path, digest: str) -> None:
    with closing(sqlite3.connect(cluster.folder / "kv.sqlite")) as others:
        others.execute("BEGIN EXCLUSIVE")  # nobody can write meanwhile
        run = cluster.start("--log-level", "debug", "run", str(STAGES), name="run", TMPDIR=str(scratch))
        run.until_written("run.inspected")
        ctrl_c(run)
        ended(cluster, run, scratch)
    assert cluster.command("show", "stages").code == 2, "it is not there, not even in part"
    goes_on(cluster, digest)


@pytest.mark.parametrize("stage", ["build", "step", "evaluate", "commit"])
def test_once_it_finishes_what_is_at_hand_and_twice_it_stops_at_once(
    cluster: Cluster, scratch: Path, digest: str, stage: str
) -> None:
    run, sign = paused(cluster, stage, scratch, "run")
    ctrl_c(run)
    run.until_written("once more to stop at once")
    assert run.running or stage == "build"
    ctrl_c(run)
    ended(cluster, run, scratch)
    assert sign.exists(), "it has not gone on"
    before = cluster.job("stages").committed
    told = len(cluster.told("agent.leaving"))

    sign.unlink()
    run, sign = paused(cluster, stage, scratch, "run")
    ctrl_c(run)
    until(lambda: len(cluster.told("agent.leaving")) == told + 1)
    sign.unlink()
    done = ended(cluster, run, scratch)
    assert "run the same command again" in done.err
    after = cluster.job("stages").committed
    assert before == 0
    assert after >= 3 if stage != "build" else after == 0
    goes_on(cluster, digest)


def test_a_worker_without_work_leaves_at_once(cluster: Cluster) -> None:
    worker = cluster.worker("w0")
    worker.until_written("worker.started")
    ctrl_c(worker)
    assert worker.wait().code == 0
    cluster.assert_nothing_left()


def test_a_worker_told_twice_does_not_wait_for_its_step(cluster: Cluster, scratch: Path, digest: str) -> None:
    cluster.coordinator()
    sign = scratch.parent / "sign"
    worker = cluster.worker("w0", JOB_PAUSE="step", JOB_SIGN=str(sign))
    job = cluster.submit(STAGES)
    until(sign.exists)
    ctrl_c(worker)
    worker.until_written("agent.leaving")
    assert worker.running
    ctrl_c(worker)
    assert worker.wait().code == 0
    assert "Traceback" not in worker.text
    cluster.worker("w1")
    assert cluster.result(job).state_digest == digest
