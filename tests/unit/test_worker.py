"""The worker's driver, where a real process is not needed to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.pipeline import worker as driver
from easyscale.pipeline.worker import Worker, WorkerOptions
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.pipeline.nursery import Nursery


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


@pytest.mark.parametrize(("limit", "memory"), [(None, 1 << 30), (1 << 20, 1 << 20), (1 << 40, 1 << 30)])
def test_a_worker_offers_the_memory_of_its_device_or_what_its_owner_gives_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, memory: int
) -> None:
    monkeypatch.setattr(driver, "memory_bytes", {"cpu": 1 << 30}.__getitem__)
    options = WorkerOptions(name="w", device="cpu", folder=tmp_path, max_memory=limit)
    worker = Worker(MemoryKV(), MemoryStore(), options, cast("Nursery", None))
    assert worker._agent.me.memory == memory
