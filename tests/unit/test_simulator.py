"""The simulated cluster: times that can be reckoned by hand, and work that is neither lost nor made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.scheduling.jobs import Rates, Shape, devices
from easyscale.coordinator.scheduling.policies import POLICIES
from easyscale.coordinator.scheduling.policy import Costs
from easyscale.coordinator.simulator.engine import Outcome, Simulation
from easyscale.coordinator.simulator.figures import figures
from easyscale.coordinator.simulator.submissions import Reclaim, Submission
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.jobs import Devices, Job
    from easyscale.coordinator.scheduling.policy import Plan

FREE = Costs(0.0, 0.0, 0.0, 0.0)
RATES = Rates.of({"fast": 1.0, "slow": 3.0})


def job(name: str, at: float, ests: int, steps: float, rates: Rates = RATES) -> Submission:
    return Submission(name, at, Shape(rates, ests, 1, ests), steps)


def run(
    there: Mapping[str, int], jobs: Sequence[Submission], policy: str, costs: Costs = FREE, **more: object
) -> Outcome:
    return Simulation(there, jobs, POLICIES[policy](), costs, **more).run()  # type: ignore[arg-type]


class Script:
    """A policy that says what a test has written down: devices of the only job from some time on."""

    name, rigid, at_once, every = "script", False, True, float("inf")

    def __init__(self, *lines: tuple[float, Devices]) -> None:
        self._lines = lines

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        given = [given for at, given in self._lines if at <= now][-1]
        return {one.name: given for one in jobs}


def scripted(costs: Costs, steps: float, *lines: tuple[float, Devices]) -> Outcome:
    """A job of 4 ESTs, each a second. The script's times are those at which the policy is asked."""
    ask = [Reclaim(at, "none", 0) for at, _ in lines]
    return Simulation({"fast": 4}, [job("a", 0.0, 4, steps)], Script(*lines), costs, reclaims=ask).run()


def test_a_job_starts_and_does_its_steps() -> None:
    done = scripted(Costs(start=6.0), 10, (0.0, devices({"fast": 2})))
    assert done.ended == {"a": 6.0 + 10 * 2.0}
    assert done.jobs[0].served == {"fast": 2 * 26.0}
    assert done.jobs[0].worked == 40.0


def test_while_newcomers_get_ready_the_others_go_on() -> None:
    costs = Costs(start=0.0, stop=0.0, join=4.0, change=1.0)
    done = scripted(costs, 10, (0.0, devices({"fast": 1})), (8.0, devices({"fast": 4})))
    # 2 steps of 4 s, then one more until the newcomers are ready, a second for the change, and 7 steps of 1 s
    assert done.ended == {"a": 8.0 + 4.0 + 1.0 + 7 * 1.0}
    assert done.jobs[0].changes == 1


def test_who_shrinks_waits_for_nobody() -> None:
    costs = Costs(start=0.0, stop=0.0, join=4.0, change=1.0)
    done = scripted(costs, 10, (0.0, devices({"fast": 4})), (5.0, devices({"fast": 2})))
    assert done.ended == {"a": 5.0 + 1.0 + 5 * 2.0}


def test_who_loses_all_loses_a_moment_and_starts_again() -> None:
    costs = Costs(start=6.0, stop=2.0, join=0.0, change=0.0)
    done = scripted(costs, 10, (0.0, devices({"fast": 4})), (11.0, ()), (20.0, devices({"fast": 4})))
    # 5 steps by 11; two of them are lost; from 20 on another start, and 7 steps
    assert done.ended == {"a": 20.0 + 6.0 + 7 * 1.0}
    assert done.jobs[0].stops == 1


def test_a_job_whose_devices_are_all_replaced_starts_again() -> None:
    costs = Costs(start=6.0, stop=1.0, join=0.0, change=0.0)
    there = {"fast": 4, "slow": 4}
    script = Script((0.0, devices({"slow": 4})), (15.0, devices({"fast": 4})))
    asked = [Reclaim(15.0, "none", 0)]
    done = Simulation(there, [job("a", 0.0, 4, 10)], script, costs, reclaims=asked).run()
    # 3 steps of 3 s by 15, a third of one is lost; then a start and the rest at a second each
    assert done.ended["a"] == pytest.approx(15.0 + 6.0 + (7 + 1 / 3) * 1.0)


def test_devices_are_free_for_their_owner_when_the_step_is_done() -> None:
    there = {"slow": 2}
    taken = [Reclaim(7.0, "slow", 1), Reclaim(100.0, "slow", -1)]
    done = run(there, [job("a", 0.0, 2, 50)], "easyscale", reclaims=taken)
    assert done.freed == [pytest.approx((2.0, 3.0))], "at 7 s it is in its third step, which ends at 9"
    assert done.there == pytest.approx(2 * done.ended["a"] - 93.0)
    found = figures("easyscale", done, there)
    assert (found.freed, found.freed_longest, found.freed_beyond_step) == pytest.approx((1, 2.0, -1.0))


def test_a_job_that_can_run_nowhere_is_refused_and_the_others_go_on() -> None:
    nowhere = Rates.of({"other": 1.0})
    done = run({"fast": 1}, [job("a", 0.0, 1, 5, nowhere), job("b", 1.0, 1, 5)], "easyscale")
    assert done.refused == ["a"]
    assert done.ended == {"b": 6.0}


def test_it_can_end_before_the_jobs_do() -> None:
    done = run({"fast": 1}, [job("a", 0.0, 1, 100), job("b", 200.0, 1, 5)], "fifo", until=50.0)
    assert done.ended == {}
    assert [one.job.name for one in done.jobs] == ["a"]
    assert done.there == 50.0
    found = figures("fifo", done, {"fast": 1})
    assert (found.jobs, found.unfinished) == (0, 1)


KINDS = {"fast": 3, "slow": 4, "odd": 2}
JOBS = st.lists(
    st.builds(
        Submission,
        name=st.uuids().map(str),
        at=st.floats(0.0, 500.0),
        shape=st.builds(
            Shape,
            rates=st.builds(
                Rates.of,
                st.fixed_dictionaries(
                    {"fast": st.floats(0.05, 2.0), "slow": st.floats(0.1, 8.0)}, optional={"odd": st.floats(0.05, 3.0)}
                ),
                st.sampled_from([0.0, 0.3]),
            ),
            ests=st.shared(st.integers(1, 4), key="ests"),
            least=st.just(1),
            most=st.shared(st.integers(1, 4), key="ests"),
            mixes=st.booleans(),
        ),
        steps=st.floats(1.0, 300.0),
        priority=st.integers(0, 1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.name,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=30)
@given(jobs=JOBS, taken=st.lists(st.tuples(st.floats(0, 300), st.floats(1, 300), st.sampled_from(["fast", "slow"]))))
def test_every_job_comes_to_its_end_and_no_work_is_lost_or_made(
    policy: str, jobs: list[Submission], taken: list[tuple[float, float, str]]
) -> None:
    """Stops are free here, so that nothing is done twice: each EST of each step has been computed once."""
    taken = taken[:4]
    jobs = [one for one in jobs if one.shape.ests <= 3] if POLICIES[policy]().rigid else jobs  # what devices allow
    reclaims = [Reclaim(at, kind, 1) for at, _, kind in taken] + [
        Reclaim(at + lasts, kind, -1) for at, lasts, kind in taken
    ]
    costs = Costs(start=2.0, stop=0.0, join=1.0, change=0.2)
    done = run(KINDS, jobs, policy, costs, reclaims=reclaims)
    assert done.ended.keys() == {one.name for one in jobs}
    for one in done.jobs:
        assert abs(one.left) < 1e-6
        slowest = max(pace.est for _, pace in one.job.shape.rates.paces)
        needed = one.job.steps * one.job.shape.ests
        assert needed * one.job.shape.rates.fastest * (1 - 1e-9) <= one.worked <= needed * slowest * (1 + 1e-9)
        assert one.worked <= sum(one.served.values()) * (1 + 1e-9)
        took = done.ended[one.job.name] - one.job.at
        assert took >= one.job.steps * one.job.shape.rates.fastest
    assert sum(sum(one.served.values()) for one in done.jobs) <= done.there * (1 + 1e-9)


def test_the_same_trace_comes_to_the_same_every_time() -> None:
    jobs = [job(str(place), 7.0 * place, 1 + place % 4, 20 + 3 * place) for place in range(12)]
    first, second = (run({"slow": 3, "fast": 2}, jobs, "easyscale", Costs()) for _ in range(2))
    other = run({"fast": 2, "slow": 3}, list(reversed(jobs)), "easyscale", Costs())
    assert first.ended == second.ended == other.ended
