"""Servers that several folders of tests need, and what all tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import forked
import pytest
import tally
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.pipeline.forkserver import ForkServer

pytest_plugins = ["closing", "spreading", "services", "etcd_service", "cluster", "pictures"]

# How long an example takes says nothing where other tests run beside it.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """For tests that want children and not their start: it takes seconds to import what they need."""
    return forked.shared()


@pytest.fixture
def injected() -> Callable[[str], None]:
    """Counts a fault that the test has just made in real processes or services, by its kind."""
    return lambda kind: tally.add("fault", kind)
