"""What a disturbed run of `e2e/jobs/small.py` must come to: the bits of the undisturbed one, step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster import Cluster

SMALL = "small.py"
STEPS = 80
ESTS = 4
SAMPLES = 60
STEPS_PER_EPOCH = 4
COMMIT_EVERY = 10
EPOCHS = STEPS // STEPS_PER_EPOCH
COMMITS = list(range(COMMIT_EVERY, STEPS + 1, COMMIT_EVERY))


@dataclass(frozen=True)
class Reference:
    """The undisturbed run.

    Args:
        digest: of the final state.
        history: a JSON line per step: losses of every EST, learning rates.
        ids: the samples that each EST was given, in order.
    """

    digest: str
    history: list[bytes]
    ids: list[list[int]]

    def assert_same(self, cluster: Cluster, manifest: str, digest: str) -> None:
        """A run that ended with this commit is the same in every bit: state, losses, learning rates, sample ids."""
        other = reference_of(cluster, manifest, digest)
        assert other.history == self.history
        assert other.ids == self.ids
        assert other.digest == self.digest


def reference_of(cluster: Cluster, manifest: str, digest: str) -> Reference:
    """What a finished run came to, checked in itself: no step twice, no sample left out or taken twice."""
    history = cluster.history(manifest)
    records = [json.loads(line) for line in history]
    assert [record["step"] for record in records] == list(range(STEPS))
    assert len({tuple(record["lr"]) for record in records}) > 2, "a learning rate that never changes proves nothing"
    ids = ids_in(cluster.state(manifest))
    per_epoch = SAMPLES // ESTS
    for epoch in range(EPOCHS):
        seen = [sample for est in ids for sample in est[epoch * per_epoch : (epoch + 1) * per_epoch]]
        assert sorted(seen) == list(range(SAMPLES))
    assert all(len(est) == EPOCHS * per_epoch for est in ids)
    return Reference(digest, history, ids)


def ids_in(state: Any) -> list[list[int]]:
    """The sample ids that the ESTs' contexts hold, by rank."""
    return [state["ests"][est]["user"]["seen"]["ids"].tolist() for est in range(ESTS)]
