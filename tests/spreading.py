"""How `pytest -n auto` spreads the tests over processes: as many as keep the machine busy, and what is expensive to
start is started in few of them. A pytest plugin; without `-n` nothing of it matters."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

from xdist.scheduler import LoadScopeScheduling

ONE_BY_ONE = ("e2e", "sim")
"""Folders with long tests that share little."""

AT_ONCE = ("contract",)
"""Folders whose tests share servers."""

MOST = 16


class ByFolder(LoadScopeScheduling):
    """What is given to a process at a time: one test, a folder's, or a file's. The largest portions first."""

    def _split_scope(self, nodeid: str) -> str:
        return portion(nodeid)


def portion(nodeid: str) -> str:
    """The name of the portion that a test belongs to."""
    file, _, _ = nodeid.partition("::")
    folder = PurePath(file).parent.name
    if folder in ONE_BY_ONE:
        return nodeid
    return folder if folder in AT_ONCE else file


def pytest_xdist_make_scheduler(config: Any, log: Any) -> ByFolder:
    return ByFolder(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """Most tests wait for processes or deadlines most of the time."""
    return min(2 * len(os.sched_getaffinity(0)), MOST)
