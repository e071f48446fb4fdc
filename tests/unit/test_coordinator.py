"""One coordinator leads, by lease; whatever a deposed one still decides does not apply."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.coordinator import Coordinator
from easyscale.coordinator.kv import Compare, Put
from easyscale.coordinator.transactions import Txn, apply
from easyscale.errors import OutcomeUnknownError, UnavailableError
from pictures import Board

TTL = 6.0


class Script:
    """A planner that has one thing to say."""

    def __init__(self, *txns: Txn) -> None:
        self.txns, self.asked = list(txns), 0

    def decide(self, view: Any, now: float) -> list[Txn]:
        self.asked += 1
        return self.txns


def say(what: str) -> Script:
    return Script(Txn("say", (), (Put(keys.PREFIX + "said", what.encode()),)))


def said(board: Board) -> str | None:
    entry = board.kv.get(keys.PREFIX + "said")
    return entry.value.decode() if entry else None


def candidate(board: Board, what: str) -> Coordinator:
    return Coordinator(board.kv, say(what), ttl=TTL)  # type: ignore[arg-type]


@pytest.fixture
def board() -> Board:
    return Board()


def test_one_of_two_leads_and_the_other_only_looks(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")
    assert one.tick(board.now)
    assert not other.tick(board.now)
    assert said(board) == "one"
    leader = board.view().leader
    assert leader is not None
    assert (leader.value.decode(), leader.lease > 0) == (one.id, True)


def test_who_resigns_is_followed_at_once(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")
    one.tick(board.now)
    one.resign()
    assert board.view().leader is None
    assert other.tick(board.now)
    one.resign()
    assert said(board) == "other", "resigning again takes nothing from the successor"
    assert board.view().leader is not None


def test_who_falls_silent_is_followed_when_its_lease_ends(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")
    one.tick(board.now)
    board.now += TTL - 0.5
    assert not other.tick(board.now)
    board.now += 0.5
    assert other.tick(board.now)
    assert said(board) == "other"


def test_a_leader_that_looks_often_enough_stays_leader(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")
    one.tick(board.now)
    for _ in range(20):
        board.now += TTL / 3
        assert one.tick(board.now)
        assert not other.tick(board.now)


def test_a_leader_that_slept_through_its_lease_sees_its_successor(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")
    one.tick(board.now)
    board.now += TTL
    other.tick(board.now)
    assert not one.tick(board.now)
    assert said(board) == "other"


def test_what_was_decided_before_being_deposed_does_not_apply(board: Board) -> None:
    one, other = candidate(board, "one"), candidate(board, "other")

    def overtaken(view: Any, now: float) -> list[Txn]:
        """The coordinator sleeps while it thinks, and another leads meanwhile."""
        board.now += TTL
        assert other.tick(board.now)
        return say("one").txns

    one._planner.decide = overtaken  # type: ignore[method-assign]
    one.tick(board.now)
    assert said(board) == "other"


def test_a_leader_keeps_its_guard_while_it_renews(board: Board) -> None:
    one = candidate(board, "one")
    one.tick(board.now)
    first = board.view().leader
    board.now += TTL / 2
    one.tick(board.now)
    assert board.view().leader == first, "the key is created once per reign"


def test_a_leader_that_lost_its_lease_to_an_outage_leads_again_under_a_new_one(board: Board) -> None:
    one = candidate(board, "one")
    one.tick(board.now)
    first = board.view().leader
    board.now += TTL + 1.0
    assert one.tick(board.now)
    second = board.view().leader
    assert first is not None
    assert second is not None
    assert second.create_revision > first.create_revision


class Down:
    """A store that does not answer any more."""

    address = "memory://down"

    def __init__(self, board: Board) -> None:
        self.kv, self.down = board.kv, True

    def __getattr__(self, name: str) -> Any:
        if self.down:
            raise UnavailableError("down")
        return getattr(self.kv, name)


def test_without_an_answer_nothing_is_assumed(board: Board) -> None:
    store = Down(board)
    it = Coordinator(store, say("x"), ttl=TTL)  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        it.tick(board.now)
    store.down = False
    assert it.tick(board.now)
    store.down = True
    it.resign()  # which must not raise


class Wakeful:
    """Watches wake at once: nothing here waits for a clock."""

    def wait(self, timeout: float) -> bool:
        time.sleep(0.001)
        return True

    def close(self) -> None:
        pass


def test_a_running_coordinator_outlives_an_outage_and_hands_over_at_its_end(board: Board) -> None:
    store = Down(board)
    store.watch = lambda *_: Wakeful()  # type: ignore[method-assign]
    planner = say("it")
    it, stop = Coordinator(store, planner, ttl=TTL), threading.Event()  # type: ignore[arg-type]
    thread = threading.Thread(target=it.run, args=(stop,))
    thread.start()
    try:
        store.down = False
        deadline = time.monotonic() + 20.0
        while said(board) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said(board) == "it"
    finally:
        stop.set()
        thread.join(20.0)
    assert not thread.is_alive()
    assert board.view().leader is None


def test_a_transaction_has_four_outcomes(board: Board) -> None:
    yes = Txn("x", (), (Put("k", b"v"),))
    assert apply(board.kv, yes) == "yes"
    assert apply(board.kv, Txn("x", (Compare("k", "mod", 0),), (Put("k", b"w"),))) == "no"
    assert apply(board.kv, Txn("x", (), (Put("k", b"w", lease=99),))) == "gone", "the lease"

    class Silent(Down):
        def txn(self, compares: Any, operations: Any) -> Any:
            raise OutcomeUnknownError("sent, not answered")

    assert apply(Silent(board), yes) == "unknown"  # type: ignore[arg-type]
