"""Servers that several folders of tests need; what was tried is counted and told at the end; and in CI nothing is
skipped: what cannot run there has failed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
import tally
from closing import closing

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["services", "etcd_service", "cluster", "pictures"]


@pytest.fixture
def injected() -> Callable[[str], None]:
    """Counts a fault that the test has just made in real processes or services, by its kind."""
    return lambda kind: tally.add("fault", kind)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and os.environ.get("CI") == "true":
        reporter.write_line(f"CI allows no skipped test, and {len(skipped)} were skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)  # after the slowest tests
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    outcomes = {outcome: len(stats.get(outcome, [])) for outcome in ("passed", "failed", "error", "skipped")}
    if not any(outcomes.values()):
        return
    terminalreporter.section("what was tried")
    for line in closing(outcomes, tally.counts, shutil.get_terminal_size().columns):
        terminalreporter.write_line(line)
