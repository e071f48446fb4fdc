"""A worker whose lease was lost loses its assignment too: what only it holds in memory is kept until it has it back."""

from __future__ import annotations

import pytest
from desk import Desk, sent
from easyscale.pipeline import messages
from easyscale.pipeline.agent import KEEP_SECONDS


@pytest.fixture
def desk() -> Desk:
    """It has stopped in generation 1 with a state that nobody has committed, and is no member any more."""
    desk = Desk()
    desk.running()
    desk.tell(messages.Idle(generation=1, held=6, reason="yield"))
    desk.plan(2)
    desk.assign(None)
    return desk


def test_a_state_that_is_not_committed_is_there_when_the_assignment_comes_back(desk: Desk) -> None:
    for _ in range(3):
        assert sent(desk.act(after=1.0)) == []
    desk.assign("job")
    desk.act()
    desk.plan(3, "me")
    desk.act()
    assert desk.mine() == {(3, 0): 6}


def test_it_is_not_kept_for_ever(desk: Desk) -> None:
    assert sent(desk.act(after=KEEP_SECONDS)) == [messages.Stop()]


def test_nothing_is_kept_that_is_committed_or_that_nobody_wants(desk: Desk) -> None:
    desk.head(6)
    assert sent(desk.act()) == [messages.Stop()]


def test_nothing_is_kept_of_a_job_that_is_over(desk: Desk) -> None:
    desk.status(state="cancelled")
    assert sent(desk.act()) == [messages.Stop()]


def test_nothing_is_kept_from_another_job(desk: Desk) -> None:
    desk.assign("another")
    assert sent(desk.act()) == [messages.Stop()]
