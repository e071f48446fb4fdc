"""The local copies of blobs: used only when right, never in the way."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from easyscale.errors import NotFoundError, OutcomeUnknownError, UnavailableError
from easyscale.storage.blobs import blob_key, get_blob, put_blob
from easyscale.storage.cache import CachedBlobs
from easyscale.storage.files import FileStore
from easyscale.storage.memory import MemoryStore
from easyscale.storage.objects import ObjectStore
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.storage.objects import Data


class Counting(MemoryStore):
    """A store that remembers what was read from it, and can fail to answer a write."""

    def __init__(self) -> None:
        super().__init__("behind")
        self.reads: list[str] = []
        self.answers = True

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        return super().get(key)

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        if not self.answers:
            raise OutcomeUnknownError("no answer")
        super().put(key, data, durable=durable)


@pytest.fixture
def behind() -> Counting:
    return Counting()


@pytest.fixture
def cache(behind: Counting, tmp_path: Path) -> CachedBlobs:
    return CachedBlobs(behind, tmp_path / "cache")


def key_of(data: bytes) -> str:
    return blob_key(hashlib.sha256(data).hexdigest())


def copies(cache: CachedBlobs) -> list[Path]:
    return [path for path in cache._folder.iterdir() if path.is_file()]


def test_it_is_an_object_store_with_the_address_of_the_one_behind(cache: CachedBlobs) -> None:
    assert isinstance(cache, ObjectStore)
    assert cache.address == "memory://behind"


def test_what_was_uploaded_is_never_downloaded(cache: CachedBlobs, behind: Counting) -> None:
    put, created = b"put", memoryview(b"created")
    cache.put(key_of(put), put)
    assert cache.create(key_of(created.tobytes()), created)
    assert cache.get(key_of(put)) == put
    assert cache.get(key_of(b"created")) == b"created"
    assert behind.reads == []
    assert set(behind.list("")) == set(cache.list("")) == {key_of(put), key_of(b"created")}


def test_what_was_read_once_is_not_downloaded_again_by_another_process(
    cache: CachedBlobs, behind: Counting, tmp_path: Path
) -> None:
    behind.put(key_of(b"x"), b"x")
    assert cache.get(key_of(b"x")) == b"x"
    assert CachedBlobs(behind, tmp_path / "cache").get(key_of(b"x")) == b"x"
    assert behind.reads == [key_of(b"x")]


@pytest.mark.parametrize("damage", [b"", b"wrong", b"x\0"])
def test_a_damaged_copy_is_dropped_and_fetched_again(cache: CachedBlobs, behind: Counting, damage: bytes) -> None:
    digest = put_blob(cache, b"x")
    (copy,) = copies(cache)
    copy.write_bytes(damage)
    with capture_logs() as logs:
        assert get_blob(cache, digest) == b"x"
    assert [entry["event"] for entry in logs] == ["cache_copy_damaged"]
    assert copy.read_bytes() == b"x"
    assert cache.get(blob_key(digest)) == b"x"
    assert behind.reads == [blob_key(digest)]


def test_damage_in_the_store_is_handed_on_and_not_kept(cache: CachedBlobs, behind: Counting) -> None:
    behind.put(key_of(b"x"), b"damaged")
    assert cache.get(key_of(b"x")) == b"damaged"
    assert copies(cache) == []


@pytest.mark.parametrize("key", ["commits/000000000001", "lane/" + "0" * 64, "blobs/short", "blobs/" + "G" * 64])
def test_keys_that_do_not_name_their_content_pass_through(cache: CachedBlobs, behind: Counting, key: str) -> None:
    cache.put(key, b"1")
    assert not cache.create(key, b"2")
    behind.put(key, b"3")
    assert cache.get(key) == b"3"
    assert copies(cache) == []
    cache.delete(key)
    with pytest.raises(NotFoundError):
        cache.get(key)


def test_only_the_store_says_whether_a_blob_exists(cache: CachedBlobs, behind: Counting) -> None:
    digest = put_blob(cache, b"x")
    behind.delete(blob_key(digest))
    assert not cache.exists(blob_key(digest))
    put_blob(cache, b"x")
    assert behind.exists(blob_key(digest))


def test_a_deleted_blob_is_gone_from_the_folder_too(cache: CachedBlobs, behind: Counting) -> None:
    digest = put_blob(cache, b"x")
    cache.delete(blob_key(digest))
    with pytest.raises(NotFoundError):
        cache.get(blob_key(digest))
    assert copies(cache) == []


def test_an_unanswered_upload_is_not_proved_by_an_old_local_copy(cache: CachedBlobs, behind: Counting) -> None:
    digest = put_blob(cache, b"x")
    behind.delete(blob_key(digest))
    behind.answers = False
    with pytest.raises(OutcomeUnknownError):
        put_blob(cache, b"x")


def test_the_least_recently_used_blobs_leave_when_the_limit_is_reached(behind: Counting, tmp_path: Path) -> None:
    cache = CachedBlobs(behind, tmp_path, limit=1000)
    digests = [put_blob(cache, bytes([number]) * 100) for number in range(10)]
    for age, digest in enumerate(digests):
        os.utime(tmp_path / digest, (age, age))
    get_blob(cache, digests[0])  # the oldest, but used
    put_blob(cache, b"more" * 25)
    assert sum(path.stat().st_size for path in copies(cache)) <= 1000
    left = {path.name for path in copies(cache)}
    assert digests[0] in left
    assert digests[1] not in left
    assert digests[9] in left
    assert [get_blob(cache, digest)[0] for digest in digests] == list(range(10))


def test_the_limit_holds_over_many_blobs_and_openings(behind: Counting, tmp_path: Path) -> None:
    for opening in range(5):
        cache = CachedBlobs(behind, tmp_path, limit=1000)
        for number in range(30):
            put_blob(cache, f"{opening} {number} ".encode() * 10)
            assert sum(path.stat().st_size for path in copies(cache)) <= 1000


def test_a_blob_larger_than_the_limit_drives_nothing_out(behind: Counting, tmp_path: Path) -> None:
    cache = CachedBlobs(behind, tmp_path, limit=1000)
    small = put_blob(cache, b"small")
    large = put_blob(cache, bytes(1001))
    assert [path.name for path in copies(cache)] == [small]
    assert get_blob(cache, large) == bytes(1001)


def test_a_full_disk_is_said_once_and_fails_nobody(
    cache: CachedBlobs, behind: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FileStore, key: str, data: Data, *, durable: bool = True) -> None:
        raise UnavailableError("No space left on device")

    monkeypatch.setattr(FileStore, "put", full)
    with capture_logs() as logs:
        digests = [put_blob(cache, data) for data in (b"1", b"2", b"3")]
        assert [get_blob(cache, digest) for digest in digests] == [b"1", b"2", b"3"]
    assert [entry["event"] for entry in logs] == ["cache_unusable"]
    assert "No space left" in logs[0]["reason"]
    assert len(behind.reads) == 3


def test_a_folder_that_cannot_be_used_means_no_cache_and_no_error(behind: Counting, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with capture_logs() as logs:
        cache = CachedBlobs(behind, tmp_path / "file" / "cache")
        digest = put_blob(cache, b"x")
        assert get_blob(cache, digest) == b"x"
        cache.delete(blob_key(digest))
    assert [entry["event"] for entry in logs] == ["cache_unusable"]


def test_a_folder_that_is_removed_meanwhile_fails_nobody(cache: CachedBlobs, behind: Counting, tmp_path: Path) -> None:
    digest = put_blob(cache, b"x")
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert get_blob(cache, digest) == b"x"
    assert get_blob(cache, put_blob(cache, b"y")) == b"y"


def test_processes_share_one_small_folder_and_read_right_bytes_from_it(tmp_path: Path) -> None:
    program = """
import pathlib, sys
from easyscale.storage.blobs import get_blob, put_blob
from easyscale.storage.cache import CachedBlobs
from easyscale.storage.files import FileStore
folder = pathlib.Path(sys.argv[1])
cache = CachedBlobs(FileStore(folder / "store"), folder / "cache", limit=20_000)
for turn in range(2):
    for number in range(100):
        data = str(number).encode() * 300
        assert get_blob(cache, put_blob(cache, data)) == data
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
        assert "cache_unusable" not in errors
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir() if path.is_file()) <= 30_000
