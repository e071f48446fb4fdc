"""How many ESTs a device's memory has room for."""

from __future__ import annotations

import pytest
from easyscale.coordinator import records
from easyscale.coordinator.room import HEADROOM, lacking, room, shown
from easyscale.coordinator.split import UNLIMITED, Pace
from hypothesis import given
from hypothesis import strategies as st
from pictures import worker_record

SIZES = st.integers(1, 1 << 40)


def takes(memory: int, est: int) -> records.Rate:
    return records.Rate(1.0, 0.0, memory=memory, est_bytes=est)


@pytest.mark.parametrize(
    ("rate", "memory", "ests"),
    [
        (takes(500, 100), 1000, 4),  # 900 of them: 500 and four times 100
        (takes(500, 100), 600, 1),  # the first needs no headroom
        (takes(500, 100), 599, 0),
        (takes(500, 0), 500, UNLIMITED),
        (takes(500, 0), 499, 0),
        (takes(0, 100), 1, UNLIMITED),  # nothing is known
        (records.Rate(1.0), 0, UNLIMITED),
    ],
)
def test_of_a_device_ests_take_what_is_left_but_for_some_headroom(rate: records.Rate, memory: int, ests: int) -> None:
    assert room(rate, memory) == ests


@given(SIZES, SIZES, SIZES, SIZES)
def test_what_is_given_out_fits_and_one_more_would_not(fixed: int, est: int, memory: int, more: int) -> None:
    rate = takes(fixed, est)
    found = room(rate, memory)
    assert fixed + found * est <= memory or found == 0
    if found > 1:
        assert fixed + found * est <= memory * (1 - HEADROOM) + 1
    if found < UNLIMITED:
        assert fixed + (found + 1) * est > memory * (1 - HEADROOM) - 1
    assert found <= room(rate, memory + more), "more memory is no less room"


def test_who_has_run_so_many_has_room_for_them_unless_it_ran_out_since() -> None:
    assert room(takes(500, 100), 10, ran=7) == 7
    assert room(takes(500, 100), 2000, ran=7) == 13
    assert room(takes(500, 100), 2000, ran=7, most=3) == 3
    assert room(records.Rate(1.0), 2000, most=3) == 3


def test_workers_without_enough_room_together_are_named() -> None:
    alive = {name: worker_record(name, memory=3 << 29) for name in "ab"}
    assert lacking(4, {"a": Pace(1.0, most=3), "b": Pace(1.0, most=1)}, alive) == ""
    assert lacking(4, {}, {}) == "", "nothing is known"
    found = lacking(4, {"b": Pace(1.0, most=0), "a": Pace(1.0, most=3)}, alive)
    assert found == "not enough memory for its 4 ESTs: a has room for 3 in 1.5 GiB, b has room for none in 1.5 GiB"
    crowd = {f"w{n}": worker_record(f"w{n}") for n in range(1000)}
    many = lacking(4, {name: Pace(1.0, most=0) for name in crowd}, crowd)
    assert many.endswith("and 980 more workers")


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 bytes"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (150_000_000_000, "140 GiB")]
)
def test_sizes_are_shown_in_the_largest_unit_that_they_have(size: int, text: str) -> None:
    assert shown(size) == text
