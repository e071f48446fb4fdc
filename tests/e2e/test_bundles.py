"""The code that a worker runs is the bundle's, whatever its files are called and wherever the worker runs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from cluster import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster
    from reference import Reference

NAMES = ("storage.py", "errors.py", "coordinator.py", "pipeline/__init__.py", "settings.py", "logs.py")


def test_a_folder_with_our_module_names_trains_on_a_worker_that_never_saw_it(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "pipeline").mkdir(parents=True)
    for name in NAMES:
        (project / name).write_text("WHOSE = 'the user'\n")
    modules = [name.partition(".")[0].partition("/")[0] for name in NAMES]
    checks = "".join(f"import {module}\nassert {module}.WHOSE == 'the user'\n" for module in modules)
    future = "from __future__ import annotations\n"
    script = project / "train.py"
    script.write_text((JOBS / "small.py").read_text().replace(future, future + checks, 1))

    cluster.coordinator()
    submitted = cluster.command("submit", str(script), "-o", "json")
    assert submitted.code == 0, submitted.err
    assert submitted.last["how"] == "created"
    shutil.rmtree(project)
    cluster.worker("w0")
    result = cluster.result(submitted.last["job"])
    reference.assert_same(cluster, result.manifest, result.state_digest)
