"""The worker's driver, where a real process is not needed to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
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
