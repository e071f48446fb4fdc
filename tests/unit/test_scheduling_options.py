"""The sets of devices that a job is offered: none is idle weight, and the best of all sets is among them.

Small cases are compared with every set that there is.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.scheduling.jobs import Devices, Shape, devices, total
from easyscale.coordinator.scheduling.options import MOST, options
from hypothesis import given
from hypothesis import strategies as st
from unit.scheduling_toys import KINDS, shape, shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

FACTOR = 1.0 + 1e-9


def offered(of: Shape, there: Mapping[str, int]) -> dict[Devices, float]:
    sheet = options(of, list(there), list(there.values()))
    return dict(zip(sheet.given, sheet.seconds.tolist(), strict=True))


def every(of: Shape, there: Mapping[str, int]) -> dict[Devices, float]:
    """All sets that it can run on."""
    counts = product(*(range(number + 1) for number in there.values()))
    sets = (devices(dict(zip(there, each, strict=True))) for each in counts)
    return {one: seconds for one in sets if (seconds := of.step_seconds(one)) < float("inf")}


def within(less: Devices, more: Devices) -> bool:
    counts = dict(more)
    return all(counts.get(kind, 0) >= count for kind, count in less)


COUNTS = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 40))


@given(of=shapes(), there=COUNTS)
def test_a_sheet_says_the_same_of_each_set_everywhere(of: Shape, there: dict[str, int]) -> None:
    kinds = list(there)
    sheet = options(of, kinds, list(there.values()))
    assert list(sheet.seconds) == sorted(sheet.seconds), "the fastest first"
    for row, has in enumerate(sheet.given):
        assert sheet.seconds[row] == of.step_seconds(has) < float("inf")
        assert dict(has) == {kind: n for kind, n in zip(kinds, sheet.usage[row].tolist(), strict=True) if n}
        assert sheet.usage[row].sum() == total(has)
        assert sheet.place[has] == row
        assert within(has, devices(there)), "no more than there are"
    assert len(sheet.place) == len(sheet.given) <= MOST + 2 * len(kinds)


@given(of=shapes(), there=COUNTS)
def test_no_set_has_a_smaller_one_in_it_that_is_as_fast(of: Shape, there: dict[str, int]) -> None:
    found = offered(of, there)
    for one, seconds in found.items():
        for other, faster in found.items():
            assert one == other or not (within(other, one) and faster <= seconds), (other, one)


@given(of=shapes(), there=COUNTS)
def test_of_each_kind_alone_the_fastest_set_is_offered_and_the_smallest(of: Shape, there: dict[str, int]) -> None:
    """Or a faster one within it; the smallest is what runs where only so much is free."""
    found = offered(of, there)
    for kind, number in there.items():
        check_kind(of, found, kind, number)


@pytest.mark.parametrize("exchange", [0.0, 0.01])
@pytest.mark.parametrize("ests", [36, 64, 100])
def test_so_it_is_with_many_ests_and_kinds_and_whatever_the_number_there_is(ests: int, exchange: float) -> None:
    kinds = {f"gpu{i}": 1.5**i for i in range(6)}
    for least, memory in ((1, ests), (11, ests), (1, 2)):
        of = shape(kinds, ests, least, exchange=exchange, memory=dict.fromkeys(kinds, memory))
        for number in (5, 11, 19, 50, 200):
            found = offered(of, dict.fromkeys(kinds, number))
            for kind in kinds:
                check_kind(of, found, kind, number)


def check_kind(of: Shape, found: dict[Devices, float], kind: str, number: int) -> None:
    alone = every(of, {kind: number})
    if alone:
        best, least = min(alone.values()), min(total(one) for one in alone)
        assert any(within(one, ((kind, number),)) and seconds == best for one, seconds in found.items()), kind
        assert ((kind, least),) in found, kind


def test_of_two_unequal_kinds_both_together_are_offered_where_that_is_faster() -> None:
    of = shape({"old": 2.0, "new": 1.0}, 6)
    found = offered(of, {"old": 1, "new": 1})
    assert found == {(("new", 1), ("old", 1)): 4.0, (("new", 1),): 6.0, (("old", 1),): 12.0}
    found = offered(of, {"old": 2, "new": 2})
    assert min(found, key=found.__getitem__) == (("new", 2), ("old", 2)), "2 + 2 and 1 + 1"
    slow = shape({"old": 9.0, "new": 1.0}, 6)
    assert set(offered(slow, {"old": 1, "new": 1})) == {(("new", 1),), (("old", 1),)}, "it would only be waited for"
    alike = shape({"old": 2.0, "new": 1.0}, 6, mixes=False)
    assert set(offered(alike, {"old": 1, "new": 1})) == {(("new", 1),), (("old", 1),)}
    of_a_class = shape({"mine": 2.0, "new": 1.0, "old": 2.0}, 6, mixes=False, classes={"mine": "old"})
    found = offered(of_a_class, {"mine": 2, "new": 1, "old": 1})
    assert found[("mine", 2), ("old", 1)] == 4.0
    assert not any("new" in dict(given) and len(given) > 1 for given in found)


def test_against_all_sets_the_fastest_is_offered_and_of_each_size_one_that_is_nearly_as_fast() -> None:
    """All paces of a grid, 1 to 4 ESTs, up to 4 devices of each of two kinds."""
    worst, cases = 1.0, 0
    for ests, ratio, exchange, mixes in product(range(1, 5), (1.0, 1.2, 1.5, 2.0, 3.0, 5.0), (0.0, 0.1), (True, False)):
        of = shape({"old": ratio, "new": 1.0}, ests, exchange=exchange, mixes=mixes)
        for old, new in product(range(5), range(5)):
            found, sets = offered(of, {"old": old, "new": new}), every(of, {"old": old, "new": new})
            if not sets:
                assert found == {}
                continue
            cases += 1
            assert min(found.values()) == min(sets.values())
            for size in {total(one) for one in sets}:
                best = min(seconds for one, seconds in sets.items() if total(one) <= size)
                worst = max(worst, min(seconds for one, seconds in found.items() if total(one) <= size) / best)
    assert cases > 2000
    assert worst <= FACTOR, worst
