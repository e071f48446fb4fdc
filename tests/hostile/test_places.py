"""Folders, disks, databases and environments that are not as one would wish."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put
from easyscale.errors import AddressError
from easyscale.pipeline.addresses import open_both
from easyscale.pipeline.submit import place
from easyscale.settings import Settings
from easyscale.storage.files import FileStore
from user import TRAINING, Ran, User, ended, limit_files, refused

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster
    from easyscale.pipeline.bundle import Bundle
    from easyscale.pipeline.spec import JobSpec


def test_a_path_with_spaces_and_letters_of_all_the_world_without_home_locale_or_temporary_folder(
    tmp_path: Path,
) -> None:
    user = User(
        tmp_path / "my jobs" / "\u00fc \u5b9f\u9a13 #1?",
        HOME=None, TMPDIR="/nonexistent", LC_ALL="C", LANG="C",
    )  # fmt: skip
    user.write(f'print("\u00fc\u5b9f\u9a13")\n{TRAINING}', "\u5b9f.py")
    ran = user.run("run", "\u5b9f.py", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.last["state"] == "done"
    assert "\u00fc\u5b9f\u9a13" in ran.err
    refused(user.run("show", "\u5b9f"), "there is no job", "there are: demo")


def test_a_read_only_working_folder_is_refused_and_another_one_can_be_named(tmp_path: Path) -> None:
    user = User(tmp_path / "readonly")
    user.write(TRAINING)
    user.folder.chmod(0o555)
    user.like_anybody()
    there = subprocess.run([*user.before, "touch", str(user.folder / "there")], capture_output=True, check=False)
    assert b"Permission denied" in there.stderr, "the folder is read-only, for us too"
    refused(user.run("submit", "train.py"), str(user.folder / ".easyscale"), "cannot be used", "--folder")
    ran = user.run("submit", "train.py", "--folder", str(tmp_path / "elsewhere"))
    assert ran.code == 0, ran.err
    user.folder.chmod(0o755)


# ---- full disks


LARGE = 6 << 20
"""Bytes of a state that does not fit on a full disk; whatever else a worker writes is smaller."""


def test_a_full_object_store_is_told_at_the_job_which_goes_on_when_there_is_room(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = User(tmp_path / "user", EASYSCALE_KV=cluster.kv_address, EASYSCALE_STORE=cluster.store_address)
    large = TRAINING.replace("(2, 1)", f"(2, {LARGE // 12})").replace("steps=3", "steps=9, commit_every=3")
    ran = user_submits(user, large)
    assert ran.code == 0, ran.err
    cluster.coordinator()
    limit_files(cluster.worker("w", alone=True).pid, LARGE - 1)
    full = cluster.until("demo", lambda now: "cannot be written" in now.reason)
    assert full.state == "running"
    assert f"cannot write {cluster.folder}/store/" in full.reason
    assert "File too large" in full.reason
    shown = user.run("show", "demo").out
    assert "File too large" in shown
    assert "make room on the disk" in shown
    for process in cluster.left():
        limit_files(process.pid)
    assert cluster.result("demo").steps == 9
    assert cluster.job("demo").attempts == {}, "no attempt was lost to it"
    assert cluster.job("demo").reason == ""


def user_submits(user: User, text: str) -> Ran:
    """Submit a script of this text."""
    user.write(text)
    return user.run("submit", "train.py", "-o", "json")


def test_a_submit_to_a_full_object_store_makes_no_job(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.write(TRAINING + f"# {'x' * 70_000}\n")
    process = user.start("submit", "train.py")
    while process.poll() is None and not psutil.Process(process.pid).children():
        time.sleep(0.001)
    limit_files(process.pid, 65_536)  # the command alone: the script is read by a child of its
    ran = ended(process)
    refused(ran, f"cannot write {tmp_path}/.easyscale/store/blobs/", "File too large", "make room on the disk", code=1)
    assert ran.error.count("\n  ") == 1, "one hint"
    refused(user.run("show", "demo"), "there is no job 'demo'", "there are none at all")


def test_a_full_temporary_folder_is_told_by_its_name(tmp_path: Path) -> None:
    user = User(tmp_path / "user", TMPDIR=str(tmp_path))
    user.write(TRAINING + f"# {'x' * 70_000}\n")
    process = user.start("submit", "train.py")
    limit_files(process.pid, 65_536)
    refused(ended(process), f"temporary files, {tmp_path}", "File too large", "TMPDIR")
    assert user.left() == {}


# ---- databases


@pytest.fixture
def user(tmp_path: Path, training: tuple[JobSpec, Bundle]) -> User:
    """Somebody who has submitted the job "demo"."""
    it = User(tmp_path)
    it.write(TRAINING)
    kv = EmbeddedStore(Settings("", "", tmp_path / ".easyscale").make_folder() / "kv.sqlite")
    place(kv, FileStore(tmp_path / ".easyscale" / "store"), *training)
    kv.close()
    return it


def database(user: User) -> Path:
    """Where the user's key-value store is."""
    return user.folder / ".easyscale" / "kv.sqlite"


def test_a_damaged_database_is_told_by_looking_and_by_submitting(user: User) -> None:
    path = database(user)
    for name in ("kv.sqlite-wal", "kv.sqlite-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.write_bytes(b"garbage" * 2000)
    before = user.left()
    for command in (["jobs"], ["show", "demo"], ["pause", "demo"], ["submit", "train.py"]):
        refused(user.run(*command), str(path), "file is not a database", "--kv")
        assert user.left() == before


def test_a_locked_database_is_given_up_after_a_moment_and_unchanged(user: User) -> None:
    path = database(user)
    locking = sqlite3.connect(path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    refused(user.run("pause", "demo"), str(path), "database is locked", code=2)
    locking.execute("ROLLBACK")
    locking.close()
    assert user.run("pause", "demo").code == 0


def test_a_record_of_a_newer_version_is_read_and_one_that_is_broken_is_not_taken_for_none(user: User) -> None:
    kv = EmbeddedStore(database(user))
    found = kv.get(keys.spec("demo"))
    assert found is not None
    newer = msgspec.json.encode({**msgspec.json.decode(found.value), "colour": "red"})
    kv.txn((), (Put(keys.spec("demo"), newer),))
    assert "demo" in user.run("show", "demo").out
    kv.txn((), (Put(keys.spec("demo"), b'{"name": 3}'),))
    refused(user.run("show", "demo"), "jobs/demo/spec", "does not hold a JobRecord", code=1)
    refused(user.run("submit", "train.py"), "jobs/demo/spec", "does not hold a JobRecord", code=1)
    after = kv.get(keys.spec("demo"))
    assert after is not None
    assert after.value == b'{"name": 3}', "it is not overwritten"
    kv.close()


# ---- addresses


@pytest.mark.parametrize(
    ("option", "address", "words"),
    [
        ("--kv", "http://x", ["unknown scheme 'http'", "etcd://host:2379"]),
        ("--kv", "etcd://", ["is not host:port", "etcd://host:2379"]),
        ("--kv", "etcd://host:much", ["host:much"]),
        ("--kv", "etcd://[::1", ["Invalid IPv6", "etcd://host:2379"]),
        ("--kv", "memory://x", ["gone when this process ends", "file:///path"]),
        ("--kv", "file:relative", ["no absolute path", "(from --kv)"]),
        ("--kv", "file:///a%00b", ["no absolute path"]),
        ("--kv", "file:///etc/passwd", ["/etc/passwd", "file is not a database"]),
        ("--kv", "file:///", ["unable to open database file"]),
        ("--kv", "file:///proc/none/kv.sqlite", ["/proc/none"]),
        ("--store", "memory://x", ["gone when this process ends"]),
        ("--store", "s3://", ["not of the form s3://bucket/prefix"]),
        ("--store", "s3://bucket?x=1", ["has a '?'"]),
        ("--store", "/tmp/x", ["unknown scheme ''", "file:///path"]),
        ("--store", "file:///etc/passwd", ["/etc/passwd", "Not a directory"]),
        ("--store", "file:///proc/none/store", ["/proc/none"]),
        ("--store", "s3://[::1", ["Invalid IPv6"]),
    ],
)
def test_an_address_that_cannot_be_used_is_told_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, address: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"kv": None, "store": None} | {option[2:]: address}
    with pytest.raises(AddressError) as caught:
        open_both(**given)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_just_made_goes_again_when_the_other_one_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(AddressError):
        open_both("file:///etc/passwd", f"file://{there}/deep/store")
    assert not there.exists()
    there.mkdir()
    with pytest.raises(AddressError):
        open_both("file:///etc/passwd", f"file://{there}/deep/store")
    assert list(there.iterdir()) == [], "what was there stays, what was made goes"
    assert list(here.iterdir()) == []


def test_an_address_that_no_parser_takes_is_told_by_every_command(tmp_path: Path) -> None:
    user = User(tmp_path)
    for command in (["jobs"], ["worker"], ["coordinator"], ["doctor"]):
        refused(user.run(*command, "--kv", "etcd://[::1"), "(from --kv) cannot be read: Invalid IPv6 URL")
    assert user.left() == {}
