"""A process is known by more than its number, and what an embedded store lent it ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import processes
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 30.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_this_process_lives() -> None:
    assert processes.is_alive(processes.identity(os.getpid()))


def test_a_process_that_ended_is_dead_at_once_also_before_it_is_waited_for(child: subprocess.Popen[bytes]) -> None:
    name = processes.identity(child.pid)
    assert processes.is_alive(name)
    child.kill()
    deadline = time.monotonic() + SECONDS
    while processes.is_alive(name) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not processes.is_alive(name), "a zombie does nothing any more"
    child.wait()
    assert not processes.is_alive(name)


def test_another_process_with_the_same_number_is_another(child: subprocess.Popen[bytes]) -> None:
    pid, started, namespace = processes.identity(child.pid).split(" ")
    assert processes.is_alive(f"{pid} {started} {namespace}")
    assert not processes.is_alive(f"{pid} {int(started) - 1} {namespace}")


def test_a_process_of_another_container_cannot_be_told_dead(child: subprocess.Popen[bytes]) -> None:
    pid, started, _ = processes.identity(child.pid).split(" ")
    assert processes.is_alive(f"{pid} {started} pid:[1]")
    assert processes.is_alive("4194304 1 pid:[1]")


def test_without_proc_the_number_has_to_do(child: subprocess.Popen[bytes]) -> None:
    pid, _, namespace = processes.identity(child.pid).split(" ")
    name = f"{pid} - {namespace}"
    assert processes.is_alive(name)
    assert processes.is_alive(f"1 - {namespace}"), "of somebody else, but alive"
    child.kill()
    child.wait()
    assert not processes.is_alive(name)


def test_a_command_with_spaces_and_brackets_is_read_past(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert processes.is_alive(processes.identity(process.pid))
        assert processes.identity(process.pid).split(" ")[1].isdigit()
    finally:
        process.kill()
        process.communicate()


GRANT = """
import sys
from pathlib import Path
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put
store = EmbeddedStore(Path(sys.argv[1]))
store.txn((), (Put("key", b"mine", store.grant(3600.0)),))
print("granted", flush=True)
input()
"""


def test_a_lease_ends_with_the_process_it_was_granted_to(tmp_path: Path) -> None:
    path = tmp_path / "kv.sqlite"
    store = EmbeddedStore(path)
    watch = store.watch("key")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", GRANT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"granted\n"
        assert store.get("key") is not None
        while watch.wait(0.0):
            pass
        process.kill()
        process.wait()
        assert watch.wait(SECONDS), "a watch wakes although nobody wrote"
        assert store.get("key") is None, "an hour before its time"
    finally:
        process.kill()
        process.communicate()
        watch.close()
        store.close()


def test_a_lease_of_a_living_process_stays(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "kv.sqlite")
    lease = store.grant(3600.0)
    store.txn((), (Put("key", b"mine", lease),))
    assert store.get("key") is not None
    store.close()
    again = EmbeddedStore(tmp_path / "kv.sqlite")
    assert again.get("key") is not None, "closing a store ends no lease: its process lives"
    again.close()
