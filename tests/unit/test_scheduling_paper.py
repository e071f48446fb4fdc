"""The paper's scheduler does what the paper and its simulator say: greedy growth, round by round, and nobody shrinks.

Filters and values from the study of both: a proposal is at most twice what the job has, of one more kind's devices,
wastes at most 30 %, and is worth ((speed' / speed) - 1) / devices more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.scheduling.jobs import total
from easyscale.coordinator.scheduling.proposals import MOST_WASTE, Proposals
from hypothesis import given, settings
from unit.scheduling_toys import from_seed, job, snapshots, used

if TYPE_CHECKING:
    from collections.abc import Mapping

    from easyscale.coordinator.scheduling.jobs import Devices, Job
    from easyscale.coordinator.scheduling.policy import Plan

ONE = {"gpu": 1.0}


def plan(capacity: Mapping[str, int], *jobs: Job) -> Plan:
    return Proposals().plan(capacity, jobs, 0.0)


def waste(of: Job, given_: Devices) -> float:
    """Share of the devices' speed that is not used, by the paper's (1c) and (1d)."""
    can = sum(count / pace.est for kind, count in given_ if (pace := of.shape.rates.pace(kind)))
    seconds = replace(of.shape, rates=replace(of.shape.rates, exchange=0.0)).step_seconds(given_)
    return 1 - of.shape.ests / seconds / can


def test_a_job_that_has_nothing_gets_its_least_and_may_double_in_the_same_round() -> None:
    assert plan({"gpu": 8}, job("a", ONE, 8)) == {"a": (("gpu", 2),)}
    assert plan({"gpu": 8}, job("a", ONE, 8, least=3)) == {"a": (("gpu", 4),)}, (
        "6 of 8 ESTs at a time would be wasteful"
    )
    assert plan({"gpu": 8}, job("a", ONE, 8, given=(("gpu", 2),))) == {"a": (("gpu", 4),)}
    assert plan({"gpu": 8}, job("a", ONE, 8, given=(("gpu", 4),))) == {"a": (("gpu", 8),)}


def test_first_proposals_go_by_arrival_and_before_all_growth() -> None:
    big, late = job("big", ONE, 8, given=(("gpu", 4),)), job("late", ONE, 1, arrived=2.0)
    early = job("early", ONE, 1, arrived=1.0)
    assert plan({"gpu": 5}, big, late, early) == {"big": (("gpu", 4),), "early": (("gpu", 1),)}
    urgent = replace(late, priority=1)
    assert plan({"gpu": 5}, big, urgent, early) == {"big": (("gpu", 4),), "late": (("gpu", 1),)}


def test_the_first_proposal_is_of_the_kind_that_is_fastest_for_the_job() -> None:
    one = job("a", {"old": 4.0, "new": 1.0}, 1)
    assert plan({"old": 4, "new": 4}, one) == {"a": (("new", 1),)}
    assert plan({"old": 4}, one) == {"a": (("old", 1),)}


def test_the_growth_that_gains_most_for_each_device_wins_and_of_equals_the_larger() -> None:
    """From one to two devices halves the time; from four to eight does, too, but takes four."""
    small, large = job("small", ONE, 2, given=(("gpu", 1),)), job("large", ONE, 8, given=(("gpu", 4),))
    assert plan({"gpu": 9}, small, large) == {"small": (("gpu", 2),), "large": (("gpu", 4),)}, "then 3 are left"
    assert plan({"gpu": 10}, small, large) == {"small": (("gpu", 2),), "large": (("gpu", 8),)}
    four = job("four", ONE, 4, given=(("gpu", 2),))
    assert plan({"gpu": 8}, four) == {"four": (("gpu", 4),)}, "a third would gain nothing"


def test_one_kind_grows_in_a_round() -> None:
    one = job("a", {"old": 2.0, "new": 1.0}, 16, given=(("new", 4),))
    (first,) = (plan({"old": 4, "new": 4}, one).values(),)
    assert list(first) == [(("new", 4), ("old", 2))] or list(first) == [(("new", 4), ("old", 4))]
    assert plan({"old": 4, "new": 4}, replace(one, shape=replace(one.shape, mixes=False))) == {"a": (("new", 4),)}


def test_nobody_shrinks_for_others() -> None:
    holder, waiting = job("holder", ONE, 8, 1e9, given=(("gpu", 8),)), job("waiting", ONE, 1, 1.0, priority=5)
    assert plan({"gpu": 8}, holder, waiting) == {"holder": (("gpu", 8),)}


def test_a_job_whose_devices_were_taken_shrinks_onto_the_rest_and_stops_where_it_cannot_run_on_it() -> None:
    assert plan({"gpu": 3}, job("a", ONE, 8, given=(("gpu", 8),))) == {"a": (("gpu", 3),)}
    assert plan({"gpu": 3}, job("a", ONE, 8, least=4, given=(("gpu", 8),))) == {}
    both = job("a", {"old": 2.0, "new": 1.0}, 8, given=(("new", 2), ("old", 2)))
    assert plan({"old": 2}, both) == {"a": (("old", 2),)}
    tight = job("a", {"gpu": 1.0}, 8, memory={"gpu": 2}, given=(("gpu", 8),))
    assert plan({"gpu": 3}, tight) == {}, "no room for its ESTs"


@given(snapshot=snapshots())
@settings(max_examples=50)
def test_growth_is_at_most_double_of_one_kind_and_not_wasteful(snapshot: tuple[dict[str, int], list[Job]]) -> None:
    capacity, jobs = snapshot
    over = {
        kind for kind, count in used({one.name: one.given for one in jobs}).items() if count > capacity.get(kind, 0)
    }
    found = plan(capacity, *jobs)
    for one in jobs:
        had, has = dict(one.given), dict(found.get(one.name, ()))
        if not had or over & set(had):
            continue  # its first devices, or it has lost some
        more = {kind: count - had.get(kind, 0) for kind, count in has.items() if count != had.get(kind, 0)}
        assert all(has.get(kind, 0) >= count for kind, count in had.items())
        assert len(more) <= 1
        assert sum(more.values()) <= total(one.given)
        if more:
            assert waste(one, found[one.name]) <= MOST_WASTE + 1e-9
            assert one.seconds(found[one.name]) < one.seconds(one.given)


@pytest.mark.parametrize("seed", range(5))
def test_after_some_rounds_nothing_changes_any_more(seed: int) -> None:
    capacity, jobs = from_seed(seed)
    plans = []
    for _ in range(12):
        plans.append(plan(capacity, *jobs))
        jobs = [replace(one, given=plans[-1].get(one.name, ())) for one in jobs]
    assert plans[-1] == plans[-2]
