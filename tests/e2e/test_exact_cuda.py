"""Exact numerics with a GPU, a stand-in (`numerics/stand_in.py`): one job and one state, whoever computes it.

That each operator gives the CPU's bits there is shown in `tests/numerics`; here it is whole jobs, and the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster import JOBS, Cluster
from numerics import stand_in
from once import once

if TYPE_CHECKING:
    from cluster import Process

SMALL = JOBS / "small.py"
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
STEPS = 10


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has one."""
    return once(tmp_path_factory, "gpu", lambda: stand_in.environment(tmp_path_factory.mktemp("driver")))


@pytest.fixture(scope="session")
def on_cpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of `small.py` without a GPU."""

    def alone() -> str:
        with Cluster(tmp_path_factory.mktemp("cpus") / "cluster") as it:
            it.coordinator()
            it.worker("cpu")
            return it.result(submit(it)).state_digest

    return once(tmp_path_factory, "on-cpus", alone)


def submit(cluster: Cluster, **settings: Any) -> str:
    return cluster.submit(SMALL, numerics="exact", steps=STEPS, **settings)


def on_gpu(cluster: Cluster, gpu: dict[str, str], name: str = "gpu") -> Process:
    return cluster.worker(name, "--device", "cuda", alone=True, **gpu)


def devices(cluster: Cluster) -> set[str]:
    """Those that members have computed on."""
    return {record["device"] for record in cluster.told("runner.prepared")}


def test_an_example_that_is_run_on_a_gpu_comes_to_the_state_of_a_cpu(cluster: Cluster, gpu: dict[str, str]) -> None:
    options = ("--numerics", "exact", "--set", "steps=8")
    theirs = cluster.run(DIGITS, *options, "--device", "cuda", **gpu).wait()
    assert theirs.code == 0, theirs.err
    ours = cluster.run(DIGITS, *options, "--name", "ours").wait()
    assert ours.code == 0, ours.err
    assert theirs.last["state_digest"] == ours.last["state_digest"]
    assert theirs.last["metrics"] == ours.last["metrics"]
    assert devices(cluster) == {"cuda:0", "cpu"}
    assert not cluster.told("runner.switches_put_back"), "native mode's; they are not what exact mode needs"


def test_a_gpu_and_a_cpu_train_one_job_together_to_the_state_of_either(
    cluster: Cluster, gpu: dict[str, str], on_cpus: str
) -> None:
    cluster.coordinator()
    job = submit(cluster, min_workers=2, check_every=5)
    on_gpu(cluster, gpu)
    cluster.worker("cpu")
    assert len(cluster.until(job, lambda now: now.state in ("running", "done")).workers) == 2
    assert cluster.result(job).state_digest == on_cpus
    assert devices(cluster) == {"cuda:0", "cpu"}


def test_what_a_killed_gpu_has_left_is_finished_by_a_cpu_and_verified_by_a_gpu(
    cluster: Cluster, gpu: dict[str, str], on_cpus: str
) -> None:
    cluster.coordinator()
    options = ("--numerics", "exact", "--set", f"steps={STEPS}", "--set", "commit_every=4")
    assert cluster.command("submit", str(SMALL), *options).code == 0  # which looks at the data as the job will see it
    job = "small"
    with cluster.slowly():
        worker = on_gpu(cluster, gpu)
        cluster.until(job, lambda now: now.committed >= 4)
        worker.kill()
    cluster.worker("cpu")
    assert cluster.result(job).state_digest == on_cpus
    assert devices(cluster) == {"cuda:0", "cpu"}
    found = cluster.command("verify", job, "--device", "cuda", "-o", "json", **gpu)
    assert found.code == 0, found.err
    assert found.last["departures"] == []


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches in the environment are not set; other tests may have set them in this process."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)


def test_the_doctor_finds_that_cuda_was_started_before_its_switches_were_set(
    unset: None, cluster: Cluster, gpu: dict[str, str]
) -> None:
    """As the stand-in does, which is there as soon as PyTorch is. A cluster has the environment of its beginning."""
    early = cluster.command("doctor", **gpu)
    assert early.code == 1
    assert "BAD  determinism" in early.out
    assert "CUBLAS_WORKSPACE_CONFIG was set after CUDA was initialised" in early.out
    assert "ok   device cuda:0" in early.out
    exported = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}
    fine = cluster.command("doctor", **gpu, **exported)
    assert fine.code == 0, fine.out
