"""The worker's driver, where a real process is not needed to see it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.kv import Delete, Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.pipeline import worker as driver
from easyscale.pipeline.worker import Worker, WorkerOptions
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from easyscale.pipeline.nursery import Nursery


class Watched(MemoryKV):
    """Knows which prefixes are watched now."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: list[tuple[str, ...]] = []

    def watch(self, *prefixes: str) -> Any:
        watch, close = super().watch(*prefixes), self.prefixes.remove
        self.prefixes.append(prefixes)
        return SimpleNamespace(wait=watch.wait, close=lambda: (close(prefixes), watch.close()))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("times", [1, 2])
def test_who_is_told_to_go_takes_back_its_assignment_also_when_told_twice(tmp_path: Path, times: int) -> None:
    """Otherwise its end is counted as a death that its job has caused."""
    kv, nursery = MemoryKV(), cast("Nursery", None)  # it will not come to a runner
    worker = Worker(kv, MemoryStore(), WorkerOptions(name="w", device="cpu", folder=tmp_path), nursery)
    kv.txn((), (Put(keys.assigned(worker.id), b"job"),))
    for _ in range(times):
        worker.leave()
    worker.run()
    assert kv.range(keys.PREFIX) == []


def test_a_worker_is_woken_by_its_own_job_and_not_by_hundreds_of_others(tmp_path: Path) -> None:
    """Else each of n agents would look at the store whenever any of n jobs did a step."""
    kv = Watched()
    worker = Worker(kv, MemoryStore(), WorkerOptions(name="w", device="cpu", folder=tmp_path), cast("Nursery", None))
    thread = threading.Thread(target=worker.run)
    thread.start()
    mine, other = keys.assigned(worker.id), keys.desired("other")
    wait_for(lambda: kv.prefixes == [(mine,)])
    kv.txn((), (Put(mine, b"job"),))
    wait_for(lambda: kv.prefixes == [(mine, keys.job("job"))])
    assert not any(other.startswith(prefix) for prefixes in kv.prefixes for prefix in prefixes)
    kv.txn((), (Delete(mine),))
    wait_for(lambda: kv.prefixes == [(mine,)])
    worker.leave()
    thread.join(10.0)
    assert not thread.is_alive()
    wait_for(lambda: not kv.prefixes)


@pytest.mark.parametrize(("limit", "memory"), [(None, 1 << 30), (1 << 20, 1 << 20), (1 << 40, 1 << 30)])
def test_a_worker_offers_the_memory_of_its_device_or_what_its_owner_gives_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, memory: int
) -> None:
    monkeypatch.setattr(driver, "memory_bytes", {"cpu": 1 << 30}.__getitem__)
    options = WorkerOptions(name="w", device="cpu", folder=tmp_path, max_memory=limit)
    worker = Worker(MemoryKV(), MemoryStore(), options, cast("Nursery", None))
    assert worker._agent.me.memory == memory
