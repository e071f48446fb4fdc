"""The decisions of workers and coordinators on every real store: what two of them want at once, one gets."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from desk import Desk, sent
from easyscale.coordinator import keys, views
from easyscale.coordinator.coordinator import Coordinator
from easyscale.coordinator.kv import Delete, KeyValueStore, open_kv
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.transactions import apply
from easyscale.pipeline import messages
from easyscale.pipeline.actions import Write
from pictures import Board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE = 10.0
TTL = 1.0

_numbers = itertools.count()


@pytest.fixture(params=["memory", "embedded", pytest.param("etcd", marks=pytest.mark.etcd)])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    """A store in which nobody has anything yet."""
    match request.param:
        case "memory":
            address = f"memory://claims-{next(_numbers)}"
        case "embedded":
            address = f"file://{tmp_path}/kv.sqlite"
        case _:
            address = str(request.getfixturevalue("etcd").address)
    store = open_kv(address)
    store.txn((), (Delete(keys.PREFIX, prefix=True),))
    yield store
    store.txn((), (Delete(keys.PREFIX, prefix=True),))
    store.close()


class DeskAt(Desk):
    """An agent in front of this store."""

    def __init__(self, kv: KeyValueStore) -> None:
        super().__init__()
        self.kv = kv  # type: ignore[assignment]

    def _write(self, action: Write) -> None:
        self.agent.on_outcome(action.txn, apply(self.kv, action.txn))


def test_a_claim_under_a_lease_that_ran_out_while_it_waited_fails_and_no_work_starts(
    kv: KeyValueStore, injected: Callable[[str], None]
) -> None:
    desk = DeskAt(kv)
    desk.prepared()
    desk.agent.on_lease(kv.grant(TTL))
    desk.act()
    desk.plan(1, "me")
    view = desk.look()
    end = time.monotonic() + DEADLINE
    while kv.get(keys.worker("me")) is not None:
        assert time.monotonic() < end
        time.sleep(0.05)
    injected("a lease that ran out before the claim")

    wanted = [action for action in desk.agent.decide("job", view, 1.0) if isinstance(action, Write)]
    (claim,) = [action.txn for action in wanted if action.txn.tag == "claim"]
    assert apply(kv, claim) == "gone"
    for _ in range(3):
        assert not [message for message in sent(desk.act()) if isinstance(message, messages.Run)]
    assert desk.look().all_claims == {}

    assert desk.agent.lease == 0, "the refused write tells that it is over"
    desk.hold_lease()
    assert "claim" in desk.wrote(desk.act()), "under a lease that lives it is made"
    assert desk.mine() == {(1, 0): 0}


def test_of_two_agents_that_read_the_same_old_plan_one_has_the_claim(kv: KeyValueStore) -> None:
    desks = [DeskAt(kv), DeskAt(kv)]
    desks[0].prepared()
    desks[0].plan(1, "me")
    view = desks[0].look()
    desks[1].hold_lease()
    desks[1].agent.runner = desks[0].agent.runner
    claims = [
        action.txn
        for desk in desks
        for action in desk.agent.decide("job", view, 1.0)
        if isinstance(action, Write) and action.txn.tag == "claim"
    ]
    assert len(claims) == 2
    assert [apply(kv, claim) for claim in claims] == ["yes", "no"]
    assert len(desks[0].look().all_claims) == 1


def test_of_two_coordinators_that_read_the_same_old_picture_one_decides(kv: KeyValueStore) -> None:
    board = Board()
    board.kv = kv  # type: ignore[assignment]
    board.job()
    for worker in ("a", "b"):
        board.worker(worker, "running", step=7)
        board.put(keys.assigned(worker), "job")
    board.plan(3, "a", "b")
    board.claims(0, 0)
    board.status(state="running")
    board.gone("b")
    old = board.view()
    decisions = [Planner(settle=0.0).decide(old, 0.0) for _ in range(2)]
    outcomes = [[apply(kv, txn) for txn in txns if txn.tag == "decide job"] for txns in decisions]
    assert outcomes == [["yes"], ["no"]]
    now = views.parse(kv.range(keys.PREFIX)).jobs["job"]
    assert now.generation == 4
    assert now.status is not None
    assert now.status.value.attempts == {"died": 1}, "counted once"


def test_a_coordinator_whose_revoked_lease_is_renewed_happily_does_not_lead_by_it(
    kv: KeyValueStore, monkeypatch: pytest.MonkeyPatch, injected: Callable[[str], None]
) -> None:
    monkeypatch.setattr(kv, "keep_alive", lambda lease: True)
    it = Coordinator(kv)
    assert it.tick(0.0)
    kv.revoke(it._lease)
    injected("a revoked lease that is renewed happily")
    assert not it.tick(1.0)
    assert it.tick(2.0), "with a lease that lives"
    it.resign()
