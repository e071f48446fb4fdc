"""A message shows a wrong value on one line, cut short, whatever it is."""

from __future__ import annotations

import pytest
from easyscale.errors import SHOWN, plain, shown


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"'a\nb'"),
        (3, "3"),
        (10**5000, "a number of 16610 bits"),
        (Rude(), "a Rude that cannot be printed"),
        ([Rude()], "a list that cannot be printed"),
        (type("Lines", (), {"__repr__": lambda _: "one\ntwo"})(), "one two"),
    ],
    ids=["newline", "number", "huge number", "rude", "rude inside", "lines"],
)
def test_a_value_is_shown_on_one_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut_short_and_says_so() -> None:
    assert shown("x" * 2_000_000) == "'" + "x" * (SHOWN - 1) + "... (2000002 characters)"


def test_names_that_are_no_text_can_be_sent() -> None:
    assert plain("a\udc80b") == r"a\udc80b"
    assert plain("\u5b9f") == "\u5b9f"
