"""The page about moving from DDP: its two scripts, run as they are, come to the same parameters, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from cluster import Cluster

SCRIPTS = Path(__file__).parents[2] / "examples" / "moving"


def test_the_moved_job_comes_to_the_bits_of_the_ddp_script(tmp_path: Path, cluster: Cluster) -> None:
    before, after = tmp_path / "before.pt", tmp_path / "after.pt"
    rendezvous = ["--master-addr", "127.0.0.1", "--master-port", "0", "--rdzv-backend", "c10d",
                  "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", "2",
         SCRIPTS / "ddp.py", before],
        # without the first, gloo takes the interface that the host name resolves to
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = cluster.run(SCRIPTS / "job.py", workers=2).wait()
    assert run.code == 0, run.err
    (accuracy,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert f"{json.loads(run.out)['metrics']['accuracy']:.6f}" == accuracy
    exported = cluster.command("export", "moved", "--to", str(after))
    assert exported.code == 0, exported.err
    theirs, ours = torch.load(before, weights_only=True)["model"], torch.load(after, weights_only=True)
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
        assert ours[name].dtype == tensor.dtype
