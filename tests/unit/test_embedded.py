"""The SQLite store where it differs from others: processes, kill -9, reboots, damaged and unusable files."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import embedded
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import CALL_DEADLINE, Put, absent
from easyscale.errors import AddressError, OutcomeUnknownError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = """
import sys
from pathlib import Path
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put, absent, unchanged

print("ready", flush=True)
sys.stdin.read()
store, name, counts = EmbeddedStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for mine in range(counts):
    while True:
        seen = store.get("/n")
        free = absent("/n") if seen is None else unchanged(seen)
        number = b"%d" % (int(seen.value) + 1 if seen else 1)
        if store.txn([free], [Put("/n", number), Put(f"/counts/{name}/{mine:06}", number)]).succeeded:
            break
    print(mine, flush=True)
"""

FILL = """
import resource, signal, sys
from pathlib import Path
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put
from easyscale.errors import UnavailableError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = EmbeddedStore(Path(sys.argv[1]))
store.txn([], [Put("/a", b"before")])
no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, no_limit[1]))
try:
    for number in range(100):
        store.txn([], [Put("/big", bytes(50_000)), Put("/count", b"%d" % number)])
except UnavailableError as error:
    print(error)
assert store.get("/a").value == b"before"
last = int(store.get("/count").value)
assert last == number - 1, (last, number)
resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
assert store.txn([], [Put("/a", b"after")]).succeeded
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(path)
    yield store
    store.close()


def counting(path: Path, processes: int, counts: int) -> dict[str, subprocess.Popen[str]]:
    """Processes by name that have begun to count, all at the same moment and on a file that none has made yet."""
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", COUNT, str(path), name, str(counts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in (f"p{number}" for number in range(processes))
    }  # fmt: skip
    for child in children.values():
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children.values():
        assert child.stdin is not None
        child.stdin.close()
    return children


def assert_counted(path: Path, acknowledged: dict[str, int]) -> None:
    """Every process's acknowledged counts are there, at most one more each, and the counter is their sum."""
    store = EmbeddedStore(path)
    total = 0
    for name, counts in acknowledged.items():
        found = len(store.range(f"/counts/{name}/"))
        assert counts <= found <= counts + 1
        total += found
    numbers = sorted(int(kv.value) for kv in store.range("/counts/"))
    assert numbers == list(range(1, total + 1)), "every number was given once"
    last = store.get("/n")
    assert last is not None
    assert int(last.value) == total
    store.close()


def test_processes_that_make_and_use_one_file_at_once_lose_no_increment(path: Path) -> None:
    children = counting(path, 4, 100)
    for child in children.values():
        assert child.stdout is not None
        child.stdout.read()
        assert child.wait() == 0
        child.stdout.close()
    assert_counted(path, dict.fromkeys(children, 100))


def test_killed_processes_leave_all_they_acknowledged_and_no_lock(path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    children = counting(path, 4, 10**6)
    acknowledged = {}
    for name, child in children.items():
        assert child.stdout is not None
        read = [child.stdout.readline() for _ in range(rng.randrange(5, 40))]
        child.kill()
        read += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        acknowledged[name] = int(read[-1]) + 1
    start = time.monotonic()
    assert_counted(path, acknowledged)
    assert time.monotonic() - start < 5 * CALL_DEADLINE


def test_a_reboot_ends_all_leases(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = EmbeddedStore(path)
    lease = before.grant(1e6)
    before.txn([], [Put("/leased", b"", lease), Put("/free", b"")])
    before.close()
    monkeypatch.setattr(embedded, "_boot_id", lambda: "another boot")
    after = EmbeddedStore(path)
    assert [kv.key for kv in after.range("/")] == ["/free"]
    assert not after.keep_alive(lease)
    assert after.grant(1e6) != lease
    after.close()


def test_a_writer_that_holds_the_lock_makes_calls_unavailable_in_time(path: Path, store: EmbeddedStore) -> None:
    store.txn([], [Put("/a", b"1")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="locked") as raised:
        store.txn([], [Put("/a", b"2")])
    assert time.monotonic() - start < 5 * CALL_DEADLINE
    assert not isinstance(raised.value, OutcomeUnknownError)
    found = store.get("/a")
    assert found is not None
    assert found.value == b"1", "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    assert store.txn([], [Put("/a", b"2")]).succeeded


def test_a_full_disk_is_unavailable_loses_nothing_and_passes(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILL, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.as_uri() in done.stdout


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"notes of mine\n" * 100)
    with pytest.raises(AddressError, match=r"kv\.sqlite.*not a database") as raised:
        EmbeddedStore(path)
    assert "move it away" in raised.value.hint
    assert path.read_bytes() == b"notes of mine\n" * 100


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE cookies (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(AddressError, match="another program"):
        EmbeddedStore(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_damage_found_while_reading_is_named(path: Path) -> None:
    store = EmbeddedStore(path)
    for number in range(50):
        store.txn([], [Put(f"/{number}", bytes(1000))])
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(AddressError, match=r"kv\.sqlite.*malformed"):
        EmbeddedStore(path).range("/")


@pytest.mark.parametrize("where", ["a folder", "under a file", "where nobody may write"])
def test_a_path_that_cannot_be_used_is_an_address_error_with_the_reason(tmp_path: Path, where: str) -> None:
    file = tmp_path / "file"
    file.touch()
    path = {
        "a folder": tmp_path,
        "under a file": file / "kv.sqlite",
        "where nobody may write": Path("/proc/easyscale-kv.sqlite"),
    }[where]
    with pytest.raises(AddressError, match=r"cannot be used: .+") as raised:
        EmbeddedStore(path)
    assert str(path) in str(raised.value)
    assert "--kv" in raised.value.hint


def test_a_removed_file_is_noticed_instead_of_written_apart(path: Path, store: EmbeddedStore) -> None:
    for each in path.parent.iterdir():
        each.unlink()
    with pytest.raises(AddressError, match="removed or replaced"):
        store.txn([], [Put("/a", b"")])
    second = EmbeddedStore(path)
    with pytest.raises(AddressError, match="removed or replaced"):
        store.txn([absent("/a")], [Put("/a", b"")])
    second.close()


def test_calls_after_close_are_unavailable(path: Path) -> None:
    store = EmbeddedStore(path)
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        store.get("/a")


def test_connections_of_threads_that_have_ended_are_closed(store: EmbeddedStore) -> None:
    for _ in range(5):
        thread = threading.Thread(target=store.get, args=("/a",))
        thread.start()
        thread.join()
    assert len(store._connections) <= 2


def test_waiting_costs_next_to_no_cpu(store: EmbeddedStore) -> None:
    watch = store.watch("/")
    watch.wait(0.1)
    before = time.thread_time()
    assert not watch.wait(1.0)
    assert time.thread_time() - before < 0.05


def test_closing_while_another_thread_looks_does_not_crash(tmp_path: Path) -> None:
    """Regression: SQLite crashes when a connection is closed under a thread that uses it. In a process of its own."""
    code = """
import sys, threading
from pathlib import Path
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.errors import EasyScaleError

for i in range(60):
    store = EmbeddedStore(Path(sys.argv[1]) / "kv.sqlite")
    looking = threading.Event()

    def look():
        try:
            while True:
                store.pulse()
                looking.set()
        except EasyScaleError:
            pass

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    looking.wait()
    store.close()
    for thread in threads:
        thread.join(0.02)
print("survived", flush=True)
import os
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr
