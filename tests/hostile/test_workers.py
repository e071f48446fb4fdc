"""Workers that cannot run a job: each says why, by name, and the work goes to one that can."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest
from easyscale.errors import DeviceError
from easyscale.pipeline import determinism
from easyscale.pipeline.inspect import inspect_script
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.submit import place
from user import TRAINING, User, limit_files

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster

LARGE = 6 << 20
"""Bytes of code that do not fit on a full disk; whatever else a worker writes is smaller."""

OTHER_PYTHON = "import platform\nplatform.python_version_tuple = lambda: ('3', '99', '1')\n"


def submitted(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job whose script imports a module that lies elsewhere on the submitter. Its name."""
    far = folder / "far"
    far.mkdir()
    (far / "far_away.py").write_text("")
    script = folder / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("import far_away\n" + TRAINING.replace("steps=3", "steps=3, files=['large.bin']"))
    (script.parent / "large.bin").write_bytes(bytes(LARGE))
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{far}")
    spec, bundle = inspect_script(script)
    place(cluster.kv, cluster.store, spec, bundle)
    return spec.name


def test_workers_that_lack_what_a_job_needs_refuse_it_by_name_and_another_one_runs_it(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = os.environ.get("PYTHONPATH", "")
    job = submitted(cluster, tmp_path, monkeypatch)
    warning = [line for line in capfd.readouterr().err.splitlines() if "submit.module_elsewhere" in line]
    assert len(warning) == 1, "the submit said which module does not travel, and of no other"
    assert '"far_away"' in warning[0]
    with_module = os.environ["PYTHONPATH"]
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(OTHER_PYTHON)
    cluster.coordinator()
    cluster.worker("moduleless", PYTHONPATH=path)
    cluster.worker("newer", PYTHONPATH=f"{patch}:{with_module}")
    cluster.worker("astray", PYTHONPATH=with_module, EASYSCALE_STORE=f"file://{tmp_path}/another-store")
    limit_files(cluster.worker("full", PYTHONPATH=with_module).pid, LARGE - 1)
    found = cluster.until(job, lambda now: now.reason.count("; ") >= 3 and "every worker refused" in now.reason)
    assert found.state == "waiting", "the job is not at fault"
    versions = determinism.versions()
    for words in (
        "moduleless: this worker's Python (",
        "has no module 'far_away'",
        f"newer: the job was submitted with python {versions['python']}, this worker has python 3.99",
        f"astray: the object store file://{tmp_path}/another-store lacks what job 'demo' was submitted with",
        "full: this worker's folder cannot be used: cannot unpack code to ",
        "File too large; free some room, or name another (--folder)",
    ):
        assert words in found.reason, found.reason
    cluster.worker("able", PYTHONPATH=with_module)
    assert cluster.result(job).steps == 3


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"python": "3.1"}, r"submitted with python 3\.1, this worker has python 3\.\d+"),
        ({"python": "3.1", "torch": "1.0.0"}, r"python 3\.1 and torch 1\.0\.0, this worker has python .* and torch 2"),
    ],
)
def test_other_versions_are_named_on_both_sides(wanted: dict[str, str], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        determinism.check_versions(wanted)


def test_the_submitters_versions_and_unknown_ones_are_fine() -> None:
    determinism.check_versions(determinism.versions())
    determinism.check_versions({"python": "", "torch": ""})
    assert "+" not in determinism.versions()["torch"], "a job goes from a laptop to GPUs"


def test_a_specification_of_another_version_of_easyscale_is_refused_by_the_worker_not_charged_to_the_user() -> None:
    spec = JobSpec(name="demo", script="", code="", data="", samples=20, ests=2, batch_size=5, steps=3)
    newer = msgspec.json.decode(spec.encode()) | {"colour": "red"}
    with pytest.raises(DeviceError, match=r"cannot read the job's specification.*`colour`"):
        JobSpec.decode(msgspec.json.encode(newer))


def test_run_ends_when_no_worker_here_can_run_the_job(tmp_path: Path) -> None:
    user = User(tmp_path / "user", EASYSCALE_KV=f"file://{tmp_path}/kv.sqlite", EASYSCALE_STORE=f"file://{tmp_path}/s")
    user.write(TRAINING)
    unfit = user.folder / "local"
    unfit.mkdir()
    (unfit / "code").write_text("a file where the code should go")
    ran = user.run("run", "train.py", "--folder", str(unfit))
    assert ran.code == 1
    assert "error: job 'demo' cannot run here: every worker refused this job: local0: " in ran.error
    assert f"this worker's folder cannot be used: cannot unpack code to {unfit}/code/" in ran.error
    assert "run the same command again" in ran.error
    (unfit / "code").unlink()
    ran = user.run("run", "train.py", "--folder", str(unfit), "-o", "json")
    assert ran.last["state"] == "done", "nothing was lost"
