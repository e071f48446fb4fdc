"""Whose a device is: obeyed quickly, trusted slowly; hours; notices; what counts on a GPU."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from datetime import time as time_of_day
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.errors import UserError
from easyscale.pipeline.owners import processor
from easyscale.pipeline.owners.gpu import MIB, Gpu, open_nvml
from easyscale.pipeline.owners.notices import Notice
from easyscale.pipeline.owners.processor import Processors, is_of, is_worker
from easyscale.pipeline.owners.rules import Hours, Patience, user_ids
from easyscale.pipeline.sizes import parse_size
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

# ---- patience


def test_what_is_seen_twice_drives_the_worker_away_and_what_is_seen_once_does_not() -> None:
    patience = Patience(notice=0.2, quiet=60.0)
    assert patience.look("x", 0.0) == ""
    assert patience.look("", 0.25) == ""
    assert patience.look("x", 0.5) == ""
    assert patience.look("x", 0.75) == "x"
    assert patience.look("y", 1.0) == "y", "the newest reason is told"


def test_it_is_back_only_when_nothing_was_seen_for_long_enough() -> None:
    patience = Patience(notice=0.0, quiet=60.0)
    assert patience.look("x", 0.0) == "x"
    assert patience.look("", 59.0) == "x"
    assert patience.look("x", 59.5) == "x"
    assert patience.look("", 100.0) == "x"
    assert patience.look("", 119.5) == ""
    assert patience.look("x", 120.0) == "x"


@given(
    looks=st.lists(st.tuples(st.booleans(), st.sampled_from([0.25, 1.0, 7.0])), max_size=200),
    quiet=st.sampled_from([0.0, 5.0, 20.0]),
)
def test_it_comes_back_no_sooner_than_its_quiet_time_whatever_is_seen(
    looks: list[tuple[bool, float]], quiet: float
) -> None:
    patience, now, last, away = Patience(notice=0.2, quiet=quiet), 0.0, float("-inf"), ""
    for busy, seconds in looks:
        now += seconds
        last = now if busy else last
        before, away = away, patience.look("busy" if busy else "", now)
        if before and not away:
            assert now - last >= quiet
        if busy and before:
            assert away
        if not busy and not before:
            assert not away


def test_a_new_worker_looks_first() -> None:
    patience = Patience(quiet=60.0)
    patience.expect("not yet", 0.0, 1.0)
    assert patience.look("", 0.5) == "not yet"
    assert patience.look("", 1.0) == ""
    patience = Patience(quiet=60.0)
    patience.expect("not yet", 0.0, 1.0)
    assert patience.look("x", 0.5) == "x"
    assert patience.look("", 1.5) == "x", "and then it waits as always"


# ---- hours


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("20:00-07:00", ["20:00", "23:59", "00:00", "06:59"], ["07:00", "12:00", "19:59"]),
        ("09:30-10:00", ["09:30", "09:59"], ["10:00", "09:29", "00:00"]),
        ("00:00-24:00", ["00:00", "23:59"], []),
        ("1:00-2:00, 13:00 - 14:00", ["01:30", "13:00"], ["02:00", "12:59", "14:00"]),
        ("24:00-06:00", ["00:00", "05:59"], ["06:00", "23:59"]),
    ],
)
def test_hours_are_kept(text: str, inside: list[str], outside: list[str]) -> None:
    hours = Hours.parse(text)
    assert [at for at in inside if hours.why_not(time_of_day.fromisoformat(at))] == []
    assert [at for at in outside if not hours.why_not(time_of_day.fromisoformat(at))] == []


def test_why_it_is_not_its_hour_is_said_in_full() -> None:
    assert Hours.parse("20:00-7:00").why_not(time_of_day(8, 0)) == "it serves 20:00-07:00 only"


@pytest.mark.parametrize(
    "text", ["", "20-7", "20:00", "25:00-07:00", "20:60-07:00", "07:00-07:00", "a:b-c:d", "24:30-1:00"]
)
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--hours") as raised:
        Hours.parse(text)
    assert raised.value.hint


# ---- notices


def test_a_notice_is_a_file_that_is_there_or_a_command_that_succeeds(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    by_file, by_command = Notice.of(file, None), Notice.of(None, f"test -e '{file}'")
    assert by_file.look() == by_command.look() == ""
    file.touch()
    assert str(file) in by_file.look()
    assert "test -e" in by_command.look()


def test_a_command_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert Notice.of(None, str(tmp_path / "nowhere")).look() == ""


@pytest.mark.parametrize("command", ["", "  ", "sh -c 'open"])
def test_a_command_that_cannot_be_read_is_refused(command: str) -> None:
    with pytest.raises(UserError, match="--notice-command"):
        Notice.of(None, command)


# ---- a GPU, by a stand-in for NVML


class NVMLError(Exception):
    """What NVML raises."""


class FakeNvml:
    """One GPU with processes on it."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.computing: dict[int, int | None] = {}
        self.others_used = 0
        self.busy = 0
        self.gone = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.gone:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, _: Any) -> list[Any]:  # noqa: N802
        if self.gone:
            raise NVMLError("GPU is lost")
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in self.computing.items()]

    def nvmlDeviceGetMemoryInfo(self, _: Any) -> Any:  # noqa: N802
        return SimpleNamespace(used=sum(memory or 0 for memory in self.computing.values()) + self.others_used)

    def nvmlDeviceGetUtilizationRates(self, _: Any) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.busy)


def gpu(nvml: FakeNvml, *, mine: tuple[int, ...] = (1, 2), runs: bool = False, pids: bool = True) -> Gpu:
    return Gpu(nvml, "GPU-1", lambda: mine, lambda: runs, lambda pid: pid != 88, memory=500 * MIB, load=0.2, pids=pids)


def test_another_process_that_computes_on_the_gpu_counts_and_ours_do_not() -> None:
    nvml = FakeNvml()
    nvml.computing = {2: 4000 * MIB}
    assert gpu(nvml, runs=True).look() == ""
    nvml.computing[77] = 1
    assert gpu(nvml, runs=True).look() == "process 77 computes on its GPU"
    del nvml.computing[2]
    assert gpu(nvml).look() == "process 77 computes on its GPU"
    nvml.computing = {88: 1}
    assert gpu(nvml).look() == "", "it is of a user who does not count"


def test_what_only_draws_counts_by_its_memory_and_unseen_ones_by_how_busy_they_keep_it() -> None:
    nvml = FakeNvml()
    nvml.others_used = 300 * MIB
    assert gpu(nvml).look() == ""
    nvml.computing = {2: 4000 * MIB}
    assert gpu(nvml, runs=True).look() == ""
    nvml.others_used = 600 * MIB
    assert gpu(nvml, runs=True).look() == "others use 600 MiB of its GPU's memory (limit 500 MiB)"
    nvml.computing, nvml.others_used = {}, 300 * MIB
    nvml.busy = 50
    assert gpu(nvml).look() == "others keep its GPU busy 50% of the time (limit 20%)"
    nvml.computing = {2: 4000 * MIB}
    assert gpu(nvml, runs=True).look() == "", "that may be us"


def test_in_a_container_processes_are_counted_since_their_pids_mean_nothing() -> None:
    nvml = FakeNvml()
    nvml.computing = {4711: 4000 * MIB}
    assert gpu(nvml, runs=True, pids=False).look() == ""
    assert gpu(nvml, runs=False, pids=False).look() == "1 process(es) of others compute on its GPU"
    nvml.computing[4712] = None
    assert gpu(nvml, runs=True, pids=False).look() == "1 process(es) of others compute on its GPU"


def test_memory_that_is_not_told_by_process_is_not_taken_for_anybodys() -> None:
    nvml = FakeNvml()
    nvml.computing, nvml.others_used = {2: None}, 9000 * MIB
    assert gpu(nvml, runs=True).look() == ""


def test_a_gpu_that_cannot_be_asked_is_not_used() -> None:
    nvml = FakeNvml()
    nvml.gone = True
    assert gpu(nvml).look() == "its GPU cannot be looked at: GPU is lost"


def test_without_nvml_or_with_another_gpu_the_option_is_refused() -> None:
    nvml = FakeNvml()
    assert open_nvml("GPU-1", nvml)[1] == "GPU-1"
    with pytest.raises(UserError, match=r"GPU-2.*Not Found"):
        open_nvml("GPU-2", nvml)
    nvml.gone = True
    with pytest.raises(UserError, match="Driver Not Loaded"):
        open_nvml("GPU-1", nvml)


# ---- processors


class Load:
    """A machine of two processors, and what works on them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, users: frozenset[int] = frozenset()) -> None:
        self.now, self.all, self.some = 100.0, 5000.0, {(1, 0.0): 70.0}
        monkeypatch.setattr(processor.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(processor, "_worked", lambda: self.all)
        monkeypatch.setattr(Processors, "_of_users" if users else "_of_family", lambda _: dict(self.some))
        self.look = Processors(0.25, list, users, lambda: self.now).look
        self.look()

    def passes(self, all_: float, *some: float) -> str:
        """A second, in which all processes and some of them worked so long."""
        self.now += 1.0
        self.all += all_
        for pid, seconds in enumerate(some, 1):
            self.some[pid, 0.0] = self.some.get((pid, 0.0), 0.0) + seconds
        return self.look()


def test_what_others_do_is_what_all_do_less_what_our_processes_and_their_children_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = Load(monkeypatch)
    assert [load.passes(0.4) for _ in range(3)] == ["", "", ""], "less than the limit, whoever it is"
    assert load.passes(1.8, 1.7) == "", "who it is will be known at the next look"
    assert load.passes(1.8, 1.7) == ""
    assert load.passes(1.8, 0.5, 1.2) == "", "one that is new is ours as well"
    assert load.passes(1.8, 0.5, 0.3) == "others use 50% of its 2 processors (limit 25%)"
    assert load.passes(0.2) == ""


def test_if_users_are_named_only_what_theirs_do_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(monkeypatch, frozenset({1000}))
    assert [load.passes(1.9, 0.1) for _ in range(3)] == ["", "", ""]
    assert load.passes(1.9, 0.8) == "others use 40% of its 2 processors (limit 25%)"


def test_two_looks_at_once_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(monkeypatch)
    load.passes(1.8)
    said = load.passes(1.8)
    load.all += 1.8
    load.now += 0.01
    assert load.look() == said != ""


def test_a_real_process_that_is_none_of_ours_is_seen() -> None:
    code = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        look = Processors(0.02, list).look
        assert any(time.sleep(0.25) or look() for _ in range(200))
    finally:
        for one in others:
            one.kill()
            one.wait()


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["/x/.venv/bin/python", "/x/.venv/bin/easyscale", "worker", "--name", "a"], True),
        (["easyscale", "run", "job.py"], True),
        (["/x/python", "-P", "-m", "easyscale.pipeline.cli", "worker", "--name", "w0"], True),
        (["easyscale", "show", "job"], False),
        (["python", "worker.py"], False),
        ([], False),
    ],
)
def test_easyscales_own_workers_are_not_others(command: list[str], is_one: bool) -> None:
    assert is_worker(command) is is_one


def test_users_are_named_as_the_machine_knows_them() -> None:
    assert user_ids("root, nobody") == {0, pwd.getpwnam("nobody").pw_uid}
    with pytest.raises(UserError, match="there is no user 'no such user'"):
        user_ids("root,no such user")
    assert is_of(os.getpid(), {os.getuid()})
    assert not is_of(os.getpid(), {os.getuid() + 1})
    assert not is_of(2**30, {0}), "it has gone"


# ---- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("2g", 2 << 30), ("500MB", 500 * 10**6), ("1.5 KiB", 1536), ("77", 77), ("1B", 1)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "GiB", "1XB", "1 2", "0.1B", "nan", "1.2.3GiB", "1e9", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--x"):
        parse_size(text, "--x")
