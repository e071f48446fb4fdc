"""Where a computation left what was recorded of it, or another computation: step, numbers, tensors, operator. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..storage.differences import Difference  # noqa: TC001 - msgspec reads the types
from . import trace
from .bisection import first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from . import commit_checks
    from . import replay_messages as messages
    from .trace import Trace


class OperatorDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first operator of a step that is not the same on two sides.

    Args:
        step: which. number: of the operator among those of the step.
        here, there: what each side has at that place; None where it has ended before.
    """

    step: int
    number: int
    here: trace.Operator | None
    there: trace.Operator | None

    def __str__(self) -> str:
        return self.told("here", "there")

    def told(self, here: str, there: str) -> str:
        """In words, the two sides being called like this."""
        if self.here is not None and self.there is not None and str(self.here) == str(self.there):
            return f"step {self.step}, operator {self.number}: {self.here}"
        return f"step {self.step}, operator {self.number}: {self.here or 'none'} {here}, {self.there or 'none'} {there}"


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A span that did not come out as it was committed.

    Args:
        start, end: the steps of its commits.
        step: the first step whose recorded numbers differ, or None; numbers: which, as (recorded, computed).
        state: whether the state at its end differs too; differing: in how many tensors and values; tensors: the first.
        operator: the first operator that differs. why: what follows from all of it, for people.
    """

    start: int
    end: int
    step: int | None
    numbers: dict[str, tuple[Any, Any]]
    state: bool
    differing: int = 0
    tensors: tuple[Difference, ...] = ()
    operator: OperatorDifference | None = None
    why: str = ""


def departed(start: commit_checks.Stop, stop: commit_checks.Stop, found: messages.Recomputed) -> Departure:
    """What a span that was computed anew says against its record."""
    state = found.digest != stop.state_digest
    numbers = {}
    if found.step is not None:
        recorded, came_out = (msgspec.json.decode(line) if line else {} for line in (found.recorded, found.came_out))
        numbers = number_differences(recorded, came_out)
    why = ""
    if not state:
        why = f"the state of step {stop.step} comes out as it was committed: the record was altered"
    elif found.unread:
        why = f"the committed state cannot be read: {found.unread}"
    return Departure(
        start=start.step, end=stop.step, step=found.step, numbers=numbers, state=state,
        differing=found.differing, tensors=found.tensors, why=why,
    )  # fmt: skip


def number_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two records of a step say differently; of lists only the elements that differ, as `losses[2]`."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in [*one, *(name for name in other if name not in one)]:
        a, b = one.get(name), other.get(name)
        if a == b:
            continue
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            found |= {f"{name}[{i}]": (x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}
        else:
            found[name] = a, b
    return found


def class_differences(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Two determinism classes side by side, where they differ."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return "; ".join(f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here" for name in names)


def between(ours: Trace, theirs: Trace) -> OperatorDifference | None:
    """The first operator that differs between two traces of a step, or None."""
    masked = {*ours.unstable, *theirs.unstable}
    number = trace.unlike(ours.operators, theirs.operators, masked)
    if number is None:
        return None
    here, there = (side.operators[number] if number < len(side.operators) else None for side in (ours, theirs))
    return OperatorDifference(step=ours.step, number=number, here=here, there=there)


def suspects_of(departure: Departure) -> list[int]:
    """The steps in which a difference most likely began: a loss shows what the update before it has done."""
    last = departure.step if departure.step is not None else departure.end - 1
    return [step for step in (last - 1, last) if step >= departure.start]


def parting(reference: Trace, states: Sequence[str], start: int) -> int | None:
    """The step in which our states, from `start` on, left those of a trace; None: not as far as it knows."""
    theirs = [*reference.states, reference.after][start - reference.base :]
    count = min(len(theirs), len(states))
    place = first(count, lambda i: theirs[i] != states[i])
    return start + place - 1 if 0 < place < count else None
