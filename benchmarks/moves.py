"""Workers that leave when they are told, and workers that come: how long it takes, and how long the others stand still.

    python benchmarks/moves.py [--model digits gpt wide] [--moves 4]

Three workers train on one machine. Again and again one is sent SIGTERM, and when it is gone another joins. *Gone* is
the time from the signal to the end of the agent's process. *Stand still* is the longest time without a finished step
around the move, less the usual time of a step; for a join it is put beside the size of the state that the newcomer has
to get. Its import and build are not part of it: they happen while the others train.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster  # noqa: E402
from easyscale.coordinator import keys  # noqa: E402
from easyscale.storage import trees  # noqa: E402
from ledger import Finished, Ledger, watched  # noqa: E402
from machine import Machine  # noqa: E402

WORKERS = 3
STEPS = 100_000
MODELS = {
    "digits": ROOT / "examples" / "digits.py",
    "gpt": ROOT / "examples" / "gpt.py",
    "wide": ROOT / "benchmarks" / "models" / "wide.py",
}
PATIENCE = 120.0


class Move(NamedTuple):
    """One worker left or joined.

    Args:
        seconds: until it was gone, or until it had its first step.
        standstill: of the others. step: their usual seconds per step.
    """

    seconds: float
    standstill: float
    step: float


def standstill(steps: list[Finished], began: float, ended: float) -> tuple[float, float]:
    """The longest time without a finished step in this interval, less a usual one; and the usual one."""
    first: dict[int, float] = {}
    for step in steps:
        first.setdefault(step.fingerprint, step.at)  # a step counts when the first replica has finished it
    times = sorted(at for at in first.values() if at > began - 10.0)
    gaps = list(itertools.pairwise(times))
    usual = statistics.median(after - before for before, after in gaps)
    around = [after - before for before, after in gaps if after > began and before < ended]
    return max(around) - usual, usual


class Moves:
    """A cluster with a job that does not end by itself."""

    def __init__(self, folder: Path, model: str) -> None:
        self._cluster = Cluster(folder / "cluster")
        self._ledger = Ledger(folder / "ledger")
        self._machine = Machine(self._cluster, self._ledger.env)
        self._numbers = iter(range(STEPS))
        self._cluster.even_coordinator()  # what a change costs is measured here, not when it pays
        for _ in range(WORKERS):
            self._join()
        self._cluster.until_true(lambda: len(self._cluster.kv.range(keys.WORKERS)) == WORKERS)
        script = watched(MODELS[model], folder / "code")
        self._job = self._cluster.submit(script, ests=WORKERS, epochs=None, steps=STEPS, commit_every=20)
        self._until_members(WORKERS)

    def _join(self) -> Any:
        return self._machine.join(f"w{next(self._numbers)}")

    def _until_members(self, count: int) -> float:
        """When the job went on with so many."""
        self._cluster.until(self._job, lambda now: now.state == "running" and len(now.workers) == count)
        at = time.time()
        self._some_steps(count)
        return at

    def _some_steps(self, members: int) -> None:
        goal = self._ledger.finished + 6 * members
        self._cluster.until_true(lambda: self._ledger.finished >= goal)

    def leave(self, number: int) -> Move:
        """The first, the last, the second to have come."""
        worker = self._machine.workers[number % WORKERS]
        began = time.time()
        worker.signal(signal.SIGTERM)
        self._cluster.until_true(lambda: not worker.running)
        gone = time.time()
        self._machine.workers.remove(worker)
        worker.close()
        self._some_steps(WORKERS - 1)
        return Move(gone - began, *standstill(self._ledger.steps(), began, gone + 0.5))

    def join(self) -> Move:
        """Another one."""
        began, runners = time.time(), self._ledger.runners
        self._join()
        self._cluster.until_true(lambda: self._ledger.runners > runners)
        self._until_members(WORKERS)
        known = {step.pid for step in self._ledger.steps() if step.at < began}
        mine = [step.at for step in self._ledger.steps() if step.pid not in known]
        return Move(mine[0] - began, *standstill(self._ledger.steps(), began, mine[0]))

    def megabytes(self) -> float:
        """Size of the state: what a newcomer is given."""
        head = self._cluster.job(self._job).manifest
        assert head is not None
        _, tensors = trees.flatten(self._cluster.state(head))
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) / 1e6

    def close(self) -> None:
        """Kill everything."""
        self._machine.close()
        self._cluster.__exit__(None, None, None)


def measure(model: str, moves: int) -> tuple[list[Move], list[Move], float]:
    """Leaves, joins, and the MB of the state."""
    with tempfile.TemporaryDirectory(prefix="easyscale-moves-") as scratch:
        it = Moves(Path(scratch), model)
        try:
            leaves, joins = [], []
            for number in range(moves):
                leaves.append(it.leave(number))
                joins.append(it.join())
            return leaves, joins, it.megabytes()
        finally:
            it.close()


def tables(models: list[str] | None = None, moves: int = 4) -> None:
    """Measure and print the tables: medians, and the worst in brackets."""
    found = {model: measure(model, moves) for model in models or list(MODELS)}

    def cell(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({max(values):.2f})"

    print("\n| leave | times | a step, s | gone after, s | others stand still, s |\n|---|---|---|---|---|")
    for model, (leaves, _, _) in found.items():
        columns = [cell([getattr(move, name) for move in leaves]) for name in ("step", "seconds", "standstill")]
        print(f"| {model} | {len(leaves)} | " + " | ".join(columns) + " |")
    print("\n| join | times | state, MB | a step, s | first step after, s | others stand still, s |")
    print("|---|---|---|---|---|---|")
    for model, (_, joins, size) in found.items():
        columns = [cell([getattr(move, name) for move in joins]) for name in ("step", "seconds", "standstill")]
        print(f"| {model} | {len(joins)} | {size:.1f} | " + " | ".join(columns) + " |")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, nargs="+")
    parser.add_argument("--moves", type=int, default=4)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    tables(chosen.model, chosen.moves)


if __name__ == "__main__":
    main()
