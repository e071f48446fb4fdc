"""A job with a few commits, in stores in memory: for what is done to a job's history without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.pipeline.forking import Forked, fork, head_of
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.submit import record_of
from easyscale.pipeline.summary import read_job
from easyscale.storage import commits
from easyscale.storage.blobs import put_blob
from easyscale.storage.manifests import Manifest, read_manifest
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from easyscale.coordinator.views import JobView

STEPS = [10, 20, 30]


class Place:
    """A job with commits of the steps 10, 20 and 30 of 100."""

    def __init__(self) -> None:
        self.now = 1e6
        self.kv, self.store = MemoryKV("test"), MemoryStore("test", clock=lambda: self.now)
        code = put_blob(self.store, b"code")
        spec = JobSpec(
            name="job", script="train.py::build", code=code, data="d", samples=100, ests=2, batch_size=5, epochs=10,
        )  # fmt: skip
        record = record_of(spec, put_blob(self.store, spec.encode()), code)
        self.put(keys.spec("job"), record)
        self.kv.txn((), (Put(keys.desired("job"), b"running"),))
        parent = None
        for step in STEPS:
            parent = self.commit("job", step, parent, record)

    def commit(self, job: str, step: int, parent: str | None, record: records.JobRecord, value: float = 0.0) -> str:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        tree = {
            "step": step,
            "model": {"parameters": {"w": torch.full((3,), step + value)}},
            "optimizer": optimizer.state_dict(),
            "scheduler": None,
        }
        written = commits.write_commit(
            self.store, commits.Snapshot.take(step, tree), job=job, parent=parent, spec=record.spec, code=record.code,
            ests=2, determinism={"class": "x"}, generation=1, metrics={"loss": float("nan")}, history=b"{}\n",
        )  # fmt: skip
        manifest = read_manifest(self.store, written.manifest_digest)
        self.put(keys.head(job), head_of(written.manifest_digest, manifest))
        return written.manifest_digest

    def put(self, key: str, record: Any) -> None:
        self.kv.txn((), (Put(key, records.encode(record)),))

    def job(self, name: str = "job") -> JobView:
        found = read_job(self.kv, name)
        assert found is not None
        return found

    def head(self, name: str = "job") -> Manifest:
        head = self.job(name).head
        assert head is not None
        return read_manifest(self.store, head.value.manifest)

    def fork(self, step: int | None, name: str = "new", **changes: str) -> Forked:
        return fork(self.kv, self.store, self.job(), step, name, changes)
