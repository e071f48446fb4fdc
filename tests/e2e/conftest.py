"""What all end-to-end tests share: the undisturbed runs that they are all compared with."""

from __future__ import annotations

import pytest
from cluster import JOBS, STAGES, Cluster
from once import once
from reference import SMALL, Reference, reference_of


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """`jobs/small.py` on one worker, undisturbed: all ESTs in one runner, partials by the local lane, no loaders."""

    def undisturbed() -> Reference:
        with Cluster(tmp_path_factory.mktemp("reference") / "cluster") as it:
            run = it.run(JOBS / SMALL).wait()
            assert run.code == 0, run.err
            return reference_of(it, run.last["manifest"], run.last["state_digest"])

    return once(tmp_path_factory, "reference", undisturbed)


@pytest.fixture(scope="session")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `jobs/stages.py` comes to when nobody disturbs it."""

    def undisturbed() -> str:
        with Cluster(tmp_path_factory.mktemp("undisturbed") / "cluster") as it:
            done = it.run(STAGES).wait()
            assert done.code == 0, done.err
            return str(done.last["state_digest"])

    return once(tmp_path_factory, "digest", undisturbed)
