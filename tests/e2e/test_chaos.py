"""Chaos on real servers: about sixty preemptions at random, and each job comes to the bits of the undisturbed one.

`benchmarks/chaos.py` does the same for as long as one likes. CHAOS_SEED takes another history than usual, as far as
real processes have one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from chaos_monkey import running_chaos
from cluster import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reference import Reference

PREEMPTIONS = 60

SECONDS = 100.0
"""On a machine that is too slow for sixty there are as many as fit: the summary of the test run counts them."""


@pytest.mark.etcd
@pytest.mark.seaweedfs
def test_preemptions_at_random_fail_no_job_and_change_no_bit(
    tmp_path: Path, reference: Reference, injected: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    with running_chaos(
        tmp_path, JOBS / "small.py", services="etcd", seed=seed, env={"JOB_PACE": "0.02"}, counted=injected
    ) as chaos:
        chaos.run(PREEMPTIONS, seconds=SECONDS)
        assert chaos.tally.failed == []
        for job in chaos.tally.trained:
            reference.assert_same(chaos.cluster, job.manifest, job.digest)
        assert sum(job.recovered for job in chaos.tally.trained) > 0, "nothing was lost that had to be got over"
