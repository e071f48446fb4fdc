"""The simulated cluster as a Hypothesis state machine: misfortunes are chosen, and a sequence that leads to a violation
is shrunk to the shortest one that still does. The seeds of `test_cluster.py` go further; these stories are readable.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest
import tally
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st

from sim import misfortunes
from sim.faults import LEVELS, Faults
from sim.scenario import departure, peace
from sim.test_planted_bugs import est_order_by_arrival
from sim.world import World, small_spec

if TYPE_CHECKING:
    from collections.abc import Callable

LIES = [field.name for field in dataclasses.fields(Faults)]


class Cluster(stateful.RuleBasedStateMachine):
    """Two workers, a coordinator and a job; the rules are what may befall them."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = contextlib.ExitStack()
        self.world = World(0)

    @stateful.initialize(seed=st.integers(0, 100), ests=st.integers(1, 4), workers=st.integers(1, 3))
    def begin(self, seed: int, ests: int, workers: int) -> None:
        self.world = World(seed)
        self.frame.enter_context(self.world.installed())
        self.world.faulty = True
        self.world.submit(small_spec("job", ests=ests, steps=40, commit_every=3))
        self.world.add_coordinator()
        for _ in range(workers):
            self.world.add_worker()
        self.world.run(5.0)

    @stateful.rule(what=st.sampled_from(misfortunes.EVERY), seconds=st.sampled_from([0.0, 0.3, 1.0, 4.0]))
    def misfortune(self, what: Callable[[World], None], seconds: float) -> None:
        what(self.world)
        self.world.run(seconds)

    @stateful.rule(lie=st.sampled_from(LIES), times=st.sampled_from([0.0, 0.3, 1.0]))
    def stores_lie(self, lie: str, times: float) -> None:
        setattr(self.world.faults, lie, times * LEVELS.get(lie, 0.08))

    @stateful.invariant()
    def nothing_is_violated(self) -> None:
        assert not self.world.judge.violation, self.world.judge.violation

    def teardown(self) -> None:
        try:
            if not self.world.judge.violation:
                peace(self.world)
                departure(self.world)
                assert not self.world.judge.violation, self.world.judge.violation
        finally:
            for kind, count in self.world.injected.items():
                tally.add("fault", kind, count)
            self.frame.close()


USUAL = settings(
    max_examples=60,
    stateful_step_count=20,
    derandomize=True,  # CI must not fail by chance; long runs with other examples: pytest --hypothesis-seed
    suppress_health_check=list(HealthCheck),
)


def test_no_sequence_of_misfortunes_breaks_a_promise() -> None:
    stateful.run_state_machine_as_test(Cluster, settings=USUAL)


def test_a_planted_bug_is_shrunk_to_a_short_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine can see, and what it shows is readable: two workers, and time that passes."""
    est_order_by_arrival(monkeypatch.setattr)
    one = settings(USUAL, max_examples=10, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match="in order of slots") as found:
        stateful.run_state_machine_as_test(Cluster, settings=one)
    story = [line for line in "\n".join(getattr(found.value, "__notes__", [])).splitlines() if "state." in line]
    assert 0 < len(story) <= 6, story
