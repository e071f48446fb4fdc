"""What every object store promises, tried on each of them."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
from easyscale.errors import AddressError, NotFoundError, UnavailableError
from easyscale.storage import commits
from easyscale.storage.collected import read_notes
from easyscale.storage.collection import collect
from easyscale.storage.files import FileStore
from easyscale.storage.memory import MemoryStore
from easyscale.storage.objects import ObjectStore, Seen, open_store
from easyscale.storage.references import Known
from easyscale.storage.retention import Policy
from easyscale.storage.s3 import MULTIPART_ABOVE
from easyscale.storage.selftest import require_fit
from user import no_file_above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services import S3Server, SeaweedFS

KINDS = ["memory", "files", "moto_s3", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)]
REAL_KINDS = KINDS[1:]


@pytest.fixture(scope="module")
def buckets() -> dict[str, str]:
    """One bucket for each server: the first write to a new bucket is slow."""
    return {}


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    buckets: dict[str, str],
) -> ObjectStore:
    kind = request.param
    if kind == "memory":
        return MemoryStore("contract")
    if kind == "files":
        return open_store(f"file://{tmp_path}/a%20store")
    server: S3Server = request.getfixturevalue(kind)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    if kind not in buckets:
        buckets[kind] = server.new_bucket()
    return open_store(f"s3://{buckets[kind]}/jobs/{secrets.token_hex(4)}")


every_store = pytest.mark.parametrize("store", KINDS, indirect=True)
every_real_store = pytest.mark.parametrize("store", REAL_KINDS, indirect=True)


@every_store
def test_an_implementation_has_the_protocol_and_passes_the_self_test(store: ObjectStore) -> None:
    assert isinstance(store, ObjectStore)
    require_fit(store)
    assert list(store.list("selftest/")) == []


@every_store
def test_what_is_put_is_read_back_and_overwritten(store: ObjectStore) -> None:
    store.put("a/b", b"one")
    assert store.get("a/b") == b"one"
    store.put("a/b", b"a longer two")
    assert store.get("a/b") == b"a longer two"
    store.put("a/b", b"3", durable=False)
    assert store.get("a/b") == b"3"


@every_store
def test_a_missing_object_is_reported_by_name_and_may_be_deleted(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError, match="no/such/object"):
        store.get("no/such/object")
    assert not store.exists("no/such/object")
    store.delete("no/such/object")


@every_store
def test_a_deleted_object_is_gone_and_its_key_can_be_created_again(store: ObjectStore) -> None:
    assert store.create("x/y/z", b"1")
    assert store.exists("x/y/z")
    store.delete("x/y/z")
    assert not store.exists("x/y/z")
    assert list(store.list("")) == []
    assert store.create("x/y/z", b"2")
    assert store.get("x/y/z") == b"2"


@every_store
def test_an_empty_object_exists_and_is_empty(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.exists("empty")
    assert store.get("empty") == b""
    assert not store.create("empty", b"")


@every_store
def test_bytes_like_data_is_taken_in_every_form(store: ObjectStore) -> None:
    words = memoryview(bytes(range(16))).cast("I")
    for key, data in {"bytes": b"abc", "bytearray": bytearray(b"abc"), "memoryview": words}.items():
        store.put(f"put/{key}", data)
        assert store.get(f"put/{key}") == bytes(data)
        assert store.create(f"create/{key}", data)
        assert store.get(f"create/{key}") == bytes(data)


@every_store
def test_a_big_object_comes_back_whole(store: ObjectStore) -> None:
    data = bytearray(hashlib.shake_128(b"seed").digest(1 << 20)) * 70
    assert len(data) > MULTIPART_ABOVE
    data[-1] ^= 1
    store.put("blobs/big", memoryview(data).cast("I"))
    assert store.get("blobs/big") == data
    assert store.view("blobs/big") == data
    assert store.size("blobs/big") == len(data)


@every_store
def test_an_object_in_pieces_is_their_concatenation(store: ObjectStore) -> None:
    pieces = [b"head", memoryview(bytes(range(16))).cast("I"), b"", bytearray(b"x" * 3_000_000), b"tail"]
    store.put("pieces", pieces)
    assert store.get("pieces") == b"".join(pieces)
    assert store.size("pieces") == 3_000_024
    store.put("nothing", [])
    assert store.get("nothing") == b""


@every_store
def test_a_view_is_memory_of_the_caller_and_writing_there_changes_no_object(store: ObjectStore) -> None:
    data = bytes(range(256)) * 5000
    store.put("a", data)
    view, other = store.view("a"), store.view("a")
    store.put("a", b"overwritten")
    assert view == data, "it does not follow the object"
    view[:3] = b"new"
    assert other == data
    assert store.get("a") == b"overwritten"
    store.delete("a")
    assert view == b"new" + data[3:]


@every_store
def test_a_view_of_an_empty_object_is_empty_and_of_a_missing_one_an_error(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.view("empty") == b""
    assert store.size("empty") == 0
    assert store.size("no/such/object") is None
    with pytest.raises(NotFoundError, match="no/such/object"):
        store.view("no/such/object")


@every_store
def test_a_create_has_one_winner_among_sixteen_threads(store: ObjectStore) -> None:
    barrier = threading.Barrier(16)

    def race(writer: int) -> list[bool]:
        won = []
        for round_ in range(2):
            barrier.wait()
            won.append(store.create(f"race/{round_}", b"by %d" % writer))
        return won

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(race, range(16)))
    for round_, wins in enumerate(zip(*results, strict=True)):
        assert sum(wins) == 1
        assert store.get(f"race/{round_}") == b"by %d" % wins.index(True)


@every_store
def test_a_reader_sees_one_whole_version_while_it_is_overwritten(store: ObjectStore) -> None:
    versions = [bytes([letter]) * 300_000 for letter in b"abcd"]
    store.put("shared", versions[0])
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set() or reads == 0:
            assert store.get("shared") in versions
            reads += 1
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for version in versions * 5:
                store.put("shared", version)
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)


@every_store
def test_a_list_has_the_keys_with_the_prefix_and_no_others(store: ObjectStore) -> None:
    keys = {"commits/000000000001", "commits/000000000012", "commits/100000000000", "commits-old/1", "x"}
    for key in keys:
        store.put(key, b"")
    assert set(store.list("")) == keys
    assert set(store.list("commits/")) == {key for key in keys if key.startswith("commits/")}
    assert set(store.list("commits/00000000000")) == {"commits/000000000001"}
    assert set(store.list("commits")) == keys - {"x"}
    assert list(store.list("nothing/")) == []


@every_store
def test_a_look_and_a_survey_tell_size_and_age_by_the_stores_own_clock(store: ObjectStore) -> None:
    assert store.look("a/1") is None
    assert list(store.survey("a/")) == []
    store.put("a/1", b"12345")
    store.create("a/2", b"")
    store.put("b/1", b"another prefix")
    seen = look(store, "a/1")
    assert (seen.key, seen.size) == ("a/1", 5)
    assert -5.0 < seen.age < 600.0
    surveyed = {seen.key: seen for seen in store.survey("a/")}
    assert {key: seen.size for key, seen in surveyed.items()} == {"a/1": 5, "a/2": 0}
    assert all(-5.0 < seen.age < 600.0 for seen in surveyed.values())


@every_store
def test_writing_an_object_again_makes_it_young(store: ObjectStore) -> None:
    store.put("a", b"1")
    wait_until(lambda: look(store, "a").age > 4.0)
    old = look(store, "a").age
    store.put("a", b"1")
    assert look(store, "a").age < old


@every_store
def test_commits_are_collected_and_the_others_are_whole(store: ObjectStore) -> None:
    written: list[commits.Commit] = []
    for step in range(1, 7):
        snapshot = commits.Snapshot.take(step, {"step": step, "model": {"parameters": {"w": torch.full((3,), step)}}})
        commit = commits.write_commit(
            store, snapshot, job="job", parent=written[-1].manifest_digest if written else None, spec="5" * 64,
            code="c" * 64, ests=1, determinism={}, generation=1, metrics={}, history=b"%d\n" % step,
        )  # fmt: skip
        written.append(commit)
    known = [Known("job", (written[-1].manifest_digest,), (), 1, over=False)]
    wait_until(lambda: look(store, commits.marker_key("job", 6)).age > 4.0)
    found = collect(store, lambda: known, Policy(last=2), min_age=0.0, delete=True)
    assert found.objects == 4
    assert [part.collected for part in found.jobs] == [[1, 2, 3, 4]]
    assert commits.read_commit(store, written[-1].manifest_digest)[0].step == 6
    assert commits.read_commit(store, written[-2].manifest_digest)[0].step == 5
    with pytest.raises(NotFoundError):
        commits.read_commit(store, written[-3].manifest_digest)
    assert [it.step for _, it in commits.chain(store, written[-1].manifest_digest)] == [6, 5, 4, 3, 2, 1]
    assert read_notes(store, "job") == {commit.manifest_digest for commit in written[:4]}
    assert collect(store, lambda: known, Policy(last=2), min_age=0.0, delete=True).objects == 0


def look(store: ObjectStore, key: str) -> Seen:
    seen = store.look(key)
    assert seen is not None
    return seen


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.1)


@pytest.mark.parametrize("store", ["files", "moto_s3"], indirect=True)
def test_a_list_goes_on_after_a_thousand_keys(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"many/{number}", b"", durable=False), range(1010)))
    assert len(set(store.list("many/"))) == 1010


@every_store
def test_odd_but_allowed_keys_work_side_by_side(store: ObjectStore) -> None:
    keys = {".hidden", "...", "a..b/c", "-", "_/-/.x", "UPPER/lower", "a/.b/c.tmp", "tmp", "x" * 200}
    for key in keys:
        assert store.create(key, key.encode())
    assert set(store.list("")) == keys
    for key in keys:
        assert store.get(key) == key.encode()
        store.delete(key)
        assert not store.exists(key)


@every_real_store
def test_keys_that_are_not_portable_are_refused(store: ObjectStore) -> None:
    calls = [store.get, store.exists, store.delete, lambda key: store.put(key, b""), lambda key: store.create(key, b"")]
    outside = ["/", "/etc/x", "../x", "a/../../x", "a/..", ".", "~tmp/x"]
    for key in [*outside, "", "a//b", "a/", "実験", "a b", "a\n", "a\0"]:
        for call in calls:
            with pytest.raises(ValueError, match="object key"):
                call(key)


@pytest.mark.seaweedfs
@pytest.mark.parametrize("store", ["seaweedfs"], indirect=True)
def test_killing_the_server_loses_no_acknowledged_write_and_calls_go_on(
    store: ObjectStore, seaweedfs: SeaweedFS
) -> None:
    acknowledged: dict[str, bytes] = {}
    enough, killed, stop = threading.Event(), threading.Event(), threading.Event()

    def write() -> int:
        after = 0
        for number in itertools.count():
            if stop.is_set():
                return after
            was_killed = killed.is_set()
            key, data = f"stream/{number}", secrets.token_bytes(4096)
            if number % 2:
                assert store.create(key, data), "nobody else creates here"
            else:
                store.put(key, data)
            acknowledged[key] = data
            after += was_killed
            if number == 30 or after == 10:
                enough.set()
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            assert enough.wait(60)
            enough.clear()
            seaweedfs.kill()
            killed.set()
            seaweedfs.restart()
            assert enough.wait(60), "writes did not go on"
        finally:
            stop.set()
        assert writer.result() >= 10
    for key, data in acknowledged.items():
        assert store.get(key) == data


@pytest.mark.parametrize("server", [KINDS[2], KINDS[3]])
def test_the_servers_of_the_tests_listen_on_loopback_only(request: pytest.FixtureRequest, server: str) -> None:
    running: S3Server = request.getfixturevalue(server)
    connections = psutil.Process(running.pid).net_connections("inet")
    assert {one.laddr.ip for one in connections} == {"127.0.0.1"}
    assert {one.raddr.ip for one in connections if one.raddr} <= {"127.0.0.1"}


# --- a folder -------------------------------------------------------------------------------------------------------


@contextmanager
def no_permission(folder: Path) -> Iterator[None]:
    """Let nobody write to a folder, not even root (whom permissions do not stop)."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_write_that_runs_out_of_room_leaves_the_old_object_and_no_rubbish(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b", b"old")
    with no_file_above(10_000):
        with pytest.raises(UnavailableError, match=rf"cannot write {tmp_path}/a/b: File too large"):
            store.put("a/b", bytes(20_000))
        with pytest.raises(UnavailableError, match=rf"cannot create {tmp_path}/a/c: File too large"):
            store.create("a/c", bytes(20_000))
    assert store.get("a/b") == b"old"
    assert files_below(tmp_path) == [tmp_path / "a/b"]


def test_a_folder_that_becomes_read_only_is_named_with_the_reason(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a", b"old")
    with no_permission(tmp_path), pytest.raises(UnavailableError, match=rf"{tmp_path}/a: Permission denied"):
        store.put("a", b"new")
    assert store.get("a") == b"old"


def test_a_folder_without_permission_is_refused_at_opening(tmp_path: Path) -> None:
    with no_permission(tmp_path), pytest.raises(AddressError, match="Permission denied"):
        FileStore(tmp_path / "store")


def test_a_file_in_the_place_of_the_folder_is_refused_at_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for path in ["file", "file/store"]:
        with pytest.raises(AddressError, match="cannot write to the folder"):
            open_store(f"file://{tmp_path}/{path}")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_an_object_in_the_place_of_a_folder_is_an_error_and_not_a_lost_race(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a", b"")
    with pytest.raises(UnavailableError, match="an object is where its folder should be"):
        store.create("a/b", b"")
    assert not store.exists("a/b")
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_what_a_killed_writer_left_is_not_listed_and_is_swept_a_day_later(tmp_path: Path) -> None:
    FileStore(tmp_path)
    fresh, old = tmp_path / "~tmp" / "1-fresh", tmp_path / "~tmp" / "1-old"
    for path in [fresh, old]:
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    store = FileStore(tmp_path)
    assert list(store.list("")) == []
    assert files_below(tmp_path) == [fresh]


def test_a_create_has_one_winner_among_processes(tmp_path: Path) -> None:
    program = """
import pathlib, sys
from easyscale.storage.files import FileStore
store = FileStore(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
input()
print("".join(str(int(store.create(f"race/{n}", sys.argv[2].encode()))) for n in range(50)))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n in range(4)
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("\n")
        writer.stdin.flush()
    outcomes = [writer.communicate(timeout=60)[0].strip() for writer in writers]
    store = FileStore(tmp_path)
    for number, wins in enumerate(zip(*outcomes, strict=True)):
        assert wins.count("1") == 1
        assert store.get(f"race/{number}") == str(wins.index("1")).encode()


def test_writers_survive_others_removing_the_last_object_beside_theirs(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def write(writer: int) -> None:
        for number in range(200):
            key = f"lane/step/{writer}-{number}"
            store.put(key, b"x", durable=False)
            assert store.get(key) == b"x"
            store.delete(key)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert not (tmp_path / "lane").exists()
