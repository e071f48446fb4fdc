"""From the command to the first step, and from `kill -9` of everything to the next step, split into their parts.

    python benchmarks/restart.py [--rounds 5] [--workers 1 2] [--rival FOLDER] [--samples FILE]

A round runs `easyscale run examples/digits.py` in a fresh folder until its first step, lets it go on to its first
commit, kills all of its processes at once, and runs the same command until the first step beyond that commit. The
parts are the times between log lines that every run writes: none of them is measured by a path of its own. A part that
several workers take is over when the last of them has done it.

With `--rival`, another checkout of EasyScale takes turns with this one. With `--samples`, rounds are kept in a file and
those of earlier calls are counted, so that a long measurement can be made in short pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from easyscale.coordinator.kv import open_kv
from easyscale.pipeline.summary import read_job
from easyscale.settings import file_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parents[1]
PATIENCE = 60.0
Events = dict[str, list[dict[str, Any]]]
Parts = dict[str, float]


def start(package: Path, folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """`easyscale run` of a checkout, in a folder of its own, with its log lines in `run.log`."""
    root = folder / "packages"  # the checkout must be importable under the package's name
    root.mkdir(exist_ok=True)
    link = root / "easyscale"
    if not link.is_symlink():
        link.symlink_to(package)
    script = str(folder / "code" / "digits.py")
    with (folder / "run.log").open("ab") as log:
        return subprocess.Popen(
            [*(sys.executable, "-P", "-m", "easyscale.pipeline.cli", "--log-level", "debug", "run"),
             *(script, "--workers", str(workers), "--set", "commit_every=20", "-o", "json")],
            env={**os.environ, "PYTHONPATH": str(root), "EASYSCALE_FOLDER": str(folder / "local")},
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def events(folder: Path, since: float) -> Events:
    """Log lines of all processes written since then, by name; `at` is the time."""
    found: Events = defaultdict(list)
    for path in [folder / "run.log", *folder.glob("local/logs/**/*.log")]:
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and "timestamp" in record:
                    record["at"] = datetime.fromisoformat(record["timestamp"]).timestamp()
                    if record["at"] >= since:
                        found[record["event"]].append(record)
    return found


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the run has ended or stands still:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def has_commit(folder: Path) -> bool:
    """Whether the job has a published commit."""
    with contextlib.closing(open_kv(file_address(folder / "local" / "kv.sqlite"))) as kv:
        job = read_job(kv, "digits")
    return job is not None and job.head is not None


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the command and to everything that it has started."""
    try:
        command = psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        return
    family = [command, *command.children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(family, timeout=10)


def parts(began: float, found: Events) -> Parts:
    """The parts from the command to the end of the first step, in seconds."""
    (submitted,) = found["run.submitted"]
    ends = {
        "inspection": submitted["at"] - submitted["open"] - submitted["place"],
        "submit": submitted["at"],
        "workers' start": last(found["worker.started"]),
        "assignment": last(found["worker.runner_started"]),
        "runner's start": last(found["runner.started"]),
        "runner's script, build, probe": last(found["runner.prepared"]),
    }
    reading = max((record["seconds"] for record in found["runner.commit_read"]), default=0.0)
    ends["plan, claims"] = last(found["runner.generation"]) - reading
    ends["reading the commit"] = last(found["runner.generation"])
    ends["first step"] = min(record["at"] for record in found["runner.first_step"])
    result = {"command line": ends["inspection"] - submitted["inspect"] - began}
    before = began + result["command line"]
    for part, end in ends.items():
        result[part] = end - max(before, began)
        before = max(before, end)
    result["in all"] = ends["first step"] - began
    return result


def last(records: list[dict[str, Any]]) -> float:
    """When the last of them was written."""
    return max(float(record["at"]) for record in records)


def until_first_step(package: Path, folder: Path, workers: int) -> tuple[subprocess.Popen[bytes], Parts]:
    """Start a run, and wait for its first step."""
    began = time.time()
    process = start(package, folder, workers)
    wait_for(lambda: bool(events(folder, began)["runner.first_step"]), process, folder / "run.log")
    return process, parts(began, events(folder, began))


def one_round(package: Path, workers: int) -> dict[str, Parts]:
    """Both measurements, in a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="easyscale-restart-") as scratch:
        folder = Path(scratch)
        (folder / "code").mkdir()
        shutil.copy(HERE / "examples" / "digits.py", folder / "code")
        process, fresh = until_first_step(package, folder, workers)
        try:
            wait_for(lambda: has_commit(folder), process, folder / "run.log")
            kill(process)
            process, again = until_first_step(package, folder, workers)
        finally:
            kill(process)
    return {"fresh folder": fresh, "after kill -9": again}


def show(samples: list[dict[str, Any]]) -> None:
    """One table per number of workers: medians in seconds."""
    for workers in sorted({sample["workers"] for sample in samples}):
        mine = [sample for sample in samples if sample["workers"] == workers]
        columns = [(what, who) for what in ("fresh folder", "after kill -9") for who in ("before", "after")]
        columns = [(what, who) for what, who in columns if any(sample["who"] == who for sample in mine)]
        counts = {who: sum(sample["who"] == who for sample in mine) for _, who in columns}
        print(f"\n{workers} worker(s), rounds: {counts}\n")
        print("| seconds | " + " | ".join(f"{what}, {who}" for what, who in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for part in mine[0]["times"]["fresh folder"]:
            cells = [
                statistics.median(sample["times"][what][part] for sample in mine if sample["who"] == who)
                for what, who in columns
            ]
            print(f"| {part} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def kept(path: Path | None) -> list[dict[str, Any]]:
    """Rounds of earlier calls."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def rounds(count: int, workers: list[int], rival: Path | None) -> Iterator[dict[str, Any]]:
    """Measure in turns, so that drift hits all alike."""
    contenders = {"before": rival, "after": HERE} if rival else {"after": HERE}
    for number in range(count):
        turns = list(contenders.items())
        for number_of_workers in workers:
            for who, package in turns if number % 2 else reversed(turns):
                assert package is not None
                times = one_round(package, number_of_workers)
                yield {"who": who, "workers": number_of_workers, "times": times}


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rival", type=Path, metavar="FOLDER", help="another checkout: its columns are `before`")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="keep rounds there, and count those of before")
    arguments = parser.parse_args()
    samples = kept(arguments.samples)
    for sample in rounds(arguments.rounds, arguments.workers, arguments.rival and arguments.rival.resolve()):
        samples.append(sample)
        if arguments.samples:
            with arguments.samples.open("a") as file:
                file.write(json.dumps(sample) + "\n")
    show(samples)


if __name__ == "__main__":
    main()
