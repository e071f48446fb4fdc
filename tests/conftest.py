"""Servers that several folders of tests need; and in CI nothing is skipped: what cannot run there has failed."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["services", "etcd_service"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and os.environ.get("CI") == "true":
        reporter.write_line(f"CI allows no skipped test, and {len(skipped)} were skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
