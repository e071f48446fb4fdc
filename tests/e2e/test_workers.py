"""How many workers there are, how their partials travel and who loads the data never shows in the bits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cluster import JOBS

if TYPE_CHECKING:
    from cluster import Cluster
    from reference import Reference


# One worker uses the local lane, several the object-store lane: so this compares the lanes as well.
@pytest.mark.parametrize(("workers", "loaders"), [(2, 0), (3, 1), (4, 0), (1, 3)])
def test_the_number_of_workers_and_loader_processes_never_shows_in_the_bits(
    cluster: Cluster, reference: Reference, workers: int, loaders: int
) -> None:
    run = cluster.run(JOBS / "small.py", "--set", f"loaders={loaders}", workers=workers)
    if workers > 1:
        cluster.until("small", lambda now: len(now.workers) == workers)
    done = run.wait()
    assert done.code == 0
    assert cluster.left() == []
    last = done.last
    assert last["attempts"] == {}
    assert last["loss"] == json.loads(reference.history[-1])["loss"]
    reference.assert_same(cluster, last["manifest"], last["state_digest"])
