"""What shares servers stays in one process, what shares little goes where there is time, and nothing is made twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from once import once
from spreading import portion

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("tests/contract/test_a.py::test_x[etcd-1]", "tests/contract/test_b.py::test_y", True),
        ("tests/unit/test_a.py::test_x", "tests/unit/test_a.py::test_y", True),
        ("tests/unit/test_a.py::test_x", "tests/unit/test_b.py::test_x", False),
        ("tests/e2e/test_a.py::test_x[1]", "tests/e2e/test_a.py::test_x[2]", False),
        ("tests/sim/test_a.py::test_x", "tests/sim/test_a.py::test_y", False),
        ("test_a.py::test_x", "test_a.py::test_y", True),
    ],
)
def test_tests_go_to_processes_in_portions(one: str, other: str, together: bool) -> None:
    assert (portion(one) == portion(other)) is together


def test_what_is_made_once_is_made_by_the_first_process_and_read_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make() -> list[int]:
        made.append(len(made))
        return made

    class Folders:
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def getbasetemp(self) -> Path:
            self.folder.mkdir(exist_ok=True)
            return self.folder

    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    first, second = (Folders(tmp_path / name) for name in ("gw0", "gw1"))
    assert [once(folders, "numbers", make) for folders in (first, second, first)] == [[0], [0], [0]]
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    assert once(first, "numbers", make) == [0, 1], "a run in one process has the folder for itself"
