"""What a store on etcd must bear: members killed, paused and restarted, refused users, streams lost."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.etcd import OPEN_DEADLINE, EtcdStore
from easyscale.coordinator.kv import CALL_DEADLINE, Delete, Put, absent, unchanged
from easyscale.errors import AddressError, OutcomeUnknownError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from easyscale.coordinator.kv import KeyValueStore, Watch
    from etcd_service import EtcdCluster

pytestmark = pytest.mark.etcd

DEADLINE = 30.0


@pytest.fixture
def one(etcd_cluster: Callable[[int], EtcdCluster]) -> Iterator[EtcdCluster]:
    cluster = etcd_cluster(1)
    yield cluster
    cluster.close()


@pytest.fixture
def three(etcd_cluster: Callable[[int], EtcdCluster]) -> Iterator[EtcdCluster]:
    cluster = etcd_cluster(3)
    yield cluster
    cluster.close()


class Counter(threading.Thread):
    """Counts up by compare-and-swap and leaves a key for every count, until told to stop."""

    def __init__(self, store: KeyValueStore) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._goal = 0
        self._reached = threading.Event()
        self._ended = threading.Event()
        self.acknowledged: list[int] = []
        self.unknown = 0
        self.unavailable = 0

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            self._count(number)
            self.acknowledged.append(number)
            if number >= self._goal:
                self._reached.set()

    def advance(self, counts: int) -> None:
        """Wait until so many more counts are acknowledged."""
        self._reached.clear()
        self._goal = len(self.acknowledged) + counts
        assert self._reached.wait(DEADLINE), f"stuck at {len(self.acknowledged)}"

    def end(self) -> None:
        self._ended.set()
        self.join(DEADLINE)
        assert not self.is_alive()

    def _count(self, number: int) -> None:
        while True:
            try:
                if self._store.get(f"/counts/{number:06}") is not None:
                    return  # a write of unknown outcome had been applied
                seen = self._store.get("/counter")
                self._store.txn(
                    [absent("/counter") if seen is None else unchanged(seen)],
                    [Put("/counter", b"%d" % number), Put(f"/counts/{number:06}", b"%d" % number)],
                )
            except OutcomeUnknownError:
                self.unknown += 1
            except UnavailableError:
                self.unavailable += 1


def assert_counted_once(counter: Counter, store: KeyValueStore) -> None:
    """Every acknowledged count has its key, made by a transaction of its own, in order."""
    found = store.range("/counts/")
    assert [int(kv.value) for kv in found] == counter.acknowledged
    revisions = [kv.mod_revision for kv in found]
    assert revisions == sorted(set(revisions))
    assert all(kv.create_revision == kv.mod_revision for kv in found), "no count was written twice"
    last = store.get("/counter")
    assert last is not None
    assert int(last.value) == counter.acknowledged[-1]


def wakes(watch: Watch) -> bool:
    return watch.wait(DEADLINE)


def insist(store: KeyValueStore, operation: Put | Delete) -> None:
    """Write something that may be written twice, also through an election."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            store.txn([], [operation])
        except UnavailableError:
            assert time.monotonic() < deadline
        else:
            return


def test_killed_leader_every_acknowledged_write_is_there_once_and_the_store_needs_no_reopening(
    three: EtcdCluster, injected: Callable[[str], None]
) -> None:
    store = EtcdStore(three.address)
    counter = Counter(store)
    counter.start()
    for _ in range(2):
        counter.advance(20)
        killed = three.kill_leader()
        injected("SIGKILL of etcd's leader")
        counter.advance(20)
        three.restart(killed)
    counter.advance(20)
    counter.end()
    assert_counted_once(counter, store)
    store.close()


def test_paused_leader_its_silence_costs_one_call_not_the_store(
    three: EtcdCluster, injected: Callable[[str], None]
) -> None:
    leader = three.leader()
    store = EtcdStore("etcd://" + three.endpoints[leader] + "," + three.address.removeprefix("etcd://"))
    assert store.current().target == three.endpoints[leader]
    counter = Counter(store)
    counter.start()
    counter.advance(5)
    three.pause(leader)
    injected("SIGSTOP of etcd")
    counter.advance(20)
    three.resume(leader)
    counter.end()
    assert_counted_once(counter, store)
    store.close()


def test_all_members_paused_calls_end_in_time_as_unavailable_and_work_again_afterwards(three: EtcdCluster) -> None:
    store = EtcdStore(three.address)
    lease = store.grant(60)
    for member in range(3):
        three.pause(member)
    calls: list[Callable[[], object]] = [
        lambda: store.get("/a"),
        lambda: store.range("/a"),
        lambda: store.grant(10),
        lambda: store.keep_alive(lease),
        lambda: store.txn([], [Put("/a", b"1")]),
    ]

    def timed(call: Callable[[], object]) -> float:
        start = time.monotonic()
        with pytest.raises(UnavailableError):
            call()
        return time.monotonic() - start

    with ThreadPoolExecutor(len(calls)) as pool:
        took = list(pool.map(timed, calls))
    assert max(took) < 2 * CALL_DEADLINE
    with pytest.raises(OutcomeUnknownError):
        store.txn([], [Put("/a", b"1")])
    for member in range(3):
        three.resume(member)
    counter = Counter(store)
    counter.start()
    counter.advance(5)
    counter.end()
    store.close()


def test_connection_lost_after_a_write_was_sent_its_outcome_is_unknown(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    one.pause(0)
    with ThreadPoolExecutor(1) as pool:
        write = pool.submit(store.txn, [], [Put("/a", b"1")])
        assert not wait([write], timeout=0.5).done
        one.stop(0)
        with pytest.raises(OutcomeUnknownError, match="sent and not answered"):
            write.result()
    store.close()


def test_a_write_that_never_left_goes_to_the_next_member(one: EtcdCluster) -> None:
    store = EtcdStore("etcd://127.0.0.1:1," + one.address.removeprefix("etcd://"))
    for number in range(3):
        store._current = 0
        assert store.txn([], [Put("/a", b"%d" % number)]).succeeded
    found = store.get("/a")
    assert found is not None
    assert found.value == b"2"
    store.close()


def test_stopped_server_a_write_that_never_left_is_unavailable_and_a_restart_is_noticed(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    store.txn([], [Put("/a", b"kept")])
    one.stop(0)
    with pytest.raises(UnavailableError):
        store.get("/a")
    with pytest.raises(UnavailableError) as raised:
        store.txn([], [Put("/a", b"lost")])
    assert not isinstance(raised.value, OutcomeUnknownError)
    one.restart(0)
    found = store.get("/a")
    assert found is not None
    assert found.value == b"kept"
    store.close()


def test_a_watch_outlives_the_server_it_was_opened_on(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    watch = store.watch("/w/")
    assert wakes(watch)  # opened
    one.stop(0)
    one.restart(0)
    assert wakes(watch)  # opened again: something may have been missed
    store.txn([], [Put("/w/a", b"")])
    assert wakes(watch)
    start = time.monotonic()
    one.pause(0)
    watch.close()
    store.close()
    assert time.monotonic() - start < DEADLINE / 2
    one.resume(0)


def test_a_delete_that_a_watch_missed_and_that_was_compacted_away_still_wakes_it(
    three: EtcdCluster, injected: Callable[[str], None]
) -> None:
    others = "etcd://" + ",".join(three.endpoints[1:])
    with closing(EtcdStore("etcd://" + three.endpoints[0])) as store, closing(EtcdStore(others)) as elsewhere:
        insist(elsewhere, Put("/w/a", b""))
        watch = store.watch("/w/")
        while watch.wait(0.5):
            pass
        three.stop(0)  # it may have led
        insist(elsewhere, Delete("/w/a"))
        three.compact()
        injected("a DELETE compacted away while a watch was lost")
        three.restart(0)
        assert wakes(watch)
        assert store.get("/w/a") is None


def test_a_watch_on_a_server_that_stands_still_does_not_hold_up_who_waits_for_it(
    one: EtcdCluster, injected: Callable[[str], None]
) -> None:
    store = EtcdStore(one.address)
    watch = store.watch("/w/")
    assert wakes(watch)
    one.pause(0)
    injected("SIGSTOP of etcd")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(watch.wait, 0.3).result(timeout=DEADLINE) is False
    one.resume(0)
    store.txn([], [Put("/w/a", b"")])
    assert wakes(watch)
    store.close()


def test_a_watch_may_be_opened_while_nobody_answers(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    one.stop(0)
    watch = store.watch("/w/")
    assert not watch.wait(0.3)
    one.restart(0)
    assert wakes(watch)
    store.close()


def test_the_version_is_the_servers(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    assert [int(part) >= 0 for part in store.version().split(".")] == [True] * 3
    store.close()


def test_leases_are_rounded_up_to_whole_seconds(one: EtcdCluster) -> None:
    store = EtcdStore(one.address)
    lease = store.grant(2.2)
    assert _gateway(one, "/v3/lease/timetolive", {"ID": lease})["grantedTTL"] == "3"
    store.close()


def test_an_unreachable_address_is_refused_in_time_and_without_the_password() -> None:
    start = time.monotonic()
    with pytest.raises(AddressError) as raised:
        EtcdStore("etcd://me:s3cret@127.0.0.1:1,127.0.0.1:2")
    assert time.monotonic() - start < OPEN_DEADLINE + 5
    assert "etcd://127.0.0.1:1,127.0.0.1:2" in str(raised.value)
    assert "--kv" in raised.value.hint
    assert "s3cret" not in str(raised.value)


def test_a_paused_server_is_refused_in_time(one: EtcdCluster) -> None:
    one.pause(0)
    start = time.monotonic()
    with pytest.raises(AddressError):
        EtcdStore(one.address)
    assert time.monotonic() - start < OPEN_DEADLINE + 5


@pytest.mark.parametrize(
    "address",
    ["etcd://", "etcd://host:port", "etcd://host:2379/path", "etcd://:2379", "etcd://a:1,,b:2", "etcd://u:p#w@host:1"],
)
def test_an_address_that_cannot_be_read_says_how_to_write_it(address: str) -> None:
    with pytest.raises(AddressError, match="etcd://host:2379") as raised:
        EtcdStore(address)
    assert "p#w" not in str(raised.value)


def test_users_are_checked_and_an_expired_token_is_fetched_anew(one: EtcdCluster) -> None:
    with pytest.raises(AddressError, match="authentication is not enabled"):
        EtcdStore("etcd://root:secret@" + one.endpoints[0])
    _gateway(one, "/v3/auth/user/add", {"name": "root", "password": "p@ss:word"})
    _gateway(one, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    _gateway(one, "/v3/auth/enable", {})
    host = one.endpoints[0]
    for wrong in (host, f"root:wrong@{host}", f"nobody:p%40ss%3Aword@{host}"):
        with pytest.raises(AddressError, match="refuses us"):
            EtcdStore(f"etcd://{wrong}")
    store = EtcdStore(f"etcd://root:p%40ss%3Aword@{host}")
    assert store.address == f"etcd://{host}"
    watch = store.watch("/a")
    assert wakes(watch)
    assert store.txn([], [Put("/a", b"1")]).succeeded
    one.restart(0)
    lease = store.grant(60)
    calls: list[Callable[[], object]] = [
        lambda: store.get("/a"),
        lambda: store.keep_alive(lease),
        lambda: store.txn([], [Put("/a", b"2", lease)]),
        lambda: store.revoke(lease),
    ]
    for call in calls:
        store.current().token = "expired.1"
        call()
    store.close()


def _gateway(cluster: EtcdCluster, path: str, body: dict[str, object]) -> dict[str, str]:
    request = urllib.request.Request(f"http://{cluster.endpoints[0]}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, str] = json.load(answer)
        return found
