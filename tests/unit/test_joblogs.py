"""Runners' output on its way to the object store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from easyscale.coordinator import keys, records
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import UnavailableError
from easyscale.pipeline.joblogs import LogFile, LogShipper, read
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path


def shipped(kv: MemoryKV, store: MemoryStore) -> bytes:
    entry = kv.get(keys.logs("job", "w"))
    if entry is None:
        return b""
    return b"".join(read(store, "job", "w", records.decode(entry.value, records.LogRecord)))


def test_a_second_runner_of_the_same_worker_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    kv, store, path = MemoryKV(), MemoryStore(), tmp_path / "log"
    shipper = LogShipper(kv, store, "w")
    shipper.add("job", path)
    path.write_bytes(b"the first runner's stacks\n")
    shipper.hurry()
    with path.open("ab") as log:
        log.write(b"the second runner\n")
    shipper.add("job", path)
    shipper.close(10.0)
    assert shipped(kv, store) == b"the first runner's stacks\nthe second runner\n"


def test_what_could_not_be_shipped_is_shipped_later_and_once(tmp_path: Path) -> None:
    class Failing(MemoryStore):
        broken = True

        def put(self, key: str, data: Any, *, durable: bool = True) -> None:
            if self.broken:
                raise UnavailableError("away")
            super().put(key, data, durable=durable)

    kv, store, path = MemoryKV(), Failing(), tmp_path / "log"
    file = LogFile(kv, store, "job", "w", path)
    path.write_bytes(b"one\n")
    file.ship()
    assert shipped(kv, store) == b""
    store.broken = False
    path.write_bytes(b"one\ntwo\n")
    file.ship()
    file.ship()
    assert shipped(kv, store) == b"one\ntwo\n"


def test_a_store_that_hangs_does_not_hold_up_the_agent(tmp_path: Path) -> None:
    release = threading.Event()

    class Hanging(MemoryStore):
        def put(self, key: str, data: Any, *, durable: bool = True) -> None:
            release.wait(30)
            super().put(key, data, durable=durable)

    kv, store, path = MemoryKV(), Hanging(), tmp_path / "log"
    shipper = LogShipper(kv, store, "w")
    path.write_bytes(b"text")
    shipper.add("job", path)
    shipper.hurry()
    shipper.close(0.05)
    assert shipped(kv, store) == b"", "it was still hanging when close gave up waiting"
    release.set()


def test_a_missing_chunk_is_said_so_in_its_place() -> None:
    store = MemoryStore()
    assert list(read(store, "job", "w", records.LogRecord(chunks=1))) == [
        b"[chunk 0 of this log is missing from memory://]\n"
    ]
