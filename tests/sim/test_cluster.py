"""The real decisions and drivers under every kind of fault: safety all the time, liveness once the faults stop.

One test item is a handful of seeds, so that the report stays short; a failure names its seed, tells its history and how
to replay it. `EASYSCALE_SIM_FROM` and `EASYSCALE_SIM_SEEDS` choose others than the usual ones.
"""

from __future__ import annotations

import os

import pytest
import tally

from sim.scenario import simulate

FROM = int(os.environ.get("EASYSCALE_SIM_FROM", "0"))
SEEDS = int(os.environ.get("EASYSCALE_SIM_SEEDS", "500"))
CHUNK = 25


@pytest.mark.parametrize("first", range(FROM, FROM + SEEDS, CHUNK), ids=lambda first: f"seeds_{first}")
def test_faults_never_show_in_the_bits_and_every_job_ends(first: int) -> None:
    for seed in range(first, min(first + CHUNK, FROM + SEEDS)):
        outcome = simulate(seed)
        tally.add("seed", "simulated")
        for kind, count in outcome.injected.items():
            tally.add("fault", kind, count)
        if outcome.violation:
            pytest.fail(outcome.explain(), pytrace=False)


def test_a_seed_gives_the_same_history_each_time() -> None:
    first, second = simulate(FROM + 3), simulate(FROM + 3)
    assert first.story == second.story
