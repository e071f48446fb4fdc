"""Servers that several folders of tests need, and what all tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tally

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["closing", "services", "etcd_service", "cluster", "pictures"]


@pytest.fixture
def injected() -> Callable[[str], None]:
    """Counts a fault that the test has just made in real processes or services, by its kind."""
    return lambda kind: tally.add("fault", kind)
