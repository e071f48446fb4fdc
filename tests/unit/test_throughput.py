"""What is learned of the speed of workers, and how ranges follow it: outliers, stragglers, noise, successors."""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import Any

import msgspec
import pytest
from easyscale.coordinator import keys, records, throughput
from easyscale.coordinator.membership import FOLLOW_AGAIN_SECONDS
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.throughput import estimate
from hypothesis import given
from hypothesis import strategies as st
from paces import Course, generations
from pictures import SPEC, worker_record

SECONDS = st.floats(1e-3, 1e3)


def pair(fast: float = 1.0, slow: float = 1.0, **fields: Any) -> Course:
    """Two workers of one kind that have joined."""
    course = Course(**{"steps": 10**9, **fields})
    course.add("a", fast)
    course.add("b", slow)
    course.run(1)
    return course


# ---- estimates


@given(st.lists(SECONDS, min_size=5, max_size=40), st.lists(st.sampled_from([1e-9, 1e9]), max_size=1))
def test_an_outlier_hardly_moves_an_estimate(seconds: list[float], outliers: list[float]) -> None:
    found = estimate(log(each) for each in seconds + outliers).value
    ordered = sorted(seconds)
    assert ordered[0] * 0.999 <= found <= ordered[-1] * 1.001


def test_of_few_samples_less_is_known_than_of_many() -> None:
    errors = [estimate([0.0, 0.1, -0.1, 0.2, -0.2] * times).error for times in (1, 2, 8)]
    assert errors == sorted(errors, reverse=True)
    assert estimate([0.0] * 4).error == 0.0


# ---- following


def test_ranges_follow_a_worker_that_is_slower_than_its_kind() -> None:
    course = pair(slow=2.5)
    assert course.ranges == "a2 b2"
    course.run(20)
    assert course.ranges == "a3 b1"
    assert generations(course.lines)[1:] == ["generation 2 is a[0:3] b[3:4] (a is 2.5x as fast as b: ranges follow)"]
    assert course.rates is not None
    assert course.rates.kinds == {"cpu": records.Rate(1.0, 0.01)}
    assert course.rates.factors == {"b": 2.5}
    assert generations(course.run(600)) == []


def test_ranges_follow_kinds_of_devices_without_anybody_being_a_straggler() -> None:
    course = Course(ests=12)
    course.add("a", 1.0, "slow")
    course.add("b", 0.2, "fast")
    course.run(20)
    assert course.ranges == "a2 b10"
    assert course.rates is not None
    assert course.rates.factors == {}


def test_who_measures_changes_of_membership_can_rule_out_that_ranges_follow() -> None:
    course = pair(slow=2.5)
    course.planner = Planner(speeds=False)
    course.run(60)
    assert (course.ranges, course.rates) == ("a2 b2", None)


def test_equal_workers_keep_even_ranges() -> None:
    course = pair()
    assert generations(course.run(600)) == []
    assert course.ranges == "a2 b2"


def test_what_would_gain_little_is_not_worth_a_generation() -> None:
    course = Course(ests=20)
    course.add("a", 1.0, "one")
    course.add("b", 1.15, "other")  # 11 and 9 would take 11.0 seconds instead of 11.5
    course.run(120)
    assert course.ranges == "a10 b10"


@pytest.mark.parametrize(("kinds", "slow", "most"), [("AA", 1.0, 1), ("AA", 2.0, 3), ("AB", 2.0, 3)])
def test_noise_does_not_make_ranges_flap(kinds: str, slow: float, most: int) -> None:
    """Three hours in which each step takes a random time with a coefficient of variation of one half."""
    course = Course(noise=0.5, seed=3, ests=64, steps=10**9)
    course.add("a", 1.0, kinds[0])
    course.add("b", slow, kinds[1])
    course.every = 4.0
    course.run(3 * 3600)
    assert len(generations(course.lines)) <= most, course.lines
    assert len(course.lines) < 30, "nor are its records written all the time"


def test_a_straggler_is_noticed_and_forgiven() -> None:
    course = pair()
    course.run(60)
    course.paces["b"] = 3.0
    course.run(40)
    assert course.ranges == "a3 b1"
    assert course.rates is not None
    assert course.rates.factors == {"b": 3.0}
    course.paces["b"] = 1.0
    course.run(60)
    assert course.rates.factors == {}
    assert course.ranges == "a2 b2"
    assert len(generations(course.lines)) == 3


def test_a_single_slow_step_makes_nobody_a_straggler() -> None:
    course = pair()
    course.run(30)
    for _ in range(10):
        course.paces["b"] = 50.0
        course.run(1)
        course.paces["b"] = 1.0
        course.run(9)
    assert course.rates is not None
    assert course.rates.factors == {}
    assert len(generations(course.lines)) == 1


def test_the_slower_of_the_first_two_does_not_stand_for_its_kind() -> None:
    course = Course()
    course.add("b", 2.5)
    course.run(10)
    assert course.rates is not None
    assert course.rates.kinds["cpu"].est == 2.5
    course.add("a", 1.0)
    course.run(40)
    assert course.rates.kinds["cpu"].est == 1.0
    assert course.rates.factors == {"b": 2.5}
    assert course.ranges == "b1 a3"


def test_two_generations_for_the_sake_of_speed_are_some_time_apart() -> None:
    course = pair(ests=16)
    times = []
    for slow in (3.0, 1.0) * 6:
        course.paces["b"] = slow
        times += [float(line.split()[0]) for line in course.run(25) if "generation" in line]
    assert len(times) > 2
    assert min(after - before for before, after in pairwise(times)) >= FOLLOW_AGAIN_SECONDS


# ---- who is worth it


def test_a_newcomer_of_an_unknown_kind_joins_to_be_measured() -> None:
    course = pair()
    course.run(20)
    course.add("g", 0.1, "gpu")
    assert generations(course.run(1)) == ["generation 2 is a[0:2] b[2:3] g[3:4] (g joins)"]
    course.run(20)
    assert course.ranges == "g4", "a step takes 0.4 seconds, and would take a whole one if anybody else had an EST"
    assert "a leaves; b leaves; g is 10.0x as fast as a: ranges follow" in generations(course.lines)[-1]
    status = course.look().status
    assert status is not None
    assert status.value.reason == "a step would not be faster with a, b"


def test_a_newcomer_that_makes_no_step_faster_waits_until_it_is_needed() -> None:
    course = pair()
    course.run(20)
    course.add("c", 1.0)
    assert generations(course.run(30)) == [], "of four ESTs, one of three workers has two"
    status = course.look().status
    assert status is not None
    assert status.value.reason == "a step would not be faster with c"
    course.lose("b")
    assert generations(course.run(1)) == ["generation 2 is a[0:2] c[2:4] (b died)"]
    assert course.look().status.value.reason == ""  # type: ignore[union-attr]


def test_a_newcomer_that_helps_joins_at_once() -> None:
    course = pair()
    course.run(20)
    course.add("c", 1.0)
    course.add("d", 1.0)
    assert generations(course.run(1)) == ["generation 2 is a[0:1] b[1:2] c[2:3] d[3:4] (c joins; d joins)"]


def test_an_exchange_that_costs_more_than_it_wins_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "EXPLORE_SECONDS", 900.0)
    course = Course(steps=10**9)
    course.exchange = {2: 5.0}
    course.add("a", 1.0)
    course.run(10)
    course.add("b", 1.0)
    course.run(20)
    assert course.ranges == "a4"
    assert generations(course.lines)[1:] == [
        "generation 2 is a[0:2] b[2:4] (b joins)",
        "generation 3 is a[0:4] (b leaves; a step is faster so)",
    ]
    assert generations(course.run(800)) == []
    assert len(generations(course.run(900))) == 2, "a network can get better: now and then it is tried again"


def test_nobody_leaves_whom_the_job_needs() -> None:
    course = Course(min_workers=2)
    course.exchange = {2: 5.0}
    course.add("a", 1.0)
    course.add("b", 50.0)
    course.run(60)
    assert course.ranges == "a3 b1"


def test_a_straggler_that_only_holds_up_the_others_is_left_out() -> None:
    course = pair(slow=50.0)
    course.run(60)
    assert course.ranges == "a4"


def test_a_straggler_that_is_left_out_is_tried_again_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "EXPLORE_SECONDS", 600.0)
    course = pair(slow=50.0)
    course.run(60)
    assert generations(course.run(480)) == []
    course.paces["b"] = 1.0
    course.run(200)
    assert course.ranges == "a2 b2"
    course.paces["b"] = 50.0
    course.run(60)
    assert course.ranges == "a4"


def test_who_holds_the_newest_state_alone_is_not_left_out() -> None:
    course = pair()
    course.run(20)
    course.lose("a", "b")
    course.run(1)
    course.add("c", 1.0)
    course.add("d", 90.0)
    record = course.view().workers["d"].value
    newest = records.Progress(step=course.step + 5, generation=1)
    course.put(keys.worker("d"), msgspec.structs.replace(record, progress=newest))
    assert "d[" in generations([f"0 {line}" for line in course.decide(0.1)])[0]


# ---- what a job takes of memory


def test_ranges_follow_speed_as_far_as_memory_allows() -> None:
    course = Course(ests=12)
    course.takes = 500, 50
    course.add("a", 1.0, "slow", memory=2000)
    course.run(20)
    assert course.rates is not None
    assert course.rates.kinds == {"slow": records.Rate(1.0, 0.01, memory=500, est_bytes=50)}
    course.add("b", 0.1, "fast", memory=1000)
    course.run(1)
    assert course.ranges == "a6 b6", "nothing is known of it but that it is there"
    course.run(60)
    assert course.ranges == "a4 b8", "by speed it would have all"
    assert generations(course.run(600)) == []


def test_what_a_process_takes_more_or_less_moves_nothing_but_what_is_clearly_wrong_does() -> None:
    course = pair(ests=8)
    course.takes = 1000, 100
    course.run(20)
    assert course.rates is not None
    first = course.rates.kinds
    assert first["cpu"].memory == 1000
    for fixed, est in ((1100, 100), (950, 95), (1000, 110), (1050, 112)) * 5:
        course.takes = fixed, est
        course.run(5)
        assert course.rates.kinds == first
    course.takes = 1500, 100
    course.run(10)
    assert (course.rates.kinds["cpu"].memory, course.rates.kinds["cpu"].est) == (1500, first["cpu"].est)
    course.takes = 1500, 200
    course.run(10)
    assert course.rates.kinds["cpu"].est_bytes == 200


def test_a_newcomer_without_memory_for_an_est_does_not_join_and_is_named() -> None:
    course = Course()
    course.takes = 1 << 20, 1 << 10
    course.add("a", 1.0, memory=1 << 30)
    course.run(20)
    course.add("b", 1.0, memory=1 << 20)
    assert generations(course.run(20)) == []
    status = course.look().status
    assert status is not None
    assert status.value.reason == "no memory for an EST has b (1 MiB)"


def test_who_runs_goes_on_whatever_memory_it_is_thought_to_have() -> None:
    course = Course()
    course.takes = 1000, 100
    course.add("a", 1.0, memory=10)
    assert generations(course.run(60)) == ["generation 1 is a[0:4] (a joins)"]


def test_a_job_whose_members_have_no_room_for_all_waits_for_more_and_says_so() -> None:
    course = pair(ests=8)
    course.takes = 900, 200
    for worker in "ab":
        course.put(keys.worker(worker), msgspec.structs.replace(course.view().workers[worker].value, memory=2000))
    course.run(20)
    course.lose("b")
    assert generations(course.run(1)) == ["generation 2 is nobody (b died)"]
    assert generations(course.run(30)) == []
    status = course.look().status
    assert status is not None
    assert (status.value.state, status.value.waits_for) == ("waiting", "more")
    assert status.value.reason == "not enough memory for its 8 ESTs: a has room for 4 in 1.95 KiB"
    course.add("c", 1.0, memory=2000)
    course.run(1)
    assert course.ranges == "a4 c4"


@pytest.mark.parametrize("told", [(0, 1, 5), (-1, 1, 5), (1 << 60, 1, 5), (100, 0, 5), (100, 1, -5), (100, 1, 1 << 60)])
def test_memory_that_cannot_be_taken_is_ignored(told: tuple[int, int, int]) -> None:
    peak, ests, est = told
    course = pair()
    course._footprint = lambda _: records.Footprint(peak=peak, ests=ests, est=est)  # type: ignore[method-assign]
    course.run(20)
    assert course.rates is not None
    assert course.rates.kinds["cpu"].memory == 0


# ---- memory


def test_a_successor_knows_what_its_predecessor_has_learned() -> None:
    course = pair(slow=2.5)
    course.run(20)
    course.planner = Planner()
    assert generations(course.run(300)) == []
    assert course.ranges == "a3 b1"


def test_a_successor_follows_where_its_predecessor_could_not() -> None:
    course = pair(slow=2.5)
    while course.rates is None or not course.rates.factors:
        course.run(1)
    course.planner = Planner()
    course.run(5)
    assert course.ranges == "a3 b1"


def test_what_was_learned_of_another_specification_does_not_count() -> None:
    course = pair(slow=2.5)
    course.run(20)
    course.put(keys.spec("job"), msgspec.structs.replace(course.look().record, spec="6" * 64))
    assert throughput.known(course.look()) is None
    course.run(1)
    assert course.rates is not None
    assert course.rates.spec == SPEC, "what was measured before does not count for it"
    course.paces = {"a": 2.0, "b": 2.0}
    course.run(60)
    assert course.rates is not None
    assert course.rates.spec == "6" * 64
    assert course.ranges == "a2 b2"


@pytest.mark.parametrize(
    "said",
    [
        {"compute_seconds": 0.0},
        {"compute_seconds": -1.0},
        {"compute_seconds": float("nan")},
        {"compute_seconds": None},
        {"compute_seconds": 1e300, "step_seconds": 1e300},
        {"exchange_seconds": -5.0},
        {"exchange_seconds": float("inf")},
        {"step_seconds": 0.5},
        {"generation": 7},
        {"step": 1},
    ],
    ids=str,
)
def test_what_cannot_be_true_is_ignored(said: dict[str, Any]) -> None:
    course = pair()
    for step in range(2, 20):
        fields: dict[str, Any] = {
            "step": step, "generation": 1, "lane": "store",
            "compute_seconds": 9.0, "exchange_seconds": 0.0, "step_seconds": 9.5,
        }  # fmt: skip
        for worker in "ab":
            course.say(worker, records.Progress(**{**fields, **said}))
        course.decide(1.0)
    assert course.rates is None


def test_the_record_stays_small_however_many_kinds_and_stragglers_there_are() -> None:
    alive = {f"w{n}": worker_record(f"w{n}", kind=f"kind {n}" + "x" * 500) for n in range(1000)}
    rates = records.Rates(
        spec="f" * 64,
        kinds={throughput.kind_of(record): records.Rate(1.234e-5, 1.234e-5) for record in alive.values()},
        exchange={throughput.exchange_key("store", n): 1.234e-5 for n in range(2, 1000)},
        factors={f"{'n' * 60}-{n:06x}": 1.5 + n for n in range(1000)},
    )
    found = throughput._bounded(rates, alive)
    assert len(records.encode(found)) < 25_000
    assert f"{'n' * 60}-{999:06x}" in found.factors, "the slowest matter most"
    assert throughput._bounded(found, alive) == found


def test_nothing_is_remembered_of_jobs_that_are_over() -> None:
    course = pair()
    course.run(10)
    learner = course.planner._throughput
    assert learner._samples
    course.status(state="done")
    course.run(1)
    assert not learner._samples
