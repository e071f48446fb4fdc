"""A LIST of an object store may lag by half a minute: no commit is written, found or read by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lagging(MemoryStore):
    """Its lists know of nothing yet."""

    def list(self, prefix: str) -> Iterator[str]:
        return iter(())


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"parameters": {"w": torch.full((3,), float(step))}}}


def write(store: MemoryStore, step: int, parent: str | None) -> commits.Commit:
    snapshot = commits.Snapshot.take(step, state(step))
    return commits.write_commit(
        store, snapshot, job="job", parent=parent, spec="5" * 64, code="c" * 64, ests=1, determinism={}, generation=1,
        metrics={}, history=b"{}\n",
    )  # fmt: skip


def test_commits_are_found_resumed_and_fallen_back_from_without_a_list() -> None:
    store = Lagging()
    first = write(store, 1, None)
    second = write(store, 2, first.manifest_digest)
    manifest, found, damage = commits.read_latest(store, second.manifest_digest, at=("job", 2))
    assert (manifest.step, found["step"], list(damage)) == (2, 2, [])
    store.delete(blob_key(manifest.packs[0].digest))
    manifest, found, damage = commits.read_latest(store, second.manifest_digest, at=("job", 2))
    assert (manifest.step, found["step"]) == (1, 1)
    assert damage
    assert [it.step for _, it in commits.chain(store, second.manifest_digest)] == [2, 1]
    assert commits.read_marker(store, "job", 2) is not None
