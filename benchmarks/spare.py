"""A worker on somebody else's machine: how soon it is gone when its owner comes, and what it costs while it waits.

    python benchmarks/spare.py [--paces 0.02 0.25 1.0] [--rounds 5]

The owner is a process of user `nobody` that computes on all processors, so this needs root. *Free after* is the time
from its start until no process of ours is left but the idle agent; beside it is the time of a step, after which a
worker that looked all the time would be gone. The cost of waiting is the processor time of an idle agent (a worker
without a job), with `--only-when-idle` and, for comparison, without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import JOBS, Cluster  # noqa: E402

IDLE = ("--only-when-idle", "--owner", "nobody", "--busy", "0.05", "--quiet", "0")
ESTS = 4
WAIT_SECONDS = 30.0


def owner() -> list[subprocess.Popen[bytes]]:
    """Begin to compute as somebody else."""
    return [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], user="nobody") for _ in range(2)]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End these."""
    for one in processes:
        one.kill()
        one.wait()


def yields(pace: float, rounds: int) -> tuple[float, list[float]]:
    """Seconds of a step, and until the device was free in each round."""
    with tempfile.TemporaryDirectory(prefix="easyscale-spare-") as scratch, Cluster(Path(scratch) / "c") as cluster:
        cluster.coordinator()
        worker = cluster.worker("spare", *IDLE, JOB_PACE=str(pace))
        job = cluster.submit(JOBS / "small.py", epochs=None, steps=1_000_000)
        found = []
        for _ in range(rounds):
            at = cluster.until(job, lambda now: now.state == "running" and now.workers).step
            cluster.until_step(job, at + 2)
            time.sleep(0.37)  # not always at the same point of a step
            began, working = time.monotonic(), owner()
            try:
                cluster.until_true(lambda: not worker.children)
                found.append(time.monotonic() - began)
            finally:
                end(working)
        cluster.kill_all()
        return ESTS * pace, found


def waiting(*options: str) -> float:
    """Share of a core that an idle worker takes."""
    with tempfile.TemporaryDirectory(prefix="easyscale-spare-") as scratch, Cluster(Path(scratch) / "c") as cluster:
        worker = cluster.worker("spare", *options)
        worker.until_written("worker.started")
        time.sleep(3.0)
        process = psutil.Process(worker.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(WAIT_SECONDS)
        used = sum(process.cpu_times()[:2]) - before
        cluster.kill_all()
        return used / WAIT_SECONDS


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paces", type=float, nargs="+", default=[0.02, 0.25, 1.0])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print("| a step, s | times | free after, median s | worst | beyond a step, worst |\n|---|---|---|---|---|")
    for pace in chosen.paces:
        step, found = yields(pace, chosen.rounds)
        cells = (statistics.median(found), max(found), max(found) - step)
        print(f"| {step:.2f} | {len(found)} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)
    print("\n| an idle worker | share of a core |\n|---|---|")
    for name, options in (("as it is", ()), ("with --only-when-idle", IDLE)):
        print(f"| {name} | {waiting(*options):.2%} |", flush=True)


if __name__ == "__main__":
    main()
