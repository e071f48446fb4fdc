"""The last words of a test run: how much was tried, in numbers that are counted while the tests run (`tally.py`); and
in CI nothing is skipped: what cannot run there has failed.

A pytest plugin. What a test has counted travels with its report, so it makes no difference which process ran it.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import tally

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

PROPERTY = "tally"
"""A report's property: what its test has counted."""

tried = tally.nothing()
"""What the reports of this run have brought so far."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.append((PROPERTY, tally.taken()))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, counted in report.user_properties:
        if name == PROPERTY:
            assert isinstance(counted, dict)
            for kind, names in counted.items():
                tried[kind].update(names)


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
    for line in closing(outcomes, tried, shutil.get_terminal_size().columns):
        terminalreporter.write_line(line)


def closing(outcomes: Mapping[str, int], counts: Mapping[str, Counter[str]], width: int = 100) -> list[str]:
    """The lines of the block.

    Args:
        outcomes: how many tests ended how.
        counts: see `tally.Counts`.
        width: columns of the terminal.
    """
    ended = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
    lines = [f"tests: {sum(outcomes.values())} ({ended})"]
    lines.append(f"simulated seeds: {counts.get('seed', Counter()).total()}")
    for title, kind in (("injected faults", "fault"), ("planted bugs found", "planted")):
        found = counts.get(kind, Counter())
        lines.append(f"{title}: {found.total()}, of {len(found)} kinds")
        text = "; ".join(f"{name} {count}" for name, count in sorted(found.items(), key=lambda it: (-it[1], it[0])))
        lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
    if found := counts.get("cuda"):
        lines.append(
            "of CUDA's kernels, without a GPU: " + "; ".join(f"{n} {what}" for what, n in sorted(found.items()))
        )
    return lines
