"""Ranges that follow speed far too eagerly, so that memberships change for its sake all the time and among all faults.

Every report counts at once, the least gain is worth a generation, and probes say whatever they like. The judge finds
what this must not do: states that are lost because who holds them is left out, ESTs that nobody runs, workers that
serve nobody for no reason.
"""

from __future__ import annotations

import pytest
import tally
from easyscale.coordinator import arrangement, membership, probes, throughput

from sim import actors
from sim.scenario import simulate
from sim.training import mix

SEEDS = 80
CHUNK = 20

EAGER = {
    throughput: {
        "KEPT": 4, "MIN_REPORTS": 1, "MAX_ERROR": 1e9, "MOVED": 0.02, "CLEAR": 0.0, "NOTICED": 1.1, "FORGIVEN": 1.05,
        "SUSTAINED_SECONDS": 0.0, "LOOK_SECONDS": 0.0, "WRITE_SECONDS": 0.0,
    },
    arrangement: {"GAIN": 0.02},
    membership: {"FOLLOW_SECONDS": 0.0, "FOLLOW_AGAIN_SECONDS": 0.5},
}  # fmt: skip


TOLD = [None, 0.0, float("nan"), 1e-300, 0.01, 0.1, 1.0, 1.0, 1e5]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds_{first}")
def test_following_speed_all_the_time_never_shows_in_the_bits_and_every_job_ends(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, constants in EAGER.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(actors, "est_seconds", lambda worker: TOLD[mix(worker) % len(TOLD)])
    probed = []
    factors = probes.factors

    def noted(*arguments: object) -> dict[str, float]:
        found = factors(*arguments)  # type: ignore[arg-type]
        probed.append(bool(found))
        return found

    monkeypatch.setattr(probes, "factors", noted)
    followed = []
    follow = membership.Membership._follow

    def counted(self: membership.Membership, *arguments: object) -> object:
        found = follow(self, *arguments)  # type: ignore[arg-type]
        followed.append(found is not None)
        return found

    monkeypatch.setattr(membership.Membership, "_follow", counted)
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        tally.add("seed", "simulated")
        if outcome.violation:
            pytest.fail(outcome.explain(), pytrace=False)
    assert sum(followed) > CHUNK / 4, "it does happen"
    assert sum(probed) > CHUNK, "so does this"
