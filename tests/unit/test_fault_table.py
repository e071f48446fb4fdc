"""`docs/faults.md` says which test holds which kind of fault; and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "faults.md"

REQUIRED = {*range(1, 13), 14, 15, 16, *range(19, 37), *range(38, 45), 46}
"""The kinds that concern what exists."""

ALL = set(range(1, 48))
HOWS = {"real", "simulated", "real, simulated", "in process", "later"}
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


class Row(NamedTuple):
    """A line of the table."""

    number: int
    kind: str
    result: str
    how: str
    tests: str


def rows(text: str) -> list[Row]:
    """The lines of all tables of the page that begin with a number."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdecimal():
            found.append(Row(int(cells[0]), *cells[1:]))
    return found


TABLE = rows(PAGE.read_text())


@cache
def defined_in(path: Path) -> set[str]:
    """The test functions that a file defines."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_kind_of_fault_has_its_line_once() -> None:
    numbers = [row.number for row in TABLE]
    assert sorted(numbers) == sorted(ALL)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.number))
def test_a_line_says_what_how_and_which_test_and_the_tests_exist(row: Row) -> None:
    assert all(row), "no cell is empty"
    assert row.how in HOWS
    named = TEST.findall(row.tests)
    assert row.tests.count("::") == len(named), "a test that is named in another way would not be checked"
    if row.number in REQUIRED:
        assert row.how != "later"
    if row.how != "later":
        assert named, "some test holds it"
    assert_exist(named)


def assert_exist(named: list[tuple[str, str]]) -> None:
    for file, name in named:
        path = TESTS / file
        assert path.is_file(), file
        assert name in defined_in(path), f"{file} has no {name}"


def test_what_is_named_beside_the_tables_exists_too() -> None:
    assert_exist(TEST.findall(PAGE.read_text()))


def test_a_test_that_does_not_exist_is_noticed() -> None:
    (row,) = rows("| 1 | kind | result | real | `e2e/test_kills.py::test_nothing_of_the_kind` |")
    with pytest.raises(AssertionError, match="has no test_nothing_of_the_kind"):
        test_a_line_says_what_how_and_which_test_and_the_tests_exist(row)
