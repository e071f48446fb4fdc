"""How long the page's API takes with many long jobs: each answer's time over HTTP, and TensorBoard's beside it.

    python benchmarks/page.py [--jobs 500] [--steps 10000] [--every 100] [--rounds 200] [--kv file|etcd]

The jobs are drawn by hand (`tests/exhibits.py`): records, manifests and a line per step, as a cluster would have left
them. Requests come one after the other. Those of the first kind are made of a server that keeps no picture, so that
the key-value store is read and parsed for each: the worst that a viewer can meet. Those of the second kind find the
picture at hand, as most do. `CPU` is what the server computes for one of them, whatever else the machine does. `first`
is the very first one of a job's history, which is read from the object store in the background meanwhile; `whole after`
says when all of it was there. The rival is TensorBoard, which is asked for the loss curve of one of these jobs alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psutil
from easyscale.coordinator.kv import open_kv
from easyscale.pipeline import scalars
from easyscale.pipeline.summary import read_job
from easyscale.settings import file_address
from easyscale.storage.files import FileStore
from etcd_service import EtcdCluster
from exhibits import Exhibit, many_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 50.0
"""Milliseconds: what an answer may take."""

JOB = "resnet50-sweep-003"
"""One that is done: it has all steps."""

KEEPS = {"read anew": 0.0, "at hand": 1e9}
"""How old a picture may be, in seconds."""

SERVE = "import sys; from easyscale.pipeline import cli; from easyscale.pipeline.serve import picture; "
SERVE += "picture.FRESH_SECONDS = float(sys.argv.pop(1)); cli.main(sys.argv[1:])"


def milliseconds(url: str) -> tuple[float, Any]:
    """How long one answer takes, and what it says."""
    began = time.perf_counter()
    with urlopen(url) as answer:
        body = answer.read()
    return (time.perf_counter() - began) * 1000, body


@contextmanager
def started(*command: str, says: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server: the address that it says it listens on, and its process."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            for line in process.stderr:
                if found := re.search(says, line):
                    yield found[1], psutil.Process(process.pid)
                    return
            raise SystemExit(f"{command} did not start")
        finally:
            process.terminate()


def row(name: str, times: list[float], cpu: float, note: str = "") -> None:
    """A line of the table."""
    middle, worst = statistics.median(times), quantile99(times)
    print(f"{name:<48} {middle:8.1f} {worst:8.1f} {cpu:8.1f}   {'yes' if worst < LIMIT else 'NO':<5} {note}")


def used(process: psutil.Process) -> float:
    """Milliseconds of a processor that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system) * 1000


def quantile99(times: list[float]) -> float:
    """What 99 of 100 stay below."""
    return sorted(times)[-(-99 * len(times) // 100) - 1]


def measure(url: str, process: psutil.Process, rounds: int, picture: str) -> float:
    """All requests of ours; the median milliseconds of a loss curve."""
    began, before = time.perf_counter(), used(process)
    first, _ = milliseconds(f"{url}api/jobs/{JOB}/scalars")
    while not json.loads(milliseconds(f"{url}api/jobs/{JOB}/scalars")[1])["complete"]:
        time.sleep(0.01)
    whole = f"whole after {time.perf_counter() - began:.2f} s"
    row(f"/api/jobs/{JOB}/scalars, first", [first], used(process) - before, whole)
    paths = ["cluster", "jobs", "workers", f"jobs/{JOB}"]
    paths += [f"jobs/{JOB}/{what}" for what in ("timeline", "scalars?points=400", "commits", "verified")]
    found: dict[str, list[float]] = {}
    for path in [*(f"api/{path}" for path in paths), "metrics"]:
        before = used(process)
        found[path] = [milliseconds(url + path)[0] for _ in range(rounds)]
        row(f"/{path}", found[path], (used(process) - before) / rounds, picture)
    return statistics.median(found[f"api/jobs/{JOB}/scalars?points=400"])


def rival(folder: Path, rounds: int) -> float:
    """Median milliseconds of TensorBoard's answer with the loss curve of one job, once it has read it."""
    command = ("-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--bind_all", "--load_fast", "false")
    with started(*command, says=r"at (http://\S+/)") as (told, _):
        url = re.sub(r"//[^:/]+", "//127.0.0.1", told) + "data/plugin/scalars/scalars?run=.&tag=train%2Floss"
        while True:
            try:
                milliseconds(url)
                break
            except OSError:  # it has not read the run yet
                time.sleep(0.1)
        return statistics.median([milliseconds(url)[0] for _ in range(rounds)])


def main() -> None:
    """Draw, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=100, help="steps between commits")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kv", choices=["file", "etcd"], default="file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        address = file_address(folder / "kv.sqlite")
        if options.kv == "etcd":
            (folder / "etcd").mkdir()
            servers = EtcdCluster(folder / "etcd")
            stack.callback(servers.close)
            address = servers.address
        store = FileStore(folder / "store")
        kv = open_kv(address)
        began = time.perf_counter()
        many_jobs(Exhibit(kv, store), options.jobs, options.steps, options.every)
        keys = len(kv.range("/easyscale/v1/"))
        print(f"{options.jobs} jobs of {options.steps} steps, {keys} keys in {options.kv}, "
              f"drawn in {time.perf_counter() - began:.0f} s")  # fmt: skip
        view = read_job(kv, JOB)
        assert view is not None
        scalars.write_tensorboard(store, view, folder / "board")
        places = ("--kv", address, "--store", store.address, "--folder", str(folder / "local"))
        print(f"{'request':<48} {'p50':>8} {'p99':>8} {'CPU':>8}   <{LIMIT:.0f} ms")
        for picture, seconds in KEEPS.items():
            command = ("-c", SERVE, str(seconds), "serve", "--port", "0", *places)
            with started(*command, says=r'(http://[^" ]+/)') as (url, process):
                ours = measure(url, process, options.rounds, picture)
        theirs = rival(folder / "board", options.rounds)
        print(f"{'TensorBoard: the same loss curve':<48} {theirs:8.1f}   {theirs / ours:.1f}x as long as ours")


if __name__ == "__main__":
    main()
