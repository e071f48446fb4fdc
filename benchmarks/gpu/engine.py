"""Whole jobs. Exact, on a GPU and a CPU at once, to the state of the CPU alone; native, on one GPU, to one state
for any number of processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .checks import Options, Teller

JOB = Path(__file__).with_name("job.py")
ESTS = 4


def _native(options: Options) -> tuple[int, ...]:
    """Numbers of worker processes."""
    return (2, 1) if options.tiny else (4, 2, 1)


def plan(options: Options) -> list[Planned]:
    """What will be looked at."""
    return [Planned("exact jobs", 3), Planned("native jobs on one GPU", len(_native(options)))]


class Problem(Exception):  # noqa: N818 - told as a check
    """A job did not come to its end."""


class Place:
    """A folder with a cluster's records and commits.

    Args:
        folder: its own. options: of this run.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder = folder
        self._settings = ["--set", "steps=6"] if options.tiny else []

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "easyscale.pipeline.cli", "--log-level", "warning", *arguments]

    def _json(self, *arguments: str) -> dict[str, Any]:
        command = self._command(*arguments, "--output", "json")
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Problem(next((line for line in lines if line.startswith("error")), (lines or ["?"])[-1])[:300])
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def run(self, name: str, numerics: str, device: str, workers: int) -> str:
        """State digest of the job, run by workers on one device."""
        settings = ["--set", f"min_workers={workers}", *self._settings]
        return str(
            self._json(
                *("run", str(JOB), "--name", name, "--numerics", numerics, "--device", device),
                *("--workers", str(workers), *settings),
            )["state_digest"]
        )

    def together(self, name: str, devices: tuple[str, ...]) -> str:
        """State digest of the job in exact numerics, run by one worker on each device."""
        with ExitStack() as stack:
            stack.enter_context(self._process("coordinator"))
            for device in devices:
                where = ("--device", device, "--name", device.replace(":", "-"), "--only", name)
                stack.enter_context(self._process("worker", *where))
            settings = ["--set", f"min_workers={len(devices)}", *self._settings]
            self._json("submit", str(JOB), "--name", name, "--numerics", "exact", *settings)
            return str(self._json("watch", name)["state_digest"])

    @contextmanager
    def _process(self, *arguments: str) -> Iterator[None]:
        with (self._folder / "processes.log").open("ab") as log:
            process = subprocess.Popen(self._command(*arguments), cwd=self._folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(options: Options, tell: Teller) -> None:
    """Run the jobs, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), options)
        _exact(place, options, tell)
        first: str | None = None
        for workers in _native(options):
            name = f"native, {workers} processes with {ESTS // workers} ESTs on one GPU"
            found = _digest(
                name, tell, lambda workers=workers: place.run(f"native-{workers}", "native", "cuda:0", workers)
            )
            if found is not None and first is not None:
                tell.compare(name, found, first)
            elif found is not None:
                first = found
                tell(Check(name, Outcome.told, found))


def _exact(place: Place, options: Options, tell: Teller) -> None:
    reference = _digest("exact, a CPU alone", tell, lambda: place.run("exact-cpu", "exact", "cpu", 1))
    if reference is None:
        return
    tell(Check("exact, a CPU alone", Outcome.told, reference))
    jobs = {"exact, a GPU and a CPU at once": lambda: place.together("exact-both", ("cuda:0", "cpu"))}
    if not options.tiny:
        jobs["exact, a GPU alone"] = lambda: place.run("exact-gpu", "exact", "cuda:0", 1)
    for name, make in jobs.items():
        found = _digest(name, tell, make)
        if found is not None:
            tell.compare(name, found, reference)


def _digest(name: str, tell: Teller, make: Any) -> str | None:
    """What a job comes to; None: it did not, which is told."""
    try:
        return str(make())
    except Problem as problem:
        tell(Check(name, Outcome.failed, str(problem)))
        return None
