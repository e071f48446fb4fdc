"""What the GPU's kernels give, without PyTorch, against the hashes that CPUs gave: tests/numerics/probe.json.

Where a family differs, this machine's CPU says in which of its cases.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .checks import Options, Teller

FEW = ("sort", "softmax")
"""Families for a tiny run."""

SHOWN = 5


def plan(_options: Options) -> list[Planned]:
    """What will be looked at."""
    from numerics import probe

    families = probe.recorded()
    return [Planned("families of kernels", len(families)), Planned("shapes and types", probe.cases(families))]


def run(options: Options, tell: Teller) -> None:
    """Run each family, those after one that ends the program, too."""
    from numerics import probe

    recorded, program = probe.recorded(), probe.with_cuda()
    there = probe.output([str(program), "families"]).split()  # in the order in which they run
    for family in recorded.keys() - there:
        tell(Check(family, Outcome.failed, "the probe has no such family"))
    families = [family for family in there if not options.tiny or family in FEW]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "cuda"]
        if options.on_gpu:
            command = [str(program), "gpu", str(_manifest(program, Path(folder)))]
        while families:
            text, problem = _output([*command, *families])
            found = probe.by_family(text)
            done = [family for family in families if family in found]
            if problem:
                done = [family for family in done if len(found[family]) == probe.cases([family])]
            for family in done:
                _compare(family, found[family], recorded.get(family), tell)
            families = [family for family in families if family not in done]
            if families:
                tell(Check(families.pop(0), Outcome.failed, problem or "it said nothing"))
            elif problem:  # after the last line of the last family: none of them is to blame
                tell(Check("the end", Outcome.failed, problem))


def _compare(family: str, lines: list[str], recorded: str | None, tell: Teller) -> None:
    from numerics import probe

    digest, said = probe.digest(lines), f"{len(lines)} cases"
    if digest != recorded:
        said += f", {_differences(family, lines)}"
    tell.compare(family, digest, recorded, said, cases=len(lines))


def _manifest(program: Path, folder: Path) -> Path:
    """The kernels of the probe for the GPU of this machine: see csrc/probe/gpu.h."""
    import torch
    from easyscale.pipeline.numerics import cuda
    from numerics import probe

    kernels = [cuda.kernel(line) for line in probe.output([str(program), "kernels"]).splitlines()]
    arch = cuda.architecture_of(torch.cuda.get_device_capability(0))
    path = folder / "manifest"
    path.write_text(manifest(cuda.cubins(kernels, [arch])))
    return path


def manifest(cubins: Sequence) -> str:
    """As the probe reads it."""
    return "".join(
        f"{one.file}\t{one.path}\t{name}\t{symbol}\n" for one in cubins for name, symbol in one.symbols.items()
    )


def _output(command: list[str]) -> tuple[str, str]:
    """What it printed, and what was wrong; empty: nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    problem = done.stderr.strip()[-300:] or f"exit code {done.returncode}" if done.returncode else ""
    return done.stdout, problem


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
