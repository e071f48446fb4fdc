"""Part 2: what the GPU's kernels give, without PyTorch, against the hashes that CPUs gave: tests/numerics/probe.json.

Where a family differs, this machine's CPU says in which of its cases.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .checks import Options, Teller

FEW = ("sort", "softmax")
"""Families for a tiny run."""

SHOWN = 5


def plan(options: Options) -> list[Planned]:
    """What will be looked at."""
    from numerics import probe

    chosen = FEW if options.tiny else tuple(probe.recorded())
    return [Planned("families of kernels", len(chosen)), Planned("shapes and types", probe.cases(chosen))]


def run(options: Options, tell: Teller) -> None:
    """Run each family, those after one that ends the program, too."""
    from numerics import probe

    recorded = probe.recorded()
    families = list(FEW if options.tiny else recorded)
    program = probe.with_cuda()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "cuda"]
        if options.on_gpu:
            command = [str(program), "gpu", str(_manifest(program, Path(folder)))]
        deadline = time.monotonic() + options.seconds
        while families:
            text, problem = _output([*command, *families], deadline - time.monotonic())
            found = {family: lines for family, lines in probe.by_family(text).items() if family in families}
            if problem and len(found) < len(families):
                bad = families[len(found)]
                tell(Check(bad, Outcome.failed, problem))
            else:
                bad = None
            for family, lines in found.items():
                digest = probe.digest(lines)
                said = f"{len(lines)} cases"
                if digest != recorded.get(family) and family != bad:
                    said += f", {_differences(family, lines)}"
                if family != bad:
                    tell.compare(family, digest, recorded.get(family), said, cases=len(lines))
            done = [*found, bad]
            families = [family for family in families if family not in done]
            if not found and bad is None:
                break


def _manifest(program: Path, folder: Path) -> Path:
    """The kernels of the probe for the GPU of this machine: see csrc/probe/gpu.h."""
    from easyscale.pipeline.numerics import cuda
    from numerics import probe

    kernels = [cuda.kernel(line) for line in probe.output([str(program), "kernels"]).splitlines()]
    arch = cuda.architecture_of(capability())
    path = folder / "manifest"
    path.write_text(manifest(cuda.cubins(kernels, [arch])))
    return path


def manifest(cubins: Sequence) -> str:
    """As the probe reads it."""
    return "".join(
        f"{one.file}\t{one.path}\t{name}\t{symbol}\n" for one in cubins for name, symbol in one.symbols.items()
    )


def capability() -> tuple[int, int]:
    """Of the first GPU."""
    import torch

    return torch.cuda.get_device_capability(0)


def _output(command: list[str], seconds: float) -> tuple[str, str]:
    """What it printed, and what was wrong; empty: nothing."""
    with tempfile.TemporaryFile("w+") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=max(1.0, seconds),
                env=os.environ,
            )  # fmt: skip
            problem = done.stderr.strip()[-300:] or f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = "out of time"
        out.seek(0)
        return out.read(), problem


def _differences(family: str, lines: list[str]) -> str:
    """Which cases are not as on this machine's CPU."""
    from easyscale.pipeline.numerics import build
    from numerics import probe

    here = probe.output([str(probe.program(build.isas(), build.compiler())), "", family])
    mine = probe.by_family(here).get(family, [])
    wrong = [one.rsplit(" ", 1)[0] for one, other in zip(lines, mine, strict=False) if one != other]
    if not wrong:
        return "this machine's CPU gives the same"
    return f"{len(wrong)} differ: {'; '.join(wrong[:SHOWN])}" + (" ..." if len(wrong) > SHOWN else "")
