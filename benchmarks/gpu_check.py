"""Is exact mode exact on this machine's GPU, and how fast? Under 8 minutes on one of Hopper's size with 16 cores.

    python benchmarks/gpu_check.py [--quick] [--only PART...] [--minutes 8] [--json FILE]
    python benchmarks/gpu_check.py --dry-run [--arch sm_90 ...] [--stand-in]

Builds everything, compares the GPU's bits with hashes that CPUs gave, which are in the repository, and with this
machine's CPU; runs whole jobs; and times kernels and training steps against stock PyTorch. Prints a table and writes it
as JSON. Each part is a process of its own with a share of the time: what it has not looked at by then is told, and the
rest goes on.

Without a GPU, `--dry-run` builds all that a GPU would need and lists what would be looked at. `--stand-in` also runs a
little of everything on the stand-in that tests have (csrc/standin): it shows that this program works, and no speed.

Exit code: 0; 1 if a hash differs or a check fails; 2 if it cannot be run here, or for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("torch", "numpy", "structlog", "msgspec", "tenacity", "typer", "rich", "boto3", "etcd3")
WIDTH = 30


def ready() -> None:
    """Let this process and its children find our modules, also where nothing of ours is installed."""
    if sys.path[0] == str(ROOT / "benchmarks"):  # which has another `numerics` than tests have
        del sys.path[0]
    paths = [str(ROOT / "tests")]
    if find_spec("easyscale") is None:
        home = tempfile.mkdtemp(prefix="easyscale-")
        Path(home, "easyscale").symlink_to(ROOT)
        paths.append(home)
    sys.path[:0] = paths
    # None that is empty: it would be the current folder, which may be that of benchmarks.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH")]))


def refuse(text: str) -> NoReturn:
    """It cannot be run here."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def require() -> None:
    """The libraries that it cannot do without."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        refuse(f"missing: {', '.join(missing)}; hint: pip install -e '.[test]' in {ROOT}")


def require_gpu() -> None:
    """A GPU that PyTorch can use."""
    import torch

    if torch.version.cuda is None:
        refuse(f"PyTorch {torch.__version__} was built without CUDA; hint: --dry-run needs no GPU")
    if not torch.cuda.is_available():
        refuse(f"PyTorch {torch.__version__} finds no GPU here; hint: --dry-run needs none")


class Table:
    """What is printed, and kept for the JSON."""

    def __init__(self) -> None:
        self.parts: dict[str, dict] = {}
        print(f"| {'part':11} | {'check':{WIDTH}} | {'outcome':11} | |\n|---|---|---|---|", flush=True)

    def run(self, name: str, options) -> None:
        """Run a part."""
        from easyscale.benchmarks.gpu import parts

        began = time.monotonic()
        found = []
        for check in parts.run(name, options):
            found.append(check)
            print(f"| {name:11} | {check.name:{WIDTH}} | {check.outcome:11} | {check.said} |", flush=True)
        seconds = time.monotonic() - began
        counts = Counter(check.outcome.value for check in found)
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "nothing"
        print(
            f"| {name:11} | {parts.PARTS[name].title:{WIDTH}} | {'in all':11} | {said}; {seconds:.0f} s |", flush=True
        )
        self.parts[name] = {"seconds": round(seconds, 1), "checks": [asdict(check) for check in found]}

    def outcomes(self) -> Counter:
        """How many checks came to what."""
        return Counter(str(check["outcome"]) for part in self.parts.values() for check in part["checks"])


def parse() -> argparse.Namespace:
    """The command line."""
    from easyscale.benchmarks.gpu.parts import MINUTES, PARTS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="no operators, and functions on 2^24 numbers only")
    parser.add_argument("--minutes", type=float, default=round(MINUTES, 1), help="for all parts together")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gpu_check.json by default; of a dry run none")
    parser.add_argument("--dry-run", action="store_true", help="needs no GPU: build, and list what would be looked at")
    parser.add_argument(
        "--arch", nargs="+", default=[], help="of a dry run: sm_90 ...; all that NVRTC knows by default"
    )
    parser.add_argument("--stand-in", action="store_true", help="of a dry run: a little of everything on the stand-in")
    given = parser.parse_args()
    if (given.arch or given.stand_in) and not given.dry_run:
        parser.error("--arch and --stand-in are for --dry-run")
    if not 0 < given.minutes <= 600:
        parser.error("--minutes: more than 0, and at most 600")
    return given


def chosen(given: argparse.Namespace) -> list[str]:
    """The parts that are asked for; whatever they are, building comes first."""
    from easyscale.benchmarks.gpu.parts import PARTS

    asked = given.only or [name for name in PARTS if not (given.quick and name == "operators")]
    return [name for name in PARTS if name in asked or name == "environment"]


def options_of(given: argparse.Namespace, **more):
    """For the parts."""
    from easyscale.benchmarks.gpu.checks import Options

    return Options(quick=given.quick, jobs=len(os.sched_getaffinity(0)), **more)


def dry_run(given: argparse.Namespace) -> None:
    """Build all, and say what would be looked at."""
    from easyscale.benchmarks.gpu import environment
    from easyscale.benchmarks.gpu.parts import PARTS
    from easyscale.errors import UserError
    from easyscale.pipeline.numerics import cuda

    began = time.monotonic()
    try:
        archs = cuda.chosen(given.arch or ["all"])
        print(f"built: {environment.machine_code(list(archs))}, in {time.monotonic() - began:.1f} s", flush=True)
    except UserError as error:
        refuse(str(error))
    options = options_of(given)
    print("\n| part | minutes | what | count |\n|---|---:|---|---:|")
    for name in chosen(given):
        for planned in PARTS[name].plan(options):
            print(f"| {name} | {PARTS[name].minutes} | {PARTS[name].title}: {planned.what} | {planned.count} |")
    sys.stdout.flush()


def every_part(given: argparse.Namespace, table: Table, **more) -> None:
    """Run those asked for. What one leaves of its time is for those that follow."""
    from easyscale.benchmarks.gpu.parts import MINUTES, PARTS

    left = 0.0
    for name in chosen(given):
        left += 60 * given.minutes * PARTS[name].minutes / MINUTES
        began = time.monotonic()
        table.run(name, options_of(given, seconds=left, **more))
        left = max(0.0, left - (time.monotonic() - began))


def finish(given: argparse.Namespace, table: Table, minutes: float) -> int:
    """The last lines, the file and the exit code."""
    from easyscale.benchmarks.gpu.checks import WRONG

    outcomes = table.outcomes()
    print(f"\n{', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}; {minutes:.1f} minutes")
    path = given.json or (None if given.dry_run else Path("gpu_check.json"))
    if path:
        whole = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "minutes": round(minutes, 2)}
        path.write_text(json.dumps(whole | {"outcomes": outcomes, "parts": table.parts}, indent=1) + "\n")
        print(f"written to {path}")
    return 1 if any(outcomes[str(one)] for one in WRONG) else 0


def main() -> int:
    """See above."""
    ready()
    require()
    given = parse()
    began = time.monotonic()
    if not given.dry_run:
        require_gpu()
        table = Table()
        every_part(given, table)
        return finish(given, table, (time.monotonic() - began) / 60)
    dry_run(given)
    if not given.stand_in:
        return 0
    from numerics import stand_in

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(stand_in.environment(Path(folder)))
        print("\nOn the stand-in, a little of everything; times mean nothing:\n")
        table = Table()
        every_part(given, table, device="stand-in", tiny=True)
    return finish(given, table, (time.monotonic() - began) / 60)


if __name__ == "__main__":
    sys.exit(main())
