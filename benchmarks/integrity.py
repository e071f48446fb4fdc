"""What comparing replicas costs: steps with and without the sums of the state, taking turns in one process.

    python benchmarks/integrity.py [--rounds 15] [--every 10]

A turn is `every` steps of one worker with one EST, the case in which the sums weigh most: every worker takes the sums
of the whole state, however few of the ESTs it runs. One kind of turn ends with the sums, the other does not. The ratio
of the medians is printed, and, since it drowns in the noise of a busy machine, the share of the turn that the sums
themselves took. They travel in the control record that is sent anyway; their bytes are printed too.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from typing import TYPE_CHECKING

import easyscale as es
import torch
from easyscale import logs
from easyscale.pipeline import determinism
from easyscale.pipeline.devices import device_kind
from easyscale.pipeline.engine import Engine, build
from engine import complete, example
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from easyscale.pipeline.job import Job

LIMIT = 0.01
"""Of a step: what comparing may cost at `every` = 10."""


def build_30m() -> es.Training:
    """30 million parameters in 30 layers, with Adam: 120 MB of gradients, 360 MB of state."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(30)))
    data = TensorDataset(torch.randn(256, 1000))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return es.Training(model=model, optimizer=optimizer, dataset=data, step=lambda m, batch: m(batch[0]).pow(2).mean())


def jobs() -> dict[str, Job]:
    """What is measured."""
    large = es.Job("large", build_30m, ests=1, batch_size=16, steps=1000, commit_every=1000)
    return {"digits": example("digits"), "gpt": example("gpt"), "30 M parameters": large}


def measure(job: Job, rounds: int, every: int) -> tuple[int, int, float, float, float]:
    """Tensors, bytes of the state, and medians: seconds of a step, of the sums, and the ratio of turns."""
    job = job.replace(ests=1)
    training = build(job.build, job.settings)
    replica = Engine(training, complete(job, training.dataset))
    bare, checked, sums = [], [], []
    for number in range(2 * rounds + 2):
        began = time.perf_counter()
        for _ in range(every):
            replica.run_local()
        ended = time.perf_counter()
        if number % 2 == 0:
            bare.append(ended - began)
            continue
        packed = replica.sums()
        sums.append(time.perf_counter() - ended)
        checked.append(time.perf_counter() - began)
    size = sum(tensor.numel() * tensor.itemsize for tensor in _tensors(replica))
    ratio = statistics.median(b / a for a, b in zip(bare[1:], checked[1:], strict=True))
    return len(packed) // 8 - 1, size, statistics.median(bare[1:]) / every, statistics.median(sums[1:]), ratio


def _tensors(replica: Engine) -> list[torch.Tensor]:
    from easyscale.storage import trees

    return list(trees.flatten(replica.state())[1].values())


def tables(rounds: int = 15, every: int = 10) -> None:
    """Print the table."""
    print(f"Comparing states every {every} steps, one EST per worker; at most {LIMIT:.0%} is allowed\n")
    print("| job | tensors | state, MB | step, ms | sums, ms | sums, bytes | share of a step | turns with / without |")
    print("|---|---|---|---|---|---|---|---|")
    for name, job in jobs().items():
        turns = max(3, rounds // 3) if name == "30 M parameters" else rounds
        tensors, size, step, sums, ratio = measure(job, turns, every)
        share = sums / (every * step)
        numbers = f"{tensors} | {size / 1e6:.1f} | {step * 1e3:.1f} | {sums * 1e3:.2f} | {8 * tensors + 8}"
        print(f"| {name} | {numbers} | {share:.2%} | {ratio:.3f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each kind")
    parser.add_argument("--every", type=int, default=10, help="steps between comparisons")
    arguments = parser.parse_args()
    determinism.configure(1)
    logs.configure("warning")
    print(f"{device_kind('cpu')} ({platform.machine()}), torch {torch.__version__}, 1 thread\n")
    tables(arguments.rounds, arguments.every)


if __name__ == "__main__":
    main()
