"""What hostile tests share: a job that was inspected once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.pipeline.inspect import inspect_script
from user import TRAINING, User

if TYPE_CHECKING:
    from easyscale.pipeline.bundle import Bundle
    from easyscale.pipeline.forkserver import ForkServer
    from easyscale.pipeline.spec import JobSpec


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> tuple[JobSpec, Bundle]:
    """`TRAINING`, inspected once for all tests that only need a job to be there."""
    return inspect_script(User(tmp_path_factory.mktemp("training")).write(TRAINING), fork_server=fork_server)
