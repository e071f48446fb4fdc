"""What determinism costs on one worker: our engine against a hand-written PyTorch loop that does the same arithmetic.

    python benchmarks/engine.py [--steps 40] [--rounds 9]

Ours is what a runner does with all ESTs: one generation with its exchange, seeding, canonical reduction, and a commit
every 50 steps in the background. The rival accumulates the same micro-batches with the same optimizer, schedule,
clipping and threads, fetches the same samples one by one, and commits nothing. Both take turns in one process, block by
block; the ratio of the medians of their samples per second is printed, above 1 when ours is faster.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from easyscale import logs
from easyscale.coordinator.records import Member
from easyscale.pipeline import determinism, messages
from easyscale.pipeline.committer import About, Committer
from easyscale.pipeline.data import epoch_of, sample_ids
from easyscale.pipeline.devices import device_kind
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.generation import Generation
from easyscale.pipeline.lanes import LocalLane
from easyscale.pipeline.script import jobs_in, load, pick
from easyscale.pipeline.session import Session
from easyscale.storage.commits import Snapshot
from easyscale.storage.files import FileStore
from torch.utils.data import default_collate

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


def complete(job: Job, dataset: Any) -> JobSpec:
    """The specification of a job that is long enough for the benchmark."""
    spec = job.replace(steps=1_000_000, commit_every=COMMIT_EVERY, evaluate_every=0).settings
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
    generation = Generation(session, engine, LocalLane(), committer, say, time.monotonic, samples=samples)
    done = engine.step
    try:
        for _ in generation.run():
            if engine.step > done:
                done = engine.step
                yield
    finally:
        while not committer.idle:  # it still writes to the folder
            time.sleep(0.01)


def rival(job: Job) -> Iterator[None]:
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
    job = pick(jobs_in(load(EXAMPLES / f"{entry.example}.py"))).replace(ests=entry.ests)
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="steps per turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    arguments = parser.parse_args()
    determinism.configure(1)
    logs.configure("warning")
    kind = device_kind("cpu")
    print(f"{kind} ({platform.machine()}), torch {torch.__version__}, 1 thread, commit every {COMMIT_EVERY} steps\n")
    print("| job | ESTs | ours, samples/s | hand-written loop, samples/s | ratio |\n|---|---|---|---|---|")
    for entry in (Contest("digits", 4), Contest("digits", 16), Contest("gpt", 4), Contest("gpt", 16)):
        steps = max(2, arguments.steps * 4 // entry.ests // (10 if entry.example == "gpt" else 1))
        with tempfile.TemporaryDirectory() as folder:
            a, b, ratio = contest(entry, steps, arguments.rounds, Path(folder))
        print(f"| {entry.example} | {entry.ests} | {a:.0f} | {b:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
