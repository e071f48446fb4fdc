"""The exchange between peers against PyTorch's DistributedDataParallel (gloo): the same model, batch and threads.

    python benchmarks/ddp.py [--rounds 9] [--seconds 0.5] [--sockets]

Two processes with one thread each hold both contestants, which take turns, block by block; the median of the ratios of
their samples per second is printed, above 1 when ours is faster. Ours is what a runner does: one generation over the
lane between peers, with its notes, its canonical tree and its history. DDP averages in whatever order its all-reduce
has. With more ESTs than workers it accumulates, under `no_sync()` for all micro-batches but the last. With `--sockets`
ours does not use what the two have in common, one machine, and goes over gloo as between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import easyscale as es
import torch
from easyscale import logs
from easyscale.coordinator import ranges
from easyscale.pipeline import determinism, heap, messages
from easyscale.pipeline.committer import About, Committer
from easyscale.pipeline.data import sample_ids
from easyscale.pipeline.devices import device_kind
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.generation import Generation
from easyscale.pipeline.peers import PeerLane
from easyscale.pipeline.rendezvous import Rendezvous
from easyscale.pipeline.session import Session
from easyscale.pipeline.shared import Shared
from easyscale.pipeline.spec import JobSpec
from easyscale.storage.commits import Snapshot
from easyscale.storage.files import FileStore
from torch.distributed import GradBucket  # noqa: F401 - loads torch.distributed before anything is timed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

HOST = "127.0.0.1"
WORKERS = 2
BATCH = 32
SAMPLES = 1024
NOWHERE = "0" * 64

MODELS = {"0.1M": (64, 290, 2), "3M": (512, 1100, 3), "30M": (1024, 2600, 5)}
"""By their number of parameters: width of the input, width of the layers, and how many."""


@dataclass(frozen=True)
class Row:
    """What came of one contest.

    Args:
        ours, ddp: samples per second of all workers together, medians. ratio: median of the ratios, block by block.
        sent: bytes that one worker sends in a step of ours, as a multiple of the gradient's size.
    """

    model: str
    parameters: int
    ests: int
    ours: float
    ddp: float
    ratio: float
    sent: float


def training(model: str) -> es.Training:
    """A multi-layer perceptron on random numbers."""
    inputs, width, layers = MODELS[model]
    sizes = [inputs, *[width] * layers]
    hidden = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 10))
    data = TensorDataset(torch.randn(SAMPLES, inputs), torch.randint(0, 10, (SAMPLES,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    return es.Training(
        model=net,
        optimizer=optimizer,
        dataset=data,
        step=lambda m, batch: torch.nn.functional.cross_entropy(m(batch[0]), batch[1]),
    )


def prepared(model: str, ests: int) -> tuple[es.Training, JobSpec]:
    """A fresh training and its specification."""
    spec = JobSpec(
        name="ddp", script="ddp.py", code="", data="", samples=SAMPLES, ests=ests, batch_size=BATCH, seed=1,
        steps=1_000_000, commit_every=1_000_000,
    )  # fmt: skip
    return build(lambda: training(model), spec), spec


def ours(model: str, ests: int, rank: int, address: str, folder: Path) -> Generator[int, None, None]:
    """Each `next` makes one step; it gives the bytes sent so far."""
    made, spec = prepared(model, ests)
    engine = Engine(made, spec)
    members = ranges.even(ests, [f"w{i}" for i in range(WORKERS)])
    run = messages.Run(
        generation=1, members=members, slot=rank, step=0, base=messages.Base(), held=(0,) * WORKERS,
        lane="peer", addresses=(address,) * WORKERS, gpus=("",) * WORKERS,
    )  # fmt: skip
    about = About("ddp", NOWHERE, NOWHERE, ests, {"class": "benchmark"})
    take = lambda reuse: Snapshot.take(engine.step, engine.state(), reuse)  # noqa: E731
    committer = Committer(FileStore(folder), about, take, lambda _: None)
    committer.enter(1, messages.Base())
    session = Session(run, spec.total_steps, spec.commit_every, None, spec.check_every, spec.audit_every)
    lane = PeerLane("ddp", run, ests, HOST, "cpu", 3600.0)
    generation = Generation(
        session, engine, lane, committer, lambda message: messages.encode(message) and None, time.monotonic,
        samples=ests * BATCH, restore=lambda _: None,
    )  # fmt: skip
    done = engine.step
    try:
        for _ in generation.run():
            if engine.step > done:
                done = engine.step
                yield lane.sent
        raise AssertionError("the lane broke")
    finally:
        lane.close()


def rival(model: str, ests: int, rank: int) -> Generator[int, None, None]:
    """Each `next` makes one step, the way people write it."""
    made, spec = prepared(model, ests)
    net = DistributedDataParallel(made.model, gradient_as_bucket_view=True)
    mine = ranges.even(ests, [f"w{i}" for i in range(WORKERS)])[rank]
    share = mine.last - mine.first
    for step in range(spec.total_steps):
        made.optimizer.zero_grad()
        for est in range(mine.first, mine.last):
            batch = default_collate([made.dataset[i] for i in sample_ids(spec, step, est)])
            last = est == mine.last - 1
            with contextlib.nullcontext() if last else net.no_sync():
                (made.step(net, batch) / share).backward()
        made.optimizer.step()
        yield 0


def block(steps: Iterator[int], count: int) -> tuple[float, int]:
    """Seconds of some steps that all begin together, and what the last one gave."""
    torch.distributed.barrier()
    began, given = time.perf_counter(), 0
    for _ in range(count):
        given = next(steps)
    return time.perf_counter() - began, given


def contestant(model: str, ests: int, rank: int, port: int, rounds: int, seconds: float) -> Row:
    """One of the two processes."""
    determinism.configure(1)
    heap.keep()  # as in every runner of ours; the rival has it here, too
    store = torch.distributed.TCPStore(HOST, port, is_master=rank == 0, wait_for_workers=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS)
    place = Rendezvous(HOST) if rank == 0 else None
    if place is not None:
        store.set("place", place.address)
    with tempfile.TemporaryDirectory() as folder:
        a = ours(model, ests, rank, store.get("place").decode(), Path(folder))
        b = rival(model, ests, rank)
        block(a, 3), block(b, 3)
        slower = max(block(a, 3)[0], block(b, 3)[0]) / 3
        agreed = torch.tensor([max(2, int(seconds / slower))])
        torch.distributed.broadcast(agreed, 0)
        steps = int(agreed)
        times, sent = [], [0, 0]
        for number in range(rounds):  # who goes first changes, so that drift hits both alike
            turns = {"a": a, "b": b} if number % 2 else {"b": b, "a": a}
            took = {}
            for name, turn in turns.items():
                took[name], given = block(turn, steps)
                if name == "a":
                    sent = [sent[1], given]
            times.append(took)
        torch.distributed.barrier()
        a.close()
    size = sum(p.numel() for p in training(model).model.parameters())
    samples = steps * ests * BATCH
    return Row(
        model, size, ests,
        samples / statistics.median(t["a"] for t in times),
        samples / statistics.median(t["b"] for t in times),
        statistics.median(t["b"] / t["a"] for t in times),
        (sent[1] - sent[0]) / steps / (4 * size) if rounds > 1 else 0.0,
    )  # fmt: skip


def contest(model: str, ests: int, rounds: int = 9, seconds: float = 0.5, *, sockets: bool = False) -> Row:
    """Ours against DDP on two processes of this machine; with `sockets`, as if they were on two."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--model", model, "--ests", str(ests), "--port", str(port)]
    command += ["--rounds", str(rounds), "--seconds", str(seconds), *["--sockets"] * sockets]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(WORKERS)
    ]
    try:
        out = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return Row(**json.loads(out[0].splitlines()[-1]))


def tables(rounds: int = 9, seconds: float = 0.5, *, sockets: bool = False) -> list[Row]:
    """All contests, printed as they end."""
    how = "gloo" if sockets else "shared memory"
    print(f"W = {WORKERS}, {how}, batch {BATCH} per EST, one thread, {device_kind('cpu')}, torch {torch.__version__}")
    print("| model | parameters | ESTs | ours, samples/s | DDP, samples/s | ours / DDP | sent, gradients per step |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    for model in MODELS:
        for ests in (WORKERS, 2 * WORKERS):
            row = contest(model, ests, rounds, seconds, sockets=sockets)
            rows.append(row)
            print(
                f"| {row.model} | {row.parameters:,} | {row.ests} | {row.ours:.0f} | {row.ddp:.0f} "
                f"| {row.ratio:.2f} | {row.sent:.2f} |",
                flush=True,
            )
    return rows


def main() -> None:
    """The table, one row of it, or one of a row's two processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--sockets", action="store_true", help="ours over gloo, as between two machines")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--ests", type=int, default=WORKERS)
    for hidden in ("--rank", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        logs.configure("warning")
        if given.sockets:
            Shared.meet = staticmethod(lambda *_: None)  # type: ignore[assignment]
        row = contestant(given.model, given.ests, given.rank, given.port, given.rounds, given.seconds)
        print(json.dumps(asdict(row)), flush=True)
    elif given.model:
        row = contest(given.model, given.ests, given.rounds, given.seconds, sockets=given.sockets)
        print(json.dumps(asdict(row)))
    else:
        print(f"{platform.node()}: ", end="")
        tables(given.rounds, given.seconds, sockets=given.sockets)


if __name__ == "__main__":
    main()
