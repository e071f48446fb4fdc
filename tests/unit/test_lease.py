"""Leases as their holder sees them, driven by a clock and a store that the test turns."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.lease import Lease, LeaseKeeper
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import AddressError, UnavailableError
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

TTL = 9.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FlakyKV(MemoryKV):
    """Fails or delays renewals when told to, and counts them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("flaky", clock)
        self._time = clock
        self.renewals = 0
        self.error: Exception | None = None
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def keep_alive(self, lease: int) -> bool:
        self.renewals += 1
        if self.error is not None:
            raise self.error
        self.before()
        alive = super().keep_alive(lease)
        self.after()
        return alive


class Scene:
    """A keeper without its thread: `run` does what the thread would do."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = FlakyKV(self.clock)
        self.lost: list[str] = []
        self.keeper = LeaseKeeper(self.store, TTL, self.lost.append, clock=self.clock)

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while (pause := self.keeper.step()) is not None and self.clock.now + pause <= end:
            self.clock.now += pause
        self.clock.now = end


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_lease_is_due_at_a_third_and_over_at_its_end() -> None:
    lease = Lease(7, 9.0, 100.0)
    assert lease.deadline == 109.0
    assert [lease.renew_due(now) for now in (100.0, 102.9, 103.0)] == [False, False, True]
    assert [lease.expired(now) for now in (100.0, 108.9, 109.0)] == [False, False, True]


@given(st.lists(st.floats(0, 1e6)), st.floats(0.1, 1e3))
def test_renewals_that_arrive_out_of_order_never_bring_the_deadline_back(sent: list[float], ttl: float) -> None:
    lease = Lease(1, ttl, 0.0)
    for each in sent:
        later = lease.renewed(each)
        assert later.deadline >= lease.deadline
        lease = later
    assert lease.sent == max([0.0, *sent])


def test_a_kept_lease_lives_for_as_long_as_the_store_answers(scene: Scene) -> None:
    lease = scene.keeper.grant()
    scene.run(20 * TTL)
    assert scene.lost == []
    assert scene.keeper.lease is not None
    assert scene.keeper.lease.id == lease.id
    assert scene.store.renewals == pytest.approx(60, abs=2)


def test_one_transient_error_does_not_end_renewal(scene: Scene) -> None:
    scene.keeper.grant()
    scene.run(TTL / 3 - 0.1)
    scene.store.error = UnavailableError("a hiccup")
    scene.run(0.2)
    assert scene.store.renewals == 1
    scene.store.error = None
    scene.run(10 * TTL)
    assert scene.lost == []
    assert scene.store.renewals > 20


@pytest.mark.parametrize(
    "error", [UnavailableError("down"), AddressError("refuses us"), RuntimeError("a bug in a client")], ids=repr
)
def test_errors_of_any_kind_end_a_lease_only_at_its_deadline_and_only_once(scene: Scene, error: Exception) -> None:
    scene.keeper.grant()
    scene.store.error = error
    scene.run(TTL - 0.001)
    assert scene.lost == []
    assert scene.store.renewals > 5
    scene.run(0.001)
    assert len(scene.lost) == 1
    assert f"not renewed for {TTL}" in scene.lost[0]
    assert str(error) in scene.lost[0]
    assert scene.keeper.lease is None
    scene.run(5 * TTL)
    assert len(scene.lost) == 1


def test_an_outage_shorter_than_the_ttl_costs_nothing(scene: Scene) -> None:
    scene.keeper.grant()
    for _ in range(10):
        scene.store.error = UnavailableError("down")
        scene.run(TTL / 2)
        scene.store.error = None
        scene.run(TTL)
    assert scene.lost == []


def test_a_renewal_answered_late_counts_from_before_it_was_sent(scene: Scene) -> None:
    first = scene.keeper.grant()

    def delay() -> None:
        scene.clock.now += 2.0

    scene.store.after = delay
    scene.run(TTL / 3)
    scene.keeper.step()
    renewed = scene.keeper.lease
    assert renewed is not None
    assert renewed.sent == pytest.approx(first.sent + TTL / 3)
    assert renewed.deadline == pytest.approx(first.sent + TTL / 3 + TTL)


def test_an_answer_after_the_deadline_does_not_bring_a_lease_back(scene: Scene) -> None:
    scene.keeper.grant()

    def stall() -> None:
        scene.clock.now += TTL

    scene.store.after = stall
    scene.run(TTL / 3)
    scene.keeper.step()
    scene.keeper.step()
    assert len(scene.lost) == 1
    assert scene.keeper.lease is None


def test_a_grant_answered_late_counts_from_before_it_was_sent(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    start, grant = scene.clock.now, scene.store.grant

    def slow(ttl: float) -> int:
        scene.clock.now += 4.0
        return grant(ttl)

    monkeypatch.setattr(scene.store, "grant", slow)
    assert scene.keeper.grant().deadline == start + TTL


def test_a_lease_that_the_store_has_ended_is_lost_at_once(scene: Scene) -> None:
    lease = scene.keeper.grant()
    scene.store.revoke(lease.id)
    scene.run(TTL / 3)
    scene.keeper.step()
    assert len(scene.lost) == 1
    assert "the store has ended it" in scene.lost[0]
    assert scene.keeper.lease is None


def test_after_a_loss_a_new_lease_is_granted_on_request_and_kept(scene: Scene) -> None:
    first = scene.keeper.grant()
    scene.store.revoke(first.id)
    scene.run(TTL)
    second = scene.keeper.grant()
    assert second.id != first.id
    scene.run(10 * TTL)
    assert len(scene.lost) == 1
    assert scene.keeper.lease is not None
    assert scene.keeper.lease.id == second.id


def test_the_holders_deadline_is_never_later_than_the_stores(scene: Scene) -> None:
    held = scene.keeper.grant()

    def delay() -> None:
        scene.clock.now += 0.7

    scene.store.before = scene.store.after = delay
    scene.run(3 * TTL)
    lease = scene.keeper.lease
    assert lease is not None
    assert lease.sent > held.sent
    scene.store.txn([], [])
    scene.clock.now = lease.deadline - 0.001
    scene.store.before = scene.store.after = lambda: None
    assert scene.store.keep_alive(lease.id), "as long as the holder believes in it, the store must too"


def test_the_thread_renews_reports_a_loss_takes_a_new_lease_and_gives_it_back() -> None:
    store = MemoryKV()
    renewed, lost = threading.Event(), threading.Event()
    keep_alive = store.keep_alive

    def watched(lease: int) -> bool:
        alive = keep_alive(lease)
        if alive:
            renewed.set()
        return alive

    store.keep_alive = watched  # type: ignore[method-assign]
    ids: list[int] = []

    def on_lost(_: str) -> None:
        ids.append(keeper.grant().id)
        lost.set()

    keeper = LeaseKeeper(store, 0.15, on_lost)
    keeper.start()
    ids.append(keeper.grant().id)
    assert renewed.wait(10)
    store.revoke(ids[0])
    assert lost.wait(10)
    renewed.clear()
    assert renewed.wait(10)
    keeper.close()
    assert len(ids) == 2
    assert not store.keep_alive(ids[1])
    assert keeper.lease is None


def test_closing_does_not_raise_when_the_store_is_gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def revoke(_: int) -> None:
        raise UnavailableError("down")

    monkeypatch.setattr(scene.store, "revoke", revoke)
    scene.keeper.grant()
    scene.keeper.close()
    assert scene.lost == []
    assert scene.keeper.step() is None


def test_an_hour_in_which_a_twentieth_of_all_renewals_fail_loses_no_lease(scene: Scene) -> None:
    chance, failed = random.Random(8), []

    def now_and_then() -> None:
        if chance.random() < 0.05:
            failed.append(scene.clock.now)
            raise UnavailableError("no answer")

    scene.store.before = scene.store.after = now_and_then  # the request is lost, or the answer
    lease = scene.keeper.grant()
    scene.run(3600.0)
    assert len(failed) > 50
    assert scene.lost == []
    assert scene.keeper.lease is not None
    assert scene.keeper.lease.id == lease.id, "still the first one: nothing was claimed or computed again"
    assert scene.store.renewals < 3600 / (TTL / 3) + 3 * len(failed), "no storm of retries"
