"""Commit and restore of 1 GB of state: ours against torch.distributed.checkpoint (DCP), on one disk and on one server.

    python benchmarks/storage.py [--rounds 5] [--store files|seaweedfs] [--megabytes 1000]

The state is a GPT's: parameters and Adam's two moments. Both sides begin with tensors that training goes on changing
(so both copy them first, except plain `save`) and end when the state is durable: we sync every file and folder, DCP's
FileSystemWriter syncs its files (`sync_files=True`, its default). Restoring ends with the values in tensors that were
there before, as a model's are. On the server the rival does what DCP's users do: it saves to a local folder and sends
the files with boto3's transfer manager, and back. Turns alternate; ratios above 1 mean that ours is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from easyscale import logs
from easyscale.pipeline.devices import device_kind
from easyscale.storage import commits
from easyscale.storage.files import FileStore
from easyscale.storage.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.storage.objects import ObjectStore

ZERO = "0" * 64
WIDTH, LAYERS = 1024, 4


def gpt_state(megabytes: int) -> dict[str, Any]:
    """A GPT's parameters and Adam's moments, of about this size in all."""
    shapes = {"position": (1024, WIDTH), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    for layer in range(LAYERS):
        for name, outputs, inputs in (("qkv", 3, 1), ("proj", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            shapes[f"{layer}.{name}.weight"] = (outputs * WIDTH, inputs * WIDTH)
            shapes[f"{layer}.{name}.bias"] = (outputs * WIDTH,)
        for name in ("norm1", "norm2"):
            shapes |= {f"{layer}.{name}.{part}": (WIDTH,) for part in ("weight", "bias")}
    left = megabytes * 1_000_000 // 12 - sum(torch.Size(shape).numel() for shape in shapes.values())
    shapes["embedding"] = (max(1, left // WIDTH), WIDTH)
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": torch.randn(shape), "exp_avg_sq": torch.rand(shape)}
        for number, shape in enumerate(shapes.values())
    }
    parameters = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {"model": {"parameters": parameters, "buffers": {}}, "optimizer": {"state": moments}}


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """All tensors of a nested state, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [tensor for value in tree.values() for tensor in tensors_of(value)] if isinstance(tree, dict) else []


class Ours:
    """Snapshot and `write_commit`, as a runner's committer does; `read_commit`, then the values into the model."""

    def __init__(self, store: ObjectStore, sweep: Callable[[], None]) -> None:
        self.store, self.sweep = store, sweep
        self.spare: commits.Snapshot | None = None
        self.step, self.digest = 0, ""

    def save(self, state: dict[str, Any]) -> None:
        """Until it is durable."""
        self.step += 1
        self.spare = commits.Snapshot.take(self.step, state, self.spare)
        written = commits.write_commit(
            self.store, self.spare, job="benchmark", parent=None, spec=ZERO, code=ZERO, ests=1, determinism={},
            generation=1, metrics={}, history=None,
        )  # fmt: skip
        self.digest = written.manifest_digest

    def load(self, state: dict[str, Any]) -> None:
        """Until the values are in these tensors."""
        _, found = commits.read_commit(self.store, self.digest)
        for mine, read in zip(tensors_of(state), tensors_of(found), strict=True):
            mine.copy_(read)


class Rival:
    """DCP in one process.

    Args:
        folder: where its files go.
        how: `async_save` (waited for), or `save`.
        threads: of its FileSystemWriter; its default is 1.
        remote: (client, bucket) to send the files to and fetch them from.
    """

    def __init__(self, folder: Path, how: str, threads: int = 1, remote: tuple[Any, str] | None = None) -> None:
        self.folder, self.how, self.threads, self.remote = folder, how, threads, remote

    def save(self, state: dict[str, Any]) -> None:
        """Likewise."""
        writer = dcp.FileSystemWriter(self.folder, thread_count=self.threads)
        if self.how == "save":
            dcp.save(state, storage_writer=writer, no_dist=True)
        else:
            dcp.async_save(state, storage_writer=writer, no_dist=True).result()
        if self.remote:
            client, bucket = self.remote
            for file in sorted(self.folder.iterdir()):
                client.upload_file(str(file), bucket, file.name)

    def load(self, state: dict[str, Any]) -> None:
        """Likewise."""
        if self.remote:
            client, bucket = self.remote
            for file in sorted(self.folder.iterdir()):
                file.unlink()
                client.download_file(bucket, file.name, str(file))
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.folder), no_dist=True)

    def sweep(self) -> None:
        """Room for the next turn."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()


def evict(folder: Path) -> None:
    """Drop a folder's files from the page cache, as on the machine of a newcomer."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@dataclass
class Times:
    """Seconds of each turn."""

    save: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    work: dict[str, list[float]] = field(default_factory=lambda: {"save": [], "load": []})
    """CPU seconds of this process (commit, restore), which others on the machine change less."""

    def add(self, what: str, action: Callable[[], None]) -> None:
        """One turn."""
        used, began = time.process_time(), time.perf_counter()
        action()
        getattr(self, what).append(time.perf_counter() - began)
        if what in self.work:
            self.work[what].append(time.process_time() - used)


def turn(who: Any, state: dict[str, Any], times: Times, folder: Path | None) -> None:
    """One save and its restores, each from scratch; the values come back to the bit."""
    who.sweep()
    for tensor in tensors_of(state):
        tensor.add_(1)
    times.add("save", lambda: who.save(state))
    want = [tensor.sum() for tensor in tensors_of(state)]
    for tensor in tensors_of(state):
        tensor.zero_()
    if folder is not None:
        evict(folder)
        times.add("cold", lambda: who.load(state))
    times.add("load", lambda: who.load(state))
    assert all(torch.equal(a, b.sum()) for a, b in zip(want, tensors_of(state), strict=True))


def contestants(kind: str, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Who takes part, by name; `ours` first."""
    mine, theirs = folder / "ours", folder / "theirs"
    if kind == "files":

        def sweep() -> None:
            shutil.rmtree(mine / "blobs", ignore_errors=True)
            shutil.rmtree(mine / "jobs", ignore_errors=True)

        return {
            "ours": Ours(FileStore(mine), sweep),
            "DCP async_save": Rival(theirs, "async_save"),
            "DCP async_save, 4 threads": Rival(theirs, "async_save", 4),
            "DCP save": Rival(theirs, "save"),
        }
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from services import running_seaweedfs

    (folder / "server").mkdir()
    server = stack.enter_context(running_seaweedfs(folder / "server"))
    os.environ |= server.env
    ours, bucket, client = server.new_bucket(), server.new_bucket(), server.client()

    def empty(name: str) -> None:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for entry in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=entry["Key"])

    return {
        "ours": Ours(S3Store(ours), lambda: empty(ours)),
        "DCP async_save + upload_file": Rival(theirs, "async_save", remote=(client, bucket)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--store", choices=["files", "seaweedfs"], default="files")
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    logs.configure("warning")
    warnings.simplefilter("ignore")
    state = gpt_state(arguments.megabytes)
    total = sum(tensor.nbytes for tensor in tensors_of(state)) / 1e6
    print(f"{device_kind('cpu')}, torch {torch.__version__}, {os.cpu_count()} cores; {total:.0f} MB in "
          f"{len(tensors_of(state))} tensors; store: {arguments.store}; {arguments.rounds} rounds\n")  # fmt: skip
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entries = contestants(arguments.store, folder, stack)
        places = {name: folder / ("ours" if name == "ours" else "theirs") for name in entries}
        times = {name: Times() for name in entries}
        for number in range(arguments.rounds + 1):  # the first warms up
            order = list(entries) if number % 2 else list(reversed(entries))
            for name in order:
                used = times[name] if number else Times()
                turn(entries[name], state, used, places[name] if arguments.store == "files" else None)
    print("| who | commit, MB/s | ratio | restore, MB/s | ratio | restore from cold, MB/s | ratio | CPU s per GB |")
    print("|---|---|---|---|---|---|---|---|")
    for name, own in times.items():
        cells = [name]
        for what in ("save", "load", "cold"):
            seconds, base = getattr(own, what), getattr(times["ours"], what)
            if not seconds:
                cells += ["", ""]
                continue
            ratio = statistics.median(b / a for a, b in zip(base, seconds, strict=True))
            cells += [f"{total / statistics.median(seconds):.0f}", "" if name == "ours" else f"{ratio:.2f}"]
        cells.append(", ".join(f"{1000 * statistics.median(used) / total:.2f}" for used in own.work.values()))
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
