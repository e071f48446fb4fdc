"""PyTorch's own table of operators (op_db), on the GPU against this machine's CPU, both exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import pieces
from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from .checks import Options, Teller

DTYPES = ("float32", "bfloat16", "float16")
SHOWN = 8


def _parts(options: Options) -> tuple[range, int]:
    """Which parts of the table, and of how many."""
    if options.tiny:
        return range(7, 8), 150
    parts = max(2, min(8, options.jobs))
    return range(parts), parts


def _dtypes(options: Options) -> tuple[str, ...]:
    return DTYPES[:1] if options.tiny else DTYPES


def plan(options: Options) -> list[Planned]:
    """What will be looked at."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [Planned("operators of PyTorch's table", len(op_db)), Planned("types", len(_dtypes(options)))]


def run(options: Options, tell: Teller) -> None:
    """Each piece of the table on both devices at once."""
    numbers, parts = _parts(options)
    work = [
        pieces.Piece(where, "operators", (dtype, f"{number}/{parts}", where))
        for dtype in _dtypes(options)
        for number in numbers
        for where in ("cuda", "cpu")
    ]
    found: dict[pieces.Piece, object] = {}
    for piece, gave in pieces.run(work, options.jobs):
        found[piece] = gave
        if len(found) % (2 * len(numbers)) == 0:
            _compare(piece.arguments[0], found, tell)
            found.clear()


def _compare(dtype: str, found: dict[pieces.Piece, object], tell: Teller) -> None:
    """All pieces of a type. A piece that gave nothing is a check of its own."""
    from numerics.operators import OTHERWISE_ON_A_DEVICE

    here: dict[str, list[str]] = {}
    there: dict[str, list[str]] = {}
    for piece, gave in found.items():
        if isinstance(gave, pieces.Failure):
            tell(Check(f"{dtype}, part {piece.arguments[1]} on {piece.device}", Outcome.failed, gave.said))
        else:
            (there if piece.device == "cuda" else here).update(gave)
    both = (here.keys() & there.keys()) - OTHERWISE_ON_A_DEVICE.keys()
    if not both:
        return
    differing = {name: (here[name], there[name]) for name in sorted(both) if here[name] != there[name]}
    outcomes = [outcome for name in both for outcome in here[name]]
    digests = sum(not outcome.startswith(("refused", "failed", "no inputs")) for outcome in outcomes)
    refused = sum(outcome.startswith("refused") for outcome in outcomes)
    said = f"{len(both)} operators, {len(outcomes)} inputs: {digests} digests, {refused} refused"
    if differing:
        said += f"; {len(differing)} differ: " + "; ".join(list(differing)[:SHOWN])
    first = {name: _first(*gave) for name, gave in differing.items()}
    outcome = Outcome.differs if differing else Outcome.equal
    tell(Check(dtype, outcome, said, {"operators": len(both), "digests": digests, "refused": refused, "first": first}))


def _first(here: list[str], there: list[str]) -> str:
    """Where two lists of outcomes part."""
    for number, (one, other) in enumerate(zip(here, there, strict=False)):
        if one != other:
            return f"input {number}: {one} on the CPU, {other}"
    return f"{len(here)} inputs on the CPU, {len(there)}"
