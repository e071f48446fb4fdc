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
        "gain: with one more cpu, a step should take 262 ms instead of 312 ms",
    ]
    found = summarize(it.look())
    assert found.ranges == [("a", 0, 3), ("b", 3, 4)]
    assert found.stragglers == {"b": 2.5}


def test_ranges_by_probes_say_so_until_steps_are_measured() -> None:
    it = board(("a", 0, 3), ("b", 3, 4))
    for worker, seconds in (("a", 0.1), ("b", 0.4)):
        it.put(keys.worker(worker), worker_record(worker, state="running", job="job", probes={SPEC: seconds}))
    assert why(it) == [
        "rate: cpu: 10 ESTs/s, by a probe",
        "rate: b is 4.0x as slow as its kind",
        "ranges: a 0..2, b 3..3: by speed, as probes say; a step should take 400 ms, with even ones 800 ms",
    ]
    assert {row.ests_per_second for row in rows(it.view())} == {0.0}, "that is what was measured"
    it.put(keys.rates("job"), records.Rates(spec=SPEC, kinds={"cpu": records.Rate(0.2)}, factors={"b": 3.0}))
    assert why(it)[-2] == "ranges: a 0..2, b 3..3: by speed; a step should take 600 ms, with even ones 1.2 s"


def test_who_has_room_for_fewer_ests_than_the_job_has_is_told() -> None:
    kinds = {"cpu": records.Rate(0.1, 0.01, memory=100 << 20, est_bytes=50 << 20)}
    it = board(("a", 0, 1), ("b", 1, 4), kinds=kinds)
    for worker, memory in (("a", 200 << 20), ("b", 1 << 30)):
        it.put(keys.worker(worker), worker_record(worker, state="running", job="job", memory=memory))
    assert why(it) == [
        "rate: cpu: 10 ESTs/s, and 10 ms a step besides",
        "room: a has room for 1 EST in 200 MiB",
        "ranges: a 0..0, b 1..3: by speed, as far as memory allows; a step should take 310 ms",
        "gain: with one more cpu, a step should take 210 ms instead of 310 ms",
    ]
    assert {row.name: row.remark for row in rows(it.view())} == {"a": "room for 1 EST", "b": ""}


def test_members_whose_memory_is_said_to_be_too_small_are_shown_as_they_are() -> None:
    it = board(("a", 0, 2), ("b", 2, 4), kinds={"cpu": records.Rate(0.1, memory=100, est_bytes=50)})
    assert why(it)[-2:] == [
        "ranges: a 0..1, b 2..3: even, since these are about as fast; a step should take 200 ms",
        "gain: one more cpu has no memory for an EST",
    ]


def test_equal_workers_have_even_ranges() -> None:
    found = why(board(("a", 0, 2), ("b", 2, 4), kinds={"cpu": records.Rate(1.0), "slow": records.Rate(9.0)}))
    assert found[-3].endswith("even, since these are about as fast; a step should take 2 s")
    assert found[-2:] == [f"gain: with one more {kind}, a step would not be faster" for kind in ("cpu", "slow")]


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

        def pass_seconds(self) -> float:
            return 0.5

    assert slowed(Engine(), 3.0).compute(range(4), 2) == (range(4), 2)  # type: ignore[arg-type]
    assert now[0] == 6.0
    assert slowed(Engine(), 3.0).pass_seconds() == 1.5  # type: ignore[arg-type]
    plain: Any = Engine()
    assert slowed(plain, 1.0) is plain
