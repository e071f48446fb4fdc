"""What probes say before there are steps: of whom, how far it goes, and that it gives way to what is measured."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from easyscale.coordinator import keys, probes, records
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.probes import LEAST_SECONDS, LOUD, MOST_TIMES, by_kind, fill
from easyscale.coordinator.throughput import MOST_SECONDS
from hypothesis import given
from hypothesis import strategies as st
from paces import Course, generations
from pictures import SPEC, Board, worker_record

OTHER = "6" * 64
INSANE = [None, float("nan"), 0.0, -1.0, float("inf"), LEAST_SECONDS / 2, MOST_SECONDS * 2]
KINDS = st.dictionaries(st.sampled_from("ABCD"), st.floats(LEAST_SECONDS, MOST_SECONDS), min_size=1)


def alive(**told: tuple[str, float | None]) -> dict[str, records.WorkerRecord]:
    """Workers of these kinds, and what their probes took."""
    return {name: worker_record(name, kind=kind, probes={SPEC: seconds}) for name, (kind, seconds) in told.items()}


def begun(*workers: tuple[str, float, str, float | None], **job: Any) -> Course:
    """A job that has just begun with workers of (name, seconds of an EST, kind, what the probe said)."""
    course = Course(**{"ests": 8, "steps": 10**9, "min_workers": len(workers), **job})
    for name, est, kind, told in workers:
        course.add(name, est, kind, probes={SPEC: told})
    course.run(1)
    return course


# ---- pure


def test_a_kind_takes_what_the_median_of_its_probes_took() -> None:
    here = alive(a=("A", 1.0), b=("A", 9.0), c=("A", 2.0), d=("B", 5.0), e=("B", 4.0), f=("C", None))
    assert by_kind(SPEC, list(here), here) == {"A": 2.0, "B": 4.0}
    assert by_kind(OTHER, list(here), here) == {}


@pytest.mark.parametrize("told", INSANE, ids=str)
def test_what_no_est_can_take_is_ignored(told: float | None) -> None:
    here = alive(a=("A", told), b=("B", 1.0), c=("A", 2.0))
    assert by_kind(SPEC, list(here), here) == {"A": 2.0, "B": 1.0}


def test_where_nothing_was_measured_probes_tell_kinds_apart() -> None:
    assert fill({}, {"A": 1.0, "B": 3.0}) == {"A": records.Rate(1.0), "B": records.Rate(3.0)}
    guess = records.Rate(0.5, 0.2, memory=7)
    found = fill({}, {"A": 1.0, "B": 3.0}, guess)
    assert found == {"A": records.Rate(0.5, 0.2), "B": records.Rate(1.5, 0.2)}, "memory is not a probe's business"


def test_what_was_measured_stays_as_it_is_and_scales_the_rest() -> None:
    known = {"A": records.Rate(2.0, 0.5), "B": records.Rate(4.0, 0.1)}
    found = fill(known, {"A": 4.0, "B": 8.0, "C": 10.0}, records.Rate(99.0))
    assert found == {**known, "C": records.Rate(5.0, 0.3)}
    assert fill(known, {}) == known
    assert fill(known, {"C": 3.5})["C"].est == 3.5, "there is nothing to compare probes with"


def test_a_probe_makes_nobody_faster_or_slower_than_can_be() -> None:
    known = {"A": records.Rate(1.0)}
    assert fill(known, {"B": 1e5, "C": 1e-5}) == {
        **known, "B": records.Rate(MOST_TIMES), "C": records.Rate(1 / MOST_TIMES)
    }  # fmt: skip
    assert fill({}, {"A": 1.0, "B": 1.0, "C": 1e-5})["C"].est == 1 / MOST_TIMES


@given(KINDS, KINDS, st.none() | st.floats(1e-6, 1e6).map(records.Rate))
def test_whatever_probes_say_every_kind_has_a_rate_that_can_be_planned_with(
    known: dict[str, float], probed: dict[str, float], guess: records.Rate | None
) -> None:
    measured = {kind: records.Rate(est) for kind, est in known.items() if kind in "AB"}
    found = fill(measured, probed, guess)
    assert found.keys() == measured.keys() | probed.keys()
    assert all(found[kind] == rate for kind, rate in measured.items())
    guessed = [found[kind].est for kind in probed.keys() - measured.keys()]
    assert all(0 < est < float("inf") for est in guessed)
    assert not guessed or max(guessed) <= min(guessed) * MOST_TIMES**2 * 1.0001


def test_workers_of_a_kind_are_alike_unless_a_probe_says_something_else_loudly() -> None:
    it = Board()
    it.job()
    here = alive(a=("A", 1.0), b=("A", LOUD * 0.99), c=("A", LOUD), d=("A", 0.5), e=("A", 1e5), f=("B", 50.0))
    assert probes.factors(it.look(), list("acf"), here) == {"c": LOUD}
    assert probes.factors(it.look(), list("abf"), here) == {}
    assert probes.factors(it.look(), list("aad"), {**here, "x": here["a"]}) == {"a": LOUD}
    assert probes.factors(it.look(), ["a", "e"], here) == {"e": MOST_TIMES}
    it.put(keys.rates("job"), records.Rates(spec=SPEC, kinds={"A": records.Rate(3.0)}))
    assert probes.factors(it.look(), list("abcdef"), here) == {}, "of a kind that was measured, they say nothing"


def test_nothing_is_expected_where_no_two_devices_differ() -> None:
    it = Board()
    assert probes.expected(it.look(), [], {}) is None, "it has no specification"
    it.job()
    same = alive(a=("A", 1.0), b=("A", 1.5), c=("B", None))
    assert probes.expected(it.look(), list("abc"), same) is None
    assert probes.expected(it.look(), list("abc"), {**same, "c": worker_record("c", kind="B")}) is None
    measured = records.Rates(spec=SPEC, kinds={"A": records.Rate(3.0)}, factors={"b": 2.0}, exchange={"peer 2": 0.1})
    it.put(keys.rates("job"), measured)
    assert probes.expected(it.look(), list("abc"), same) == measured
    found = probes.expected(it.look(), list("abc"), {**same, **alive(c=("B", 2.0))})
    assert found == msgspec.structs.replace(measured, kinds={**measured.kinds, "B": records.Rate(6.0)})


def test_the_record_of_a_worker_that_knows_of_no_probes_can_be_read() -> None:
    old = msgspec.json.decode(records.encode(worker_record("a", probes={SPEC: 1.0})))
    del old["probes"]
    assert records.decode(msgspec.json.encode(old), records.WorkerRecord).probes == {}


# ---- first ranges


def test_the_first_ranges_follow_kinds_as_probes_say() -> None:
    course = begun(("a", 1.0, "slow", 0.9), ("b", 1 / 3, "fast", 0.3))
    assert course.ranges == "a2 b6"
    assert course.rates is None
    assert generations(course.run(600)) == [], "what is measured says the same"


def test_the_first_ranges_follow_a_straggler_and_stay_so_once_its_kind_is_measured() -> None:
    course = begun(("a", 1.0, "cpu", 1.1), ("b", 3.2, "cpu", 3.3))
    assert course.ranges == "a6 b2"
    assert generations(course.run(600)) == [], "or else ranges would be even as soon as the kind is measured"
    assert course.rates is not None
    assert (course.rates.kinds["cpu"].est, course.rates.factors) == (1.0, {"b": pytest.approx(3.0)})


def test_equal_devices_have_even_ranges_whatever_a_busy_moment_did_to_their_probes() -> None:
    course = begun(("a", 1.0, "cpu", 0.9), ("b", 1.0, "cpu", 1.7))
    assert course.ranges == "a4 b4"
    assert generations(course.run(600)) == []


def test_a_wrong_probe_is_corrected_by_what_is_measured() -> None:
    course = begun(("a", 1.0, "cpu", 0.9), ("b", 1.0, "cpu", 5.0))
    assert course.ranges == "a7 b1"
    assert generations(course.run(60)) == ["generation 2 is a[0:4] b[4:8] (a step is faster so)"]
    assert course.rates is not None
    assert course.rates.factors == {}


def test_a_kind_of_which_a_wrong_probe_has_told_is_corrected_too() -> None:
    course = begun(("a", 1.0, "A", 1.0), ("b", 1.0, "B", 1e5))
    assert course.ranges == "a7 b1", "it has an EST all the same, so that it is measured"
    course.run(60)
    assert course.ranges == "a4 b4"


@pytest.mark.parametrize("told", INSANE, ids=str)
def test_without_a_probe_that_can_be_ranges_begin_even(told: float | None) -> None:
    course = begun(("a", 1.0, "A", told), ("b", 1.0, "B", 1.0), ("c", 1.0, "B", told), ests=9)
    assert course.ranges == "a3 b3 c3"


def test_no_generation_is_made_for_the_sake_of_a_probe() -> None:
    course = begun(("a", 1.0, "A", None), ("b", 1.0, "B", None))
    course.claims()
    for worker, told in (("a", 1.0), ("b", 5.0)):
        record = course.view().workers[worker].value
        course.put(keys.worker(worker), msgspec.structs.replace(record, probes={SPEC: told}))
    for step in range(60):
        for worker in "ab":  # neither tells how long its steps take
            course.say(worker, records.Progress(step=step, generation=1, lane="store"))
        assert generations(course.decide(1.0)) == []
    assert course.ranges == "a4 b4"


def test_a_newcomer_of_an_unknown_kind_has_ests_by_its_probe() -> None:
    course = begun(("a", 1.0, "A", 2.0))
    course.run(20)
    course.add("b", 1 / 3, "B", probes={SPEC: 2 / 3})
    assert generations(course.run(1)) == ["generation 2 is a[0:2] b[2:8] (b joins)"]
    assert generations(course.run(600)) == []


def test_who_measures_changes_of_membership_can_rule_out_that_ranges_follow_probes() -> None:
    course = Course(ests=8, min_workers=2)
    course.planner = Planner(speeds=False)
    course.add("a", 1.0, "A", probes={SPEC: 1.0})
    course.add("b", 1.0, "B", probes={SPEC: 5.0})
    course.run(20)
    assert course.ranges == "a4 b4"


def test_probes_of_another_specification_say_nothing() -> None:
    course = Course(ests=8, min_workers=2)
    course.add("a", 1.0, "A", probes={OTHER: 1.0})
    course.add("b", 1.0, "B", probes={OTHER: 5.0})
    course.run(1)
    assert course.ranges == "a4 b4"
