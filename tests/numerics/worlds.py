"""One machine as many: the same program under instruction sets, branches of MKL and oneDNN, and thread counts.

As a program it runs one of this folder's modules in the world that it was started in, and prints what it found as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS = Path(__file__).parents[1]

X86 = {
    "best": ({}, 1, ""),
    "avx2": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}, 2, "avx2"),
    "plain": (
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
        1,
        "baseline",
    ),
}
ARM = {"one": ({}, 1, "neon"), "two": ({}, 2, "neon")}
WORLDS = X86 if platform.machine() == "x86_64" else ARM
BEST = next(iter(WORLDS))


def start(
    world: str, numerics: str, module: str, *arguments: str, device: str = "cpu", env: dict[str, str] | None = None
) -> subprocess.Popen:
    """A process in a world.

    Args:
        world: of WORLDS. numerics: `exact` or `native`. module: of this folder; its `main` gets the arguments and
            returns what JSON can hold. device: where it makes its tensors, if it does not say. env: environment
            variables beside the world's: see `stand_in`.
    """
    environment, threads, isa = WORLDS[world]
    command = [sys.executable, "-m", "numerics.worlds", numerics, str(threads), isa, device, module, *arguments]
    # Without a seed of hashes, op_db gives its inputs in another order each time.
    env = os.environ | environment | (env or {})
    env |= {"PYTHONHASHSEED": "0", "PYTHONPATH": f"{TESTS}{os.pathsep}{env.get('PYTHONPATH', '')}"}
    return subprocess.Popen(command, env=env, cwd=TESTS, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen):
    """What it found."""
    out, _ = process.communicate()
    assert process.returncode == 0, f"{process.args} failed"
    return json.loads(out.splitlines()[-1])


def everywhere(numerics: str, module: str, *arguments: str, worlds: Sequence[str] = tuple(WORLDS)) -> dict:
    """What is found in each world."""
    running = {world: start(world, numerics, module, *arguments) for world in worlds}
    return {world: answer(process) for world, process in running.items()}


def main() -> None:
    numerics, threads, isa, device, module, *arguments = sys.argv[1:]
    import torch
    from easyscale.pipeline import determinism
    from easyscale.pipeline.numerics import library, strict

    determinism.configure(int(threads))
    if numerics == "exact":
        os.environ[library.ISA] = isa
        strict.begin(device)
    # Under the CPU's, too, PyTorch would ask Python at each call.
    with torch.device(device) if device != "cpu" else nullcontext():
        found = importlib.import_module(f"numerics.{module}").main(*arguments)
    assert torch.get_num_threads() == int(threads)
    print(json.dumps(found), flush=True)
    # Autograd's thread of a device may still be letting go of a graph: while Python shuts down it would end with abort.
    os._exit(0)


if __name__ == "__main__":
    main()
