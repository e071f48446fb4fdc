"""What all end-to-end tests share: a cluster per test, and the undisturbed run that they are all compared with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from cluster import FAILED, JOBS, Cluster
from reference import SMALL, Reference, reference_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without processes on the embedded stores; shows all its logs when the test fails."""
    with Cluster(tmp_path / "cluster") as it:
        yield it
        if request.node.stash.get(FAILED, False):
            print(it.logs(), file=sys.stderr)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """`jobs/small.py` on one worker, undisturbed: all ESTs in one runner, partials by the local lane, no loaders."""
    with Cluster(tmp_path_factory.mktemp("reference") / "cluster") as it:
        run = it.run(JOBS / SMALL).wait()
        assert run.code == 0, run.err
        return reference_of(it, run.last["manifest"], run.last["state_digest"])
