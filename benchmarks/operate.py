"""What it costs to operate a cluster.

    python benchmarks/operate.py gc [--commits 10000]

`gc`: a job of so many commits, of which the ten newest and every hundredth are kept, is collected: first the dry run,
then the removal. The states are small, so that what is measured is what each object costs. The last row is the
least that anything could do: list all objects and remove as many, with nothing read and nothing decided.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from easyscale import logs
from easyscale.pipeline.devices import device_kind
from easyscale.storage import commits
from easyscale.storage.collection import ROUNDING_SECONDS, collect
from easyscale.storage.files import FileStore
from easyscale.storage.references import THREADS, Known
from easyscale.storage.retention import Policy

if TYPE_CHECKING:
    from easyscale.storage.objects import ObjectStore

SPEC, CODE = "5" * 64, "c" * 64
KEPT_LAST, KEPT_EVERY = 10, 100
PAUSE_SECONDS = 2 * ROUNDING_SECONDS
"""From the last commit to the first collection: what has just been written is not taken even at a minimum age of 0."""


class Buffered(FileStore):
    """Writes what is to be collected without waiting for the disk."""

    def put(self, key: str, data: object, *, durable: bool = True) -> None:  # noqa: ARG002
        """See `ObjectStore.put`."""
        super().put(key, data, durable=False)  # type: ignore[arg-type]


def fill(store: ObjectStore, count: int) -> str:
    """A job with so many commits; the digest of the newest manifest."""
    parent: str | None = None
    for step in range(1, count + 1):
        tensors = {"w": torch.full((256,), float(step))}
        tree = {"step": step, "model": {"parameters": tensors}, "optimizer": {"m": torch.full((256,), -float(step))}}
        parent = commits.write_commit(
            store, commits.Snapshot.take(step, tree), job="job", parent=parent, spec=SPEC, code=CODE, ests=1,
            determinism={}, generation=1, metrics={"loss": 1.0 / step}, history=b'{"step": %d}\n' % step,
        ).manifest_digest  # fmt: skip
    assert parent is not None
    return parent


def remove(store: ObjectStore, count: int) -> tuple[float, int]:
    """List everything and remove so many objects: seconds, and how many were listed."""
    began = time.perf_counter()
    keys = [*store.list("")]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(store.delete, [key for key in keys if key.startswith("blobs/")][:count]))
    return time.perf_counter() - began, len(keys)


def gc(arguments: argparse.Namespace) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        store, rival = Buffered(Path(folder) / "ours"), Buffered(Path(folder) / "rival")
        heads = [fill(one, arguments.commits) for one in (store, rival)]
        time.sleep(PAUSE_SECONDS)
        known = [Known("job", (heads[0],), (), 1, over=True)]
        policy = Policy(last=KEPT_LAST, every=KEPT_EVERY)
        rows = []
        for delete in (False, True):
            began = time.perf_counter()
            found = collect(store, lambda: known, policy, min_age=0.0, delete=delete)
            seconds = time.perf_counter() - began
            what = "gc --delete" if delete else "gc (dry run)"
            rows.append((what, seconds, found.objects, found.kept + found.objects + found.young))
        assert commits.read_commit(store, heads[0])[0].step == arguments.commits
        seconds, listed = remove(rival, rows[-1][2])
        rows.append(("list and remove as many", seconds, rows[-1][2], listed))
    print("| what | seconds | objects removed, or to be | objects looked at | ratio |")
    print("|---|---|---|---|---|")
    for what, seconds, objects, looked in rows:
        print(f"| {what} | {seconds:.1f} | {objects:,} | {looked:,} | {seconds / rows[1][1]:.2f} |")


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["gc"])
    parser.add_argument("--commits", type=int, default=10_000)
    arguments = parser.parse_args()
    logs.configure("warning")
    print(f"{device_kind('cpu')}, torch {torch.__version__}, {os.cpu_count()} cores; a folder; "
          f"{arguments.commits:,} commits\n")  # fmt: skip
    gc(arguments)


if __name__ == "__main__":
    main()
