"""Verdicts on replicas that differ, from their sums alone."""

from __future__ import annotations

import pytest
from easyscale.pipeline.integrity import Opinion, differing, evidence, judge, majority, vote
from hypothesis import given
from hypothesis import strategies as st

X, Y, Z = ({"w": name, "v": "same"} for name in "xyz")
NOBODY: tuple[int, ...] = ()


def verdict(before: str, after: str, blamed: dict[int, tuple[int, ...]] | None = None) -> tuple[str, tuple[int, ...]]:
    """`before` and `after` as a letter per slot, a capital one for a state that was given by another."""
    states = {"x": X, "y": Y, "z": Z}
    given = [slot for slot, letter in enumerate(before) if letter.isupper()]
    voices = [(blamed or {}).get(i, ()) for i in range(len(after))]
    found = judge([states[s] for s in before.lower()], [states[s] for s in after], voices, given)
    return ("?" if found.right is None else found.right["w"]), found.wrong


@pytest.mark.parametrize(
    ("before", "after", "right", "wrong"),
    [
        ("xy", "xx", "x", (1,)),  # two: who now gets what it did not have before
        ("xy", "yy", "y", (0,)),
        ("xy", "xy", "?", NOBODY),  # wrong again: nobody can tell
        ("xy", "zz", "z", NOBODY),  # wrong partials have spread, and no loss tells whose
        ("xyx", "xxx", "x", (1,)),
        ("xyx", "zzz", "z", (1,)),  # what two agree on is wrong, yet the third is the one to blame
        ("xyy", "xxx", "x", (1, 2)),
        ("xyz", "xxx", "x", (1, 2)),
        ("xyx", "xyx", "x", (1,)),  # wrong again, and outvoted
        ("xyx", "zzy", "z", (2,)),  # another one's recomputation
        ("xxyy", "xxyy", "?", NOBODY),
        ("xxyy", "xxxx", "x", (2, 3)),
        ("xYy", "xxx", "x", (2,)),  # it was given its state: its giver is to blame
        ("xyY", "zzz", "z", NOBODY),
        ("yX", "xx", "x", NOBODY),  # what is right may be new to all who answer for what they held
        ("xY", "xx", "x", NOBODY),
    ],
)
def test_verdicts(before: str, after: str, right: str, wrong: tuple[int, ...]) -> None:
    assert verdict(before, after) == (right, wrong)


def test_the_first_wrong_loss_tells_whose_partials_were_wrong() -> None:
    assert verdict("xy", "zz", {0: (1,), 1: (1,)}) == ("z", (1,))
    assert verdict("xy", "zz", {1: (1,)}) == ("z", (1,)), "a newcomer has no history"
    assert verdict("xy", "zz", {0: (0,), 1: (1,)}) == ("z", NOBODY), "two stories"
    assert verdict("xy", "zz", {0: (0, 1), 1: (0, 1)}) == ("z", NOBODY), "that blames everybody"
    assert verdict("xy", "xx", {0: (0,), 1: (0,)}) == ("x", (1,)), "what was held counts for more"


def test_a_verdict_names_the_tensors() -> None:
    assert judge([X, Y], [X, X], [(), ()]).differing == ("w",)
    assert judge([X, Y], [X, Y], [(), ()]).differing == ("w",)
    assert differing([X, {"w": "x"}]) == ("v",), "one that is missing differs"
    assert evidence(7, "states differ", ("w",), X, Y) == "step 7: states differ; w: x here, y is right"


letters = st.lists(st.sampled_from("xyz"), min_size=2, max_size=6)


@given(letters, st.data())
def test_one_transient_fault_is_never_blamed_on_anybody_else(after: list[str], data: st.DataObject) -> None:
    """All but one held what is right, or what the wrong one's partials made of it; all recompute alike."""
    members = len(after)
    wrong = data.draw(st.integers(0, members - 1))
    spread = data.draw(st.booleans())
    before = ["y" if spread else "x"] * members
    before[wrong] = "z"
    right, found = verdict("".join(before), "x" * members)
    assert right == "x"
    assert found in ((wrong,), () if spread and members == 2 else (wrong,))


@given(letters, letters, st.randoms(use_true_random=False))
def test_a_verdict_does_not_depend_on_the_order_of_slots(before: list[str], after: list[str], chance: object) -> None:
    size = min(len(before), len(after))
    before, after = before[:size], after[:size]
    order = list(range(size))
    chance.shuffle(order)  # type: ignore[attr-defined]
    right, wrong = verdict("".join(before), "".join(after))
    other, theirs = verdict("".join(before[i] for i in order), "".join(after[i] for i in order))
    assert (right, wrong) == (other, tuple(sorted(order[i] for i in theirs)))


@given(letters)
def test_what_is_right_is_said_by_more_than_half(opinions: list[str]) -> None:
    found = majority(opinions)
    assert (found is not None) == any(2 * opinions.count(letter) > len(opinions) for letter in "xyz")
    if found is not None:
        assert 2 * opinions.count(found) > len(opinions)


def test_a_vote_on_a_gradient() -> None:
    def opinions(*said: tuple[int, bytes]) -> list[Opinion]:
        return [Opinion(*one) for one in said]

    right, wrong = b"right", b"wrong"
    assert vote(opinions((0, wrong), (1, right), (0, right), (1, right))) == (right, (0,)), "the owner, once"
    assert vote(opinions((0, right), (1, wrong), (0, right), (1, right))) == (right, (1,)), "the auditor, once"
    assert vote(opinions((0, wrong), (1, right), (0, wrong), (1, right))) == (None, ()), "two, and one of them always"
    assert vote(opinions((0, wrong), (1, right), (0, wrong), (1, right), (2, right))) == (right, (0,))
    assert vote([]) == (None, ())
