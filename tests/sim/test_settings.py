"""Settings of a job that change while it runs, while workers come and go: all runners begin anew, and nothing is lost.

A job's specification has another digest then, so runners of the old one stop; which of them holds what depends on how
far each has come when it hears of it, and of the next plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import tally
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.pipeline.agent import Agent

from sim import misfortunes, scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from easyscale.coordinator.views import JobView
    from easyscale.pipeline.actions import Action
    from easyscale.pipeline.runner_state import RunnerState

    from sim.world import World

SEEDS = 60
CHUNK = 20


def change_a_setting(world: World) -> None:
    """As a submit with another priority does."""
    job = world.rng.choice(list(world.jobs.values()))
    entry = world.view(job).spec
    assert entry is not None
    record = msgspec.structs.replace(entry.value, spec=f"{next(world.numbers):064x}")
    world.note(f"user changes a setting of {job.name}")
    world.kv.inner.txn((), (Put(keys.spec(job.name), records.encode(record)),))


def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "KINDS", ["graceful"])
    monkeypatch.setattr(misfortunes, "GRACEFUL", [*misfortunes.GRACEFUL, *[change_a_setting] * 4])


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds_{first}")
def test_settings_that_change_while_workers_come_and_go_cost_no_step(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    changed = 0
    for seed in range(first, first + CHUNK):
        outcome = scenario.simulate(seed)
        tally.add("seed", "simulated")
        changed += sum("user changes a setting" in line for line in outcome.story)
        if outcome.violation:
            pytest.fail(outcome.explain(), pytrace=False)
    assert changed > CHUNK


def test_a_runner_that_stops_with_what_only_it_holds_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Agent, runner: RunnerState, job: JobView, *_: object) -> Iterator[Action]:
        if not self._committing(runner):
            yield from self._release(job)
            yield from runner.stop(0.0)

    monkeypatch.setattr(Agent, "_retire", at_once)
    often(monkeypatch)
    assert any("although nobody was lost" in scenario.simulate(seed).violation for seed in range(SEEDS))
