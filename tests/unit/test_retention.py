from __future__ import annotations

import pytest
from easyscale.errors import UserError
from easyscale.storage.retention import Best, Policy, kept, parse_best, require_metrics
from hypothesis import given
from hypothesis import strategies as st


def commits(*steps: int) -> dict[int, dict[str, float]]:
    return {step: {} for step in steps}


def test_without_a_rule_every_commit_is_kept() -> None:
    assert kept(commits(1, 2, 3, 4), Policy()) == {1, 2, 3, 4}


def test_the_newest_commits_are_kept_and_never_fewer_than_two() -> None:
    assert kept(commits(9_000, 10_000, 200, 11_000), Policy(last=3)) == {9_000, 10_000, 11_000}
    assert kept(commits(10, 20, 30), Policy(last=1)) == {20, 30}, "a damaged head needs its parent"
    assert kept(commits(10, 20, 30), Policy(last=0)) == {20, 30}


def test_of_each_stretch_of_steps_the_first_commit_is_kept() -> None:
    assert kept(commits(*range(5, 100, 5)), Policy(every=30)) == {5, 30, 60, 90, 95}
    assert kept(commits(7, 31, 59, 61, 200, 210), Policy(every=30)) == {7, 31, 61, 200, 210}


def test_the_best_commit_is_kept_and_of_equals_the_earliest_and_nan_is_never_best() -> None:
    nan = float("nan")
    values = {10: {"a": nan}, 20: {"a": 0.5}, 30: {"a": 0.9}, 40: {"a": 0.9}, 50: {}, 60: {"a": 0.1}, 70: {"a": 0.4}}
    assert kept(values, Policy(best=(Best("a"),))) == {30, 60, 70}
    assert kept(values, Policy(best=(Best("a", "min"),))) == {60, 70}
    assert kept({10: {"a": nan}, 20: {}, 30: {}}, Policy(best=(Best("a"),))) == {20, 30}
    infinite = {10: {"a": float("inf")}, 20: {"a": 1.0}, 30: {"a": 1.0}, 40: {}, 50: {}}
    assert 10 in kept(infinite, Policy(best=(Best("a"),)))


def test_what_is_always_kept_is_kept_if_it_is_there() -> None:
    assert kept(commits(1, 2, 3, 4), Policy(last=2), always=[1, 77]) == {1, 3, 4}


def test_a_rule_for_the_best_is_read_from_text() -> None:
    assert parse_best("accuracy") == Best("accuracy", "max")
    assert parse_best("val:loss:min") == Best("val:loss", "min")
    for wrong in ("loss:least", ":min", "loss:"):
        with pytest.raises(UserError, match="METRIC:max or METRIC:min"):
            parse_best(wrong)


def test_a_metric_that_no_commit_has_is_refused_with_those_that_there_are() -> None:
    require_metrics(Policy(best=(Best("loss", "min"),)), {"loss"})
    with pytest.raises(UserError, match=r"--keep-best los: .*\n.*accuracy, loss"):
        require_metrics(Policy(best=(Best("los"),)), {"loss", "accuracy"})


@given(
    steps=st.sets(st.integers(0, 400), min_size=1),
    last=st.none() | st.integers(0, 5),
    every=st.none() | st.integers(1, 60),
    later=st.sets(st.integers(401, 600)),
)
def test_what_a_rule_keeps_is_kept_again_when_the_rest_is_gone_and_the_job_has_gone_on(
    steps: set[int], last: int | None, every: int | None, later: set[int]
) -> None:
    policy = Policy(last=last, every=every)
    once = kept(commits(*steps), policy)
    assert kept(commits(*once), policy) == once
    assert set(sorted(steps)[-2:]) <= once
    if every is not None:
        stretches = {step // every for step in steps}
        again = kept(commits(*once, *later), Policy(every=every))
        assert {step // every for step in again} >= stretches, "no stretch loses its commit as the job goes on"
