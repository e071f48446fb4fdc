"""What an agent says of an exchange that broke: at once, in ids, and of the newest generation only."""

from __future__ import annotations

import msgspec
import pytest
from desk import READY, Desk
from easyscale.coordinator import records
from easyscale.pipeline import messages


@pytest.fixture
def desk() -> Desk:
    return Desk()


def said(desk: Desk) -> records.WorkerRecord:
    return desk.view().workers["me"].value


def test_a_broken_exchange_is_told_at_once_with_the_ids_of_the_lost(desk: Desk) -> None:
    desk.running("b", "c")
    assert said(desk).broken is None
    desk.tell(messages.Broken(generation=1, lost=(2,), why="connection closed"))
    desk.tell(messages.Idle(generation=1, held=5, reason="yield"))
    desk.act()
    assert said(desk).broken == records.Broken(generation=1, lost=("c",), why="connection closed")


def test_a_break_with_nobody_to_blame_is_told_too(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Broken(generation=1, why="timeout"))
    desk.act()
    assert said(desk).broken == records.Broken(generation=1, why="timeout")


def test_what_broke_is_forgotten_with_the_next_generation(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Broken(generation=1, lost=(1,), why="closed"))
    desk.tell(messages.Idle(generation=1, held=5, reason="yield"))
    desk.plan(2, "me")
    desk.act()
    assert said(desk).broken is not None
    desk.act()
    assert said(desk).broken is None


def test_a_break_of_another_generation_is_not_told(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Broken(generation=7, lost=(1,), why="closed"))
    desk.act()
    assert said(desk).broken is None


def test_nobody_blames_itself(desk: Desk) -> None:
    desk.running("b")
    desk.tell(messages.Broken(generation=1, lost=(0, 1), why="closed"))
    desk.act()
    assert said(desk).broken == records.Broken(generation=1, lost=("b",), why="closed")


def test_the_address_where_the_runner_is_met_is_in_the_record_and_in_the_claim(desk: Desk) -> None:
    desk.hold_lease()
    desk.job()
    desk.assign("job")
    desk.probe(torch="2")
    desk.act()
    assert said(desk).address == ""
    desk.tell(msgspec.structs.replace(READY, address="10.0.0.1:7", gpu="GPU-1"))
    desk.act()
    assert said(desk).address == "10.0.0.1:7"
    desk.plan(1, "me")
    desk.act()
    claim = desk.look().claims[0].value
    assert (claim.address, claim.gpu) == ("10.0.0.1:7", "GPU-1")
    desk.agent.on_exit("ended by SIGKILL")
    desk.act()
    assert said(desk).address == "", "nobody is met there any more"
