"""The block that ends a test run says what was tried, in numbers."""

from __future__ import annotations

from collections import Counter

from closing import closing


def test_all_that_was_tried_is_told_in_numbers() -> None:
    counts = {
        "seed": Counter({"simulation": 500, "storage": 20}),
        "fault": Counter({"an answer lost": 3, "SIGKILL of a worker": 40}),
        "planted": Counter({"no fencing": 1}),
    }
    assert closing({"passed": 7, "failed": 0, "skipped": 1}, counts) == [
        "tests: 8 (7 passed, 1 skipped)",
        "simulated seeds: 520",
        "injected faults: 43, of 2 kinds",
        "    SIGKILL of a worker 40; an answer lost 3",
        "planted bugs found: 1, of 1 kinds",
        "    no fencing 1",
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
