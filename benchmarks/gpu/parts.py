"""The parts, in their order, and how they are run: each in a process of its own, for as long as it may take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import checks, engine, environment, functions, kernels, models, operators, speed
from .checks import Check, Options, Outcome, Planned, Teller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Part:
    """One of them.

    Args:
        title: for people. minutes: its share of `MINUTES`. plan: what it will look at. run: does it.
    """

    title: str
    minutes: float
    plan: Callable[[Options], list[Planned]]
    run: Callable[[Options, Teller], None]


def _speed(table: str, title: str, minutes: float) -> Part:
    return Part(title, minutes, partial(speed.plan, table), partial(speed.run, table))


PARTS = {
    "environment": Part("what is here, and building", 2.4, environment.plan, environment.run),
    "kernels": Part("kernels, against hashes of CPUs", 0.3, kernels.plan, kernels.run),
    "functions": Part("functions of one number, on all of them", 0.4, functions.plan, functions.run),
    "operators": Part("PyTorch's table of operators, against the CPU", 1.2, operators.plan, operators.run),
    "models": Part("trained models, against digests of CPUs", 0.6, models.plan, models.run),
    "engine": Part("jobs: exact on GPU and CPU, native elastic", 1.0, engine.plan, engine.run),
    "gemm": _speed("gemm", "products, against cuBLAS", 0.4),
    "conv": _speed("conv", "convolutions, against cuDNN", 0.6),
    "memory": _speed("memory", "memory-bound kernels, against stock", 0.5),
    "steps": _speed("steps", "training steps, against stock", 0.6),
}

MINUTES = sum(part.minutes for part in PARTS.values())


def run(name: str, options: Options) -> Iterator[Check]:
    """Run a part, and give what it finds as soon as it has. A part that dies or hangs is a check, too."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "checks"), Path(folder, "log")
        command = [sys.executable, "-P", "-m", "easyscale.benchmarks.gpu", name, options.as_text(), str(file)]
        deadline = time.monotonic() + options.seconds
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        seen, late = 0, False
        try:
            while True:
                ended = process.poll() is not None
                for check in checks.read(file, seen):
                    seen += 1
                    yield check
                if ended:
                    break
                if late := time.monotonic() > deadline:
                    break
                time.sleep(LOOK_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if late:
            yield Check("the rest", Outcome.late, f"{options.seconds:.0f} s were not enough")
        elif process.returncode:
            lines = log.read_text(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            yield Check("process", Outcome.failed, lines[-1][:300], {"log": lines[-40:]})
