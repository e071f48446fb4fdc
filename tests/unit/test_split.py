"""ESTs over unequal devices: as good as the best of all splits, whatever the paces, counts and limits."""

from __future__ import annotations

from itertools import product

from easyscale.coordinator.split import Pace, Split, shares, split
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.5]) | st.floats(0.01, 3.0)
PACES = st.builds(
    Pace,
    est=SECONDS,
    fixed=st.sampled_from([0.0, 0.2, 1.0, 5.0]) | st.floats(0.0, 3.0),
    most=st.sampled_from([1, 2, 3, 100]),
)
DEVICES = st.lists(PACES, min_size=1, max_size=3).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds), min_size=1, max_size=4)
)


def best(ests: int, paces: list[Pace]) -> float | None:
    """The time of the best of all splits."""
    splits = product(*(range(min(ests, pace.most) + 1) for pace in paces))
    times = [slowest(each, paces) for each in splits if sum(each) == ests]
    return min(times) if times else None


def slowest(each: tuple[int, ...] | list[int], paces: list[Pace]) -> float:
    return max(pace.seconds(n) for pace, n in zip(paces, each, strict=True))


@given(ests=st.integers(1, 7), paces=DEVICES)
def test_no_split_is_better(ests: int, paces: list[Pace]) -> None:
    found = shares(ests, paces)
    expected = best(ests, paces)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert sum(found) == ests
    assert all(n <= pace.most for n, pace in zip(found, paces, strict=True))
    assert slowest(found, paces) == expected


@given(ests=st.integers(1, 2000), groups=st.lists(st.tuples(PACES, st.integers(0, 40)), min_size=1, max_size=6))
def test_groups_are_as_good_as_their_devices_one_by_one(ests: int, groups: list[tuple[Pace, int]]) -> None:
    paces = [pace for pace, count in groups for _ in range(count)]
    found, one_by_one = split(ests, groups), shares(ests, paces)
    assert (found is None) == (one_by_one is None)
    if found is None or one_by_one is None:
        return
    assert found.seconds == slowest(one_by_one, paces)
    counted = sum(each * count for each, (_, count) in zip(found.each, groups, strict=True))
    assert counted + found.extra == ests
    assert 0 < found.extra <= groups[found.group][1]


@given(ests=st.integers(1, 50), paces=DEVICES)
def test_what_is_as_good_as_can_be_is_left_as_it_is(ests: int, paces: list[Pace]) -> None:
    first = shares(ests, paces)
    if first is not None:
        assert shares(ests, paces, before=first) == first
        assert shares(ests, paces[::-1], before=first[::-1]) == first[::-1]


def test_of_kinds_that_are_equally_good_nobody_is_given_something_else() -> None:
    small, large = Pace(1.5, fixed=5.0, most=3), Pace(1.0, fixed=5.0)
    assert shares(5, [small, small, large]) == [2, 1, 2]
    assert shares(5, [large, small, small], before=[3, 1, 1]) == [3, 1, 1], "8 seconds either way"


def test_examples() -> None:
    v100, k80 = Pace(1.0), Pace(4.0)
    assert shares(5, [v100, k80]) == [4, 1]
    assert shares(4, [v100, k80]) == [4, 0], "the slow one would only hold it up"
    assert shares(5, [v100, v100, v100], before=[1, 2, 2]) == [1, 2, 2]
    assert shares(3, [Pace(1.0, most=1), k80]) == [1, 2], "memory decides"
    assert shares(3, [Pace(1.0, most=1), Pace(1.0, most=1)]) is None
    assert shares(1, []) is None
    assert split(7, [(v100, 2), (Pace(2.0), 1)]) == Split(3.0, (2, 1), 0, 2)
