"""What hostile tests share: a cluster that shows its logs on failure, and a job that was inspected once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from cluster import FAILED, Cluster
from easyscale.pipeline.inspect import inspect_script
from user import TRAINING, User

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from easyscale.pipeline.bundle import Bundle
    from easyscale.pipeline.spec import JobSpec


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
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Bundle]:
    """`TRAINING`, inspected once for all tests that only need a job to be there."""
    return inspect_script(User(tmp_path_factory.mktemp("training")).write(TRAINING))
