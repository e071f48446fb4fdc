"""A worker knows which of its job's others it cannot connect to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.pipeline import reach
from easyscale.pipeline.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as it:
        yield it


def worker(kv: MemoryKV, name: str, address: str, job: str = "job") -> None:
    record = records.WorkerRecord(
        id=name, name=name, host="h", pid=1, device="cpu", kind="cpu", memory=1, job=job, address=address
    )
    kv.txn([], [Put(keys.worker(name), records.encode(record))])


def test_who_cannot_be_connected_to_is_told_until_it_can(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "LOOK_SECONDS", reach.AGAIN_SECONDS)  # every look tries again
    kv, told = MemoryKV(), []
    with socket.create_server(("127.0.0.1", 0)) as other:
        gone = f"127.0.0.1:{other.getsockname()[1]}"
    here = f"127.0.0.1:{listener.getsockname()[1]}"
    worker(kv, "me", gone)
    worker(kv, "near", here)
    worker(kv, "far", gone)
    worker(kv, "silent", "")
    worker(kv, "stranger", gone, job="another")
    it = Reach(kv, "me", told.append)
    it._job = "job"
    it.look()
    it.look()
    assert told == [("far",)], "told once"
    worker(kv, "far", here)
    it.look()
    assert told == [("far",), ()]
    it._job = None
    worker(kv, "far", gone)
    it.look()
    assert told == [("far",), ()], "nobody else's addresses are tried for no job"


@pytest.mark.parametrize("address", ["nonsense", "host:", f"{'x' * 70}.example:1"])
def test_what_is_no_address_is_not_reached_and_others_still_are(listener: socket.socket, address: str) -> None:
    kv, told = MemoryKV(), []
    worker(kv, "near", f"127.0.0.1:{listener.getsockname()[1]}")
    worker(kv, "odd", address)
    it = Reach(kv, "me", told.append)
    it._job = "job"
    it.look()
    assert told == [("odd",)]
