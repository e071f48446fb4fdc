"""A computation hangs when it takes longer than those before it have taught us to expect."""

from __future__ import annotations

import pytest
from easyscale.pipeline.hang import FACTOR, FIRST_SECONDS, FLOOR_SECONDS, HangWatch


def learn(watch: HangWatch, *seconds: float) -> HangWatch:
    for duration in seconds:
        watch.begin(0.0)
        watch.end(duration)
    return watch


def test_before_anything_is_learned_the_deadline_is_long() -> None:
    watch = HangWatch()
    watch.begin(100.0)
    assert watch.hanging(100.0 + FIRST_SECONDS) is None
    assert watch.hanging(101.0 + FIRST_SECONDS) == FIRST_SECONDS + 1.0


def test_quick_computations_never_lower_the_deadline_below_the_floor() -> None:
    watch = learn(HangWatch(), 0.01, 0.01, 0.01)
    assert watch.deadline == FLOOR_SECONDS


def test_the_slowest_of_the_last_computations_sets_the_deadline() -> None:
    watch = learn(HangWatch(), 1.0, 60.0, 2.0)
    assert watch.deadline == FACTOR * 60.0
    learn(watch, *[1.0] * 64)
    assert watch.deadline == FLOOR_SECONDS, "what is long ago is forgotten"


def test_two_computations_are_too_few_to_learn_from() -> None:
    assert learn(HangWatch(), 0.1, 0.1).deadline == FIRST_SECONDS


@pytest.mark.parametrize("floor", [0.5, 5.0])
def test_a_lower_floor_lowers_the_first_deadline_too(floor: float) -> None:
    assert HangWatch(floor=floor).deadline == 10 * floor


def test_what_has_ended_or_waits_does_not_hang() -> None:
    watch = HangWatch(floor=1.0)
    assert watch.hanging(1e9) is None
    watch.begin(0.0)
    watch.end(1.0)
    assert watch.hanging(1e9) is None
    watch.end(5.0)
    assert len(watch._learned) == 1, "an end without a beginning teaches nothing"
