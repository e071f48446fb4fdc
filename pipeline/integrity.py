"""Who is right when replicas differ: a verdict from what each of them held and what each came to by itself. Pure.

All members see the same sums, so all come to the same verdict, and at most those report that it names. What the state
was recomputed to decides what is right: a wrong replica has sent wrong partials since, so even those who agree may
agree on wrong bits. What was held before, and who was the first to send other partials, tells who was wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ..errors import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

Sums = dict[str, str]
"""Digests by name of a tensor (see `storage.sums.exact_sums`)."""

T = TypeVar("T", bound="Hashable")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What members conclude.

    Args:
        right: the right sums; None: nobody can tell.
        wrong: slots of the members that held, or came to, something else. Empty although they differed: what is right
            is known now, but not who was wrong.
        differing: names of what differed, as far as it is known.
    """

    right: Sums | None
    wrong: tuple[int, ...]
    differing: tuple[str, ...]


def majority(opinions: Sequence[T]) -> T | None:
    """What more than half of all say, or None."""
    if not opinions:
        return None
    most, count = Counter(opinions).most_common(1)[0]
    return most if 2 * count > len(opinions) else None


def differing(opinions: Collection[Sums]) -> tuple[str, ...]:
    """The names at which opinions are not all the same."""
    names = dict.fromkeys(name for sums in opinions for name in sums)
    return tuple(name for name in names if len({sums.get(name) for sums in opinions}) > 1)


def judge(
    before: Sequence[Sums], after: Sequence[Sums], blamed: Sequence[tuple[int, ...]], given: Collection[int] = ()
) -> Verdict:
    """Who is right about a state, by slot.

    Args:
        before: what each member held.
        after: what each came to when it recomputed that state alone.
        blamed: whom each found to have sent the first partials that were not those of the recomputation.
        given: members that are not to blame for what they held, since it was not of their own making.
    """
    keyed = [_key(sums) for sums in after]
    right = majority(keyed)
    if right is None:
        return Verdict(None, (), differing(after))
    truth = after[keyed.index(right)]
    wrong = [slot for slot, key in enumerate(keyed) if key != right]
    if wrong:
        return Verdict(truth, tuple(wrong), differing(after))
    held = {slot: _key(sums) for slot, sums in enumerate(before) if slot not in given}
    return Verdict(truth, _suspects(held, right, {who for who in blamed if who}), differing(before))


def _suspects(held: Mapping[int, Hashable], right: Hashable, blamed: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Who was wrong, given that all recompute the same."""
    if right in held.values():  # some were untouched by it
        return tuple(slot for slot, key in held.items() if key != right)
    # Wrong partials have reached everybody: all are off, but only who sent them is off by more.
    common = majority(list(held.values()))
    if common is not None:
        return tuple(slot for slot, key in held.items() if key != common)
    # Two, or none like another: who sent the first partials that were not as they should be. One voice, or none.
    return next(iter(blamed)) if len(blamed) == 1 and len(next(iter(blamed))) < len(held) else ()


@dataclass(frozen=True, slots=True)
class Opinion:
    """Somebody's sums of one EST's gradient: of the member in `slot`, computed in the step or afresh."""

    slot: int
    sums: bytes


def vote(opinions: Sequence[Opinion]) -> tuple[bytes | None, tuple[int, ...]]:
    """What a gradient's sums are by a strict majority (None: nobody can tell), and whoever ever said otherwise."""
    right = majority([opinion.sums for opinion in opinions])
    if right is None:
        return None, ()
    return right, tuple(sorted({opinion.slot for opinion in opinions if opinion.sums != right}))


def evidence(step: int, what: str, names: Sequence[str], mine: Sums, right: Sums) -> str:
    """What is said of a member in the wrong: the step, the tensors, its sums and the right ones."""
    shown = [f"{name}: {mine.get(name, 'none')} here, {right.get(name, 'none')} is right" for name in names]
    return f"step {step}: {what}; {listed(shown, 4)}"


def _key(sums: Sums) -> Hashable:
    return tuple(sorted(sums.items()))
