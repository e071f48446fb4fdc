"""Exact numerics: one result on devices of different kind, alone or together, where native numerics give several.

That native numerics refuse to mix them is shown in `test_waiting.py`.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cluster import JOBS, Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Process
    from reference import Reference

SMALL = JOBS / "small.py"

X86 = {
    "plain": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "EASYSCALE_THREADS": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "EASYSCALE_THREADS": "2",
        "EASYSCALE_ISA": "avx2",
    },
    "baseline": {"EASYSCALE_THREADS": "2", "EASYSCALE_ISA": "baseline"},
}
ARM = {"plain": {"EASYSCALE_THREADS": "1"}, "two": {"EASYSCALE_THREADS": "2"}}
DEVICES = X86 if platform.machine() == "x86_64" else ARM
"""One machine as several devices: the environments of their workers."""


def digest_of(folder: Path, numerics: str, env: dict[str, str]) -> str:
    with Cluster(folder / "cluster") as cluster:
        done = cluster.run(SMALL, "--numerics", numerics, **env).wait()
        assert done.code == 0, done.err
        return str(done.last["state_digest"])


def start(cluster: Cluster, name: str, **more: str) -> Process:
    return cluster.worker(name, **DEVICES[name], **more)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is no plainer device")
def test_a_job_with_native_numerics_comes_to_another_state_on_another_device(
    tmp_path: Path, reference: Reference
) -> None:
    assert digest_of(tmp_path, "native", DEVICES["plain"]) != reference.digest


def test_devices_of_different_kind_train_one_exact_job_together_to_the_state_of_each_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    alone = {name: digest_of(tmp_path / name, "exact", env) for name, env in DEVICES.items()}
    cluster.coordinator()
    job = cluster.submit(SMALL, numerics="exact", min_workers=len(DEVICES))
    for name in DEVICES:
        start(cluster, name)
    members = cluster.until(job, lambda now: now.state == "running" or now.state == "done").workers
    assert len(members) == len(DEVICES)
    result = cluster.result(job)
    assert alone == dict.fromkeys(DEVICES, result.state_digest)


REFUSED = """
import torch
import easyscale as es

class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((8,), index / 8)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return CHANGE

def build():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return es.Training(
        model=model, optimizer=optimizer, dataset=Waves(), step=lambda model, batch: model(batch).float().sum()
    )

job = es.Job("waves", build, ests=2, batch_size=4, steps=3, numerics="exact", retries={"raised": 5})
"""
LINE = 1 + REFUSED.splitlines().index("        return CHANGE")


@pytest.mark.parametrize(
    ("change", "operator", "where"),
    [
        ("torch.fft.rfft(self.layer(x)).real", "aten::_fft_r2c", "the forward pass"),
        ("self.layer(x).cummax(0).values.matrix_exp()", "aten::linalg_matrix_exp", "the forward pass"),
    ],
)
def test_an_operator_that_is_not_covered_fails_the_job_at_once_before_a_step_is_published(
    cluster: Cluster, tmp_path: Path, change: str, operator: str, where: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(REFUSED.replace("CHANGE", change))
    done = cluster.command("run", str(script))
    assert done.code == 2
    assert f"exact numerics refuse the operator {operator}" in done.err
    assert f"(in {where}: train.py:{LINE})" in done.err
    assert "easyscale scan" in done.err
    now = cluster.job("waves")
    assert (now.state, now.cause, now.committed) == ("failed", "inexact", 0)
    assert now.attempts == {"inexact": 1}, "it is not tried again"


def test_a_worker_without_a_compiler_refuses_exact_jobs_and_goes_on_with_native_ones(cluster: Cluster) -> None:
    cluster.coordinator()
    lacking: dict[str, Any] = {
        "CXX": "/nonexistent",
        "EASYSCALE_BUILD_FOLDER": str(cluster.folder / "nothing-built"),
    }
    cluster.worker("bare", **lacking)
    exact = cluster.submit(SMALL, numerics="exact", name="exact")
    now = cluster.until(exact, lambda now: "refused" in now.reason)
    assert "this worker cannot run a job with exact numerics" in now.reason
    assert "CXX=/nonexistent" in now.reason
    native = cluster.submit(SMALL, steps=2, name="native")
    assert cluster.result(native).state_digest


def test_threads_of_a_worker_must_be_a_number(cluster: Cluster) -> None:
    cluster.coordinator()
    cluster.worker("many", EASYSCALE_THREADS="many")
    job = cluster.submit(SMALL, numerics="exact")
    now = cluster.until(job, lambda now: "refused" in now.reason)
    assert "EASYSCALE_THREADS='many': it must be a number" in now.reason
