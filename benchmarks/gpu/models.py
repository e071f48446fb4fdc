"""Models trained for 20 steps on the GPU, against the digests in tests/numerics/models.json."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from . import pieces
from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from .checks import Options, Teller

STEPS = 20
RECORD = Path(__file__).resolve().parents[2] / "tests/numerics/models.json"
NEED_TRANSFORMERS = ("bert", "gpt2", "llama", "vit", "t5")
FEW = ("ncf",)


def recorded(options: Options) -> dict[str, dict[str, str]]:
    """Digests by model and optimizer."""
    found: dict[str, dict[str, str]] = {}
    for name, value in json.loads(RECORD.read_text()).items():
        model, _, optimizer = name.partition("/")
        if not options.tiny or model in FEW:
            found.setdefault(model, {})[optimizer] = value
    return found


def plan(options: Options) -> list[Planned]:
    """What will be looked at."""
    models = recorded(options)
    return [Planned("models", len(models)), Planned("digests", sum(map(len, models.values())))]


def run(options: Options, tell: Teller) -> None:
    """Train each model in a process of its own."""
    expected = recorded(options)
    work = []
    for name in expected:
        if name in NEED_TRANSFORMERS and find_spec("transformers") is None:
            tell(Check(name, Outcome.skipped, "transformers is not installed"))
        else:
            work.append(pieces.Piece("cuda", "zoo", (str(STEPS), name)))
    for piece, gave in pieces.run(work, options.jobs):
        name = piece.arguments[1]
        if isinstance(gave, pieces.Failure):
            tell(Check(name, Outcome.failed, gave.said))
            continue
        for optimizer, digest in expected[name].items():
            tell.compare(f"{name}/{optimizer}", gave[f"{name}/{optimizer}"], digest, f"{STEPS} steps")
