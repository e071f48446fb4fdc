"""Why members have the ranges they have, for people; and a device that is made slower."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from easyscale.coordinator import keys, records
from easyscale.pipeline.slowdown import slowed
from easyscale.pipeline.speeds import lines, rows
from easyscale.pipeline.summary import summarize
from pictures import SPEC, Board, worker_record

if TYPE_CHECKING:
    import pytest


def board(*ranges: tuple[str, int, int], **rates: Any) -> Board:
    it = Board()
    it.job()
    members = tuple(records.Member(*each) for each in ranges)
    it.put(keys.plan("job"), records.Plan(generation=1, lane="peer", members=members))
    if rates:
        it.put(keys.rates("job"), records.Rates(spec=SPEC, **rates))
    for worker, _, _ in ranges:
        it.put(keys.worker(worker), worker_record(worker, state="running", job="job"))
    return it


def why(it: Board) -> list[str]:
    workers = {worker: entry.value for worker, entry in it.view().workers.items()}
    return [f"{name}: {value}" for name, value in lines(it.look(), workers)]


def test_ranges_are_even_while_nothing_is_known() -> None:
    assert why(board(("a", 0, 2), ("b", 2, 4))) == ["ranges: a 0..1, b 2..3: even, as long as speeds are not known"]


def test_ranges_by_speed_say_what_they_win() -> None:
    it = board(
        ("a", 0, 3), ("b", 3, 4), kinds={"cpu": records.Rate(0.1, 0.01)}, exchange={"peer 2": 0.002}, factors={"b": 2.5}
    )
    assert why(it) == [
        "rate: cpu: 10 ESTs/s, and 10 ms a step besides",
        "rate: exchange of 2 (peer): 2 ms",
        "rate: b is 2.5x as slow as its kind",
        "ranges: a 0..2, b 3..3: by speed; a step should take 312 ms, with even ones 512 ms",
    ]
    found = summarize(it.look())
    assert found.ranges == [("a", 0, 3), ("b", 3, 4)]
    assert found.stragglers == {"b": 2.5}


def test_equal_workers_have_even_ranges() -> None:
    found = why(board(("a", 0, 2), ("b", 2, 4), kinds={"cpu": records.Rate(1.0)}))
    assert found[-1].endswith("even, since these are about as fast; a step should take 2 s")


def test_who_waits_and_who_leaves_is_told() -> None:
    it = board(("a", 0, 4))
    it.worker("b", "ready", "job")
    it.worker("c", "running", "job", leaving=True, trouble="no room")
    found = {row.name: (row.state, row.remark) for row in rows(it.view())}
    assert found == {"a": ("running", ""), "b": ("ready", "waits to be needed"), "c": ("leaving", "no room")}


def test_a_slowed_device_takes_as_many_times_as_long_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    class Engine:
        def compute(self, ests: range, watch: int | None = None) -> tuple[range, int | None]:
            now[0] += 0.5 * len(ests)
            return ests, watch

    assert slowed(Engine(), 3.0).compute(range(4), 2) == (range(4), 2)  # type: ignore[arg-type]
    assert now[0] == 6.0
    plain: Any = Engine()
    assert slowed(plain, 1.0) is plain
