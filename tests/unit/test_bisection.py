"""Bisecting finds the place with no more looks than it may take."""

from __future__ import annotations

from easyscale.pipeline.bisection import first, first_unlike
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 5000), st.data())
def test_the_first_place_is_found_with_at_most_log2_looks(count: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, count))
    looks: list[int] = []

    def differs(i: int) -> bool:
        looks.append(i)
        return i >= place

    assert first(count, differs) == place
    assert len(looks) <= count.bit_length()
    assert all(0 <= look < count for look in looks)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_two_sequences_part_where_a_walk_says_so(here: list[int], there: list[int]) -> None:
    walked = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    if walked is None and len(here) != len(there):
        walked = min(len(here), len(there))
    assert first_unlike(here, there) == walked


def test_elements_that_are_alike_again_later_do_not_mislead() -> None:
    same = list(range(100))
    other = same.copy()
    other[7] = -5
    assert first_unlike(same, other) == 7
