"""What determinism costs on one worker: our engine against a hand-written PyTorch loop that does the same arithmetic.

    python benchmarks/engine.py [--steps 50] [--rounds 9]

Ours is what a runner does with all ESTs: one generation with its exchange, seeding, canonical reduction, and a commit
every 50 steps in the background. The rival accumulates the same micro-batches with the same optimizer, schedule,
clipping and threads, fetches the same samples one by one, and commits nothing. Both take turns in one process, block by
block; the median of the ratios of their samples per second is printed, above 1 when ours is faster.

Two more tables: how long training stands still for a commit, against a plain copy of the same tensors to memory that is
there already; and the memory above the hand-written loop's, as the peak resident size of a process each.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import easyscale as es
import msgspec
import torch
from easyscale import logs
from easyscale.coordinator.records import Member
from easyscale.pipeline import determinism, heap, messages
from easyscale.pipeline.committer import About, Committer
from easyscale.pipeline.data import epoch_of, sample_ids
from easyscale.pipeline.devices import device_kind
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.generation import Generation
from easyscale.pipeline.lanes import LocalLane
from easyscale.pipeline.script import jobs_in, load, pick
from easyscale.pipeline.session import Session
from easyscale.storage import trees
from easyscale.storage.commits import Snapshot
from easyscale.storage.files import FileStore
from torch.utils.data import TensorDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from easyscale.pipeline.job import Job
    from easyscale.pipeline.spec import JobSpec

COMMIT_EVERY = 50
NOWHERE = "0" * 64
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Contest:
    """One row of the table: which job, and with how many ESTs."""

    example: str
    ests: int


def build_wide() -> es.Training:
    """25 million parameters in 25 layers: 100 MB of gradients, 200 MB of state with the momentum."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(25)))
    data = TensorDataset(torch.randn(256, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return es.Training(model=model, optimizer=optimizer, dataset=data, step=lambda m, batch: m(batch[0]).pow(2).mean())


WIDE = es.Job("wide", build_wide, ests=4, batch_size=2, steps=1000, commit_every=2)


def example(name: str) -> Job:
    """The job of an example's script."""
    return pick(jobs_in(load(EXAMPLES / f"{name}.py")))


def complete(job: Job, dataset: Any) -> JobSpec:
    """The specification of a job that is long enough for the benchmark."""
    every = job.settings.commit_every or COMMIT_EVERY
    spec = job.replace(steps=1_000_000, commit_every=every, evaluate_every=0).settings
    return msgspec.structs.replace(spec, samples=len(dataset))


def ours(job: Job, folder: Path) -> Generator[None, None, None]:
    """Each `next` makes one step, the way a runner does."""
    training = build(job.build, job.settings)
    spec = complete(job, training.dataset)
    engine = Engine(training, spec)
    committer: Committer

    def say(message: messages.FromRunner) -> None:
        if isinstance(message, messages.Publish):  # plays the agent: every commit becomes the head
            base = messages.Base(step=message.step, manifest=message.manifest)
            committer.answer(messages.Published(base=base))

    about = About(job.name, NOWHERE, NOWHERE, spec.ests, {"class": "benchmark"})
    store = FileStore(folder)
    committer = Committer(store, about, lambda reuse: Snapshot.take(engine.step, engine.state(), reuse), say)
    run = messages.Run(generation=1, members=(Member("w", 0, spec.ests),), slot=0, step=0, base=messages.Base())
    committer.enter(1, messages.Base())
    session = Session(run, spec.total_steps, spec.commit_every)
    samples = spec.ests * spec.batch_size
    generation = Generation(session, engine, LocalLane(), committer, say, time.monotonic, samples, lambda _: None)
    done = engine.step
    try:
        for _ in generation.run():
            if engine.step > done:
                done = engine.step
                yield
    finally:
        while not committer.idle:  # it still writes to the folder
            time.sleep(0.01)


def rival(job: Job) -> Generator[None, None, None]:
    """Each `next` makes one step, the way people write it."""
    training = build(job.build, job.settings)
    spec = complete(job, training.dataset)
    model, optimizer, dataset = training.model, training.optimizer, training.dataset
    model.train()
    for step in range(spec.total_steps):
        optimizer.zero_grad()
        for est in range(spec.ests):
            batch = default_collate([dataset[i] for i in sample_ids(spec, step, est)])
            (training.step(model, batch) / spec.ests).backward()
        if spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
        optimizer.step()
        _, index = epoch_of(spec, step)
        if training.scheduler is not None and (spec.schedule == "step" or index == spec.steps_per_epoch - 1):
            training.scheduler.step()
        yield


def seconds(steps: Iterator[None], count: int) -> float:
    """Time of some steps."""
    began = time.perf_counter()
    for _ in range(count):
        next(steps)
    return time.perf_counter() - began


def contest(entry: Contest, steps: int, rounds: int, folder: Path) -> tuple[float, float, float]:
    """Samples per second of ours and of the rival, and the ratio, as medians over rounds."""
    job = example(entry.example).replace(ests=entry.ests)
    a, b = ours(job, folder), rival(job)
    seconds(a, steps), seconds(b, steps)  # warm up
    samples = steps * job.settings.ests * job.settings.batch_size
    times = []
    for number in range(rounds):  # who goes first changes, so that drift hits both alike
        turns = {"a": a, "b": b} if number % 2 else {"b": b, "a": a}
        times.append({name: seconds(turn, steps) for name, turn in turns.items()})
    a.close()
    ratio = statistics.median(t["b"] / t["a"] for t in times)
    return (
        samples / statistics.median(t["a"] for t in times),
        samples / statistics.median(t["b"] for t in times),
        ratio,
    )


def standstill(job: Job, rounds: int) -> tuple[float, float, float, float]:
    """Of a commit: MB of state; seconds of the first snapshot, of a later one, and of a plain copy (medians)."""
    training = build(job.build, job.settings)
    engine = Engine(training, complete(job, training.dataset))
    for _ in range(2):
        engine.run_local()  # the optimizer has its state now
    _, tensors = trees.flatten(engine.state())
    buffers = {name: tensor.clone() for name, tensor in tensors.items()}
    began = time.perf_counter()
    snapshot = Snapshot.take(engine.step, engine.state())
    first = time.perf_counter() - began
    ours_taken, copies = [], []
    for _ in range(rounds):
        engine.run_local()  # what is copied is no longer in the cache
        began = time.perf_counter()
        snapshot = Snapshot.take(engine.step, engine.state(), snapshot)
        ours_taken.append(time.perf_counter() - began)
        engine.run_local()
        _, tensors = trees.flatten(engine.state())
        began = time.perf_counter()
        for name, tensor in tensors.items():
            buffers[name].copy_(tensor)
        copies.append(time.perf_counter() - began)
    size = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) / 1e6
    return size, first, statistics.median(ours_taken), statistics.median(copies)


def peak(who: str, ests: int) -> int:
    """Peak resident bytes of this process after six steps of the wide model, with two or three commits."""
    job = WIDE.replace(ests=ests)
    if who == "ours":
        heap.keep()  # as every runner does
    with tempfile.TemporaryDirectory() as folder:
        steps = ours(job, Path(folder)) if who == "ours" else rival(job)
        seconds(steps, 6)
        steps.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_of(who: str, ests: int) -> int:
    """`peak` in a process of its own."""
    command = [sys.executable, __file__, "--peak", who, "--ests", str(ests)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_speed(steps: int, rounds: int) -> None:
    """Table 1."""
    print(f"One worker, commit every {COMMIT_EVERY} steps in the background, against a hand-written loop\n")
    print("| job | ESTs | ours, samples/s | hand-written loop, samples/s | ratio |\n|---|---|---|---|---|")
    for entry in (Contest("digits", 4), Contest("digits", 16), Contest("gpt", 4), Contest("gpt", 16)):
        turn = max(2, steps * 4 // entry.ests // (10 if entry.example == "gpt" else 1))
        with tempfile.TemporaryDirectory() as folder:
            a, b, ratio = contest(entry, turn, rounds, Path(folder))
        print(f"| {entry.example} | {entry.ests} | {a:.0f} | {b:.0f} | {ratio:.3f} |", flush=True)


def print_standstill(rounds: int) -> None:
    """Table 2."""
    print("\nTraining stands still for a commit, against a plain copy of the same tensors\n")
    print("| state | MB | first commit, ms | later ones, ms | plain copy, ms | ratio |\n|---|---|---|---|---|---|")
    for name, job in (("gpt", example("gpt")), ("wide", WIDE)):
        size, first, taken, copied = standstill(job, rounds)
        numbers = f"{first * 1e3:.1f} | {taken * 1e3:.1f} | {copied * 1e3:.1f} | {taken / copied:.2f}"
        print(f"| {name} | {size:.0f} | {numbers} |", flush=True)


def print_memory() -> None:
    """Table 3."""
    model = build_wide().model
    gradient = sum(p.numel() * p.itemsize for p in model.parameters())
    print("\nPeak memory above the hand-written loop's (wide: gradient 100 MB, state 200 MB)\n")
    print("| ESTs | ours, MB | hand-written loop, MB | above it, less one state copy, in gradients | log2 N + 1 |")
    print("|---|---|---|---|---|")
    for ests in (4, 16):
        a, b = peak_of("ours", ests), peak_of("rival", ests)
        above = (a - b - 2 * gradient) / gradient
        print(f"| {ests} | {a / 1e6:.0f} | {b / 1e6:.0f} | {above:.2f} | {ests.bit_length()} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="steps per turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    parser.add_argument("--only", choices=["speed", "standstill", "memory"], help="one of the tables")
    parser.add_argument("--peak", choices=["ours", "rival"], help=argparse.SUPPRESS)
    parser.add_argument("--ests", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    determinism.configure(1)
    logs.configure("warning")
    if arguments.peak:
        print(peak(arguments.peak, arguments.ests))
        return
    print(f"{device_kind('cpu')} ({platform.machine()}), torch {torch.__version__}, 1 thread\n")
    if arguments.only in (None, "speed"):
        print_speed(arguments.steps, arguments.rounds)
    if arguments.only in (None, "standstill"):
        print_standstill(arguments.rounds)
    if arguments.only in (None, "memory"):
        print_memory()


if __name__ == "__main__":
    main()
