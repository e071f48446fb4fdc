"""The block that ends a test run says what was tried, in numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from closing import closing


def test_all_that_was_tried_is_told_in_numbers() -> None:
    counts = {
        "seed": Counter({"simulation": 500, "storage": 20}),
        "fault": Counter({"an answer lost": 3, "SIGKILL of a worker": 40}),
        "planted": Counter({"no fencing": 1}),
        "cuda": Counter({"hashes": 300, "in the code of sm_75": 20}),
    }
    assert closing({"passed": 7, "failed": 0, "skipped": 1}, counts) == [
        "tests: 8 (7 passed, 1 skipped)",
        "simulated seeds: 520",
        "injected faults: 43, of 2 kinds",
        "    SIGKILL of a worker 40; an answer lost 3",
        "planted bugs found: 1, of 1 kinds",
        "    no fencing 1",
        "of CUDA's kernels, without a GPU: 300 hashes; 20 in the code of sm_75",
    ]


def test_where_nothing_was_tried_it_says_so() -> None:
    assert closing({"passed": 1}, {})[1:] == [
        "simulated seeds: 0",
        "injected faults: 0, of 0 kinds",
        "planted bugs found: 0, of 0 kinds",
    ]


def test_many_kinds_are_wrapped() -> None:
    lines = closing({"passed": 1}, {"fault": Counter({f"kind {i}": 1 for i in range(60)})}, width=60)
    assert all(len(line) <= 60 for line in lines)
    assert "".join(lines).count("kind ") == 60


COUNTS = """
import pytest
import tally

@pytest.fixture
def counting():
    tally.add("fault", "before")
    yield
    tally.add("fault", "afterwards")

@pytest.mark.parametrize("number", range(6))
def test_counts(number, counting):
    tally.add("seed", "simulated", number)

def test_is_skipped():
    pytest.skip("no reason")
"""


def run(tests: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "closing", *options],
        cwd=folder,
        env={**os.environ, "CI": "true", "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_tells_the_same_however_many_processes_it_took(tmp_path: Path, processes: int) -> None:
    ran = run(COUNTS, tmp_path, "-n", str(processes))
    assert ran.stdout.rpartition("what was tried")[2].splitlines()[1:5] == [
        "tests: 7 (6 passed, 1 skipped)",
        "simulated seeds: 15",
        "injected faults: 12, of 2 kinds",
        "    afterwards 6; before 6",
    ]
    assert "CI allows no skipped test, and 1 were skipped" in ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_hung_test_names_itself_from_any_process(tmp_path: Path) -> None:
    ran = run("def test_hangs():\n    while True:\n        pass\n", tmp_path, "-n", "2", "--timeout", "1")
    assert "FAILED test_it.py::test_hangs - Failed: Timeout" in ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
