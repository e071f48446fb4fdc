"""Exact processes beside each other, each with a piece of the work: one of tests/numerics' modules, on one device.

As a program it prints what the module's `main` gives, as JSON: `python -m easyscale.benchmarks.gpu.pieces DEVICE MODULE
ARGUMENTS...`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Piece:
    """Work for one process.

    Args:
        device: `cpu` or `cuda`. module: of tests/numerics. arguments: of its `main`.
    """

    device: str
    module: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """Of a piece: the last that its process said."""

    said: str


def run(pieces: Sequence[Piece], jobs: int) -> Iterator[tuple[Piece, Any]]:
    """Run them all, `jobs` at a time. What one gives comes in their order; a piece that fails gives a Failure."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(pieces, pool.map(_run, pieces), strict=True)


def _run(piece: Piece) -> Any:
    program = [sys.executable, "-P", "-m", "easyscale.benchmarks.gpu.pieces"]
    command = [*program, piece.device, piece.module, *piece.arguments]
    # Without a seed of hashes, op_db gives its inputs in another order each time.
    env = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Failure(lines[-1][:300])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """See above."""
    where, module, *arguments = sys.argv[1:]
    import torch
    from easyscale.pipeline import determinism

    determinism.configure(1, "exact", where)
    # Models are made where they are trained. The table of operators says itself where each of its tensors is to be.
    with torch.device(where) if module == "zoo" else nullcontext():
        found = importlib.import_module(f"numerics.{module}").main(*arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
