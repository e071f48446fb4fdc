"""A cluster with a key: workers run what was submitted with it, and refuse everything else by name."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster
    from reference import Reference

SMALL = JOBS / "small.py"


def test_a_job_that_is_not_signed_is_refused_and_runs_once_it_was_submitted_with_the_key(
    cluster: Cluster, tmp_path: Path, reference: Reference
) -> None:
    key, trusted = tmp_path / "key.pem", tmp_path / "trusted.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", trusted], check=True)
    cluster.coordinator()
    cluster.worker("careful", EASYSCALE_TRUSTED_KEYS=str(trusted))
    done = cluster.command("submit", str(SMALL))
    assert done.code == 0, done.err
    now = cluster.until("small", lambda now: now.waits_for == "willing")
    assert "is not signed with a key that is trusted here" in now.reason
    assert now.step == 0
    done = cluster.command("submit", str(SMALL), EASYSCALE_SIGNING_KEY=str(key))
    assert done.code == 0, done.err
    cluster.worker("another", EASYSCALE_TRUSTED_KEYS=str(trusted))  # who has refused a specification does not ask again
    result = cluster.result("small")
    reference.assert_same(cluster, result.manifest, result.state_digest)


def test_a_key_that_cannot_be_used_is_told_before_anything_is_done(cluster: Cluster, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    for command, name in ((["worker"], "EASYSCALE_TRUSTED_KEYS"), (["submit", str(SMALL)], "EASYSCALE_SIGNING_KEY")):
        done = cluster.command(*command, **{name: nowhere})
        assert done.code == 2
        assert name in done.err
        assert "Traceback" not in done.err
