"""What every key-value store must do, run on all of them."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.kv import (
    MAX_VALUE,
    Compare,
    Delete,
    KeyValueStore,
    Put,
    Watch,
    absent,
    open_kv,
    unchanged,
)
from easyscale.errors import AddressError, LeaseGoneError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from etcd_service import EtcdCluster

LONG_TTL = 60.0
DEADLINE = 10.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def three_members(etcd_cluster: Callable[[], EtcdCluster]) -> Iterator[EtcdCluster]:
    cluster = etcd_cluster()
    yield cluster
    cluster.close()


@pytest.fixture(
    params=[
        "memory",
        "embedded",
        pytest.param("etcd-1", marks=pytest.mark.etcd),
        pytest.param("etcd-3", marks=pytest.mark.etcd),
    ]
)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    match request.param:
        case "memory":
            return f"memory://contract-{next(_numbers)}"
        case "embedded":
            return f"file://{tmp_path_factory.mktemp('kv')}/new folder/kv.sqlite"
        case "etcd-1":
            return str(request.getfixturevalue("etcd").address)
        case _:
            return str(request.getfixturevalue("three_members").address)


@pytest.fixture
def store(address: str) -> Iterator[KeyValueStore]:
    store = open_kv(address)
    yield store
    store.close()


@pytest.fixture
def ttl(store: KeyValueStore) -> float:
    """The shortest lease that this store can keep to."""
    return 1.0 if store.address.startswith("etcd") else 0.3


@pytest.fixture
def prefix() -> str:
    return f"/contract/{next(_numbers)}/"


def put(store: KeyValueStore, key: str, value: bytes = b"v", lease: int = 0) -> int:
    result = store.txn([], [Put(key, value, lease)])
    assert result.succeeded
    return result.revision


def eventually(condition: Callable[[], bool], watch: Watch) -> bool:
    """Whether it comes true before the deadline; looks whenever the watch says so, and now and then."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if condition():
            return True
        watch.wait(0.1)
    return False


def drain(watch: Watch) -> None:
    """Take the hints that a watch gives for having been opened."""
    while watch.wait(0.3):
        pass


def test_a_store_is_what_the_protocol_asks_for(store: KeyValueStore) -> None:
    assert isinstance(store, KeyValueStore)
    assert isinstance(store.watch("/"), Watch)


def test_a_key_that_was_put_is_read_back_by_every_opener(store: KeyValueStore, address: str, prefix: str) -> None:
    put(store, prefix + "a", b"first")
    other = open_kv(address)
    found = other.get(prefix + "a")
    other.close()
    assert found is not None
    assert (found.key, found.value, found.lease) == (prefix + "a", b"first", 0)


def test_a_missing_key_is_none(store: KeyValueStore, prefix: str) -> None:
    assert store.get(prefix + "nothing") is None
    assert store.range(prefix) == []


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"\xff" * 50_000], ids=["empty", "nul", "all", "big"])
def test_values_are_any_bytes(store: KeyValueStore, prefix: str, value: bytes) -> None:
    put(store, prefix + "a", value)
    found = store.get(prefix + "a")
    assert found is not None
    assert found.value == value


def test_a_deleted_key_is_gone_and_deleting_it_again_is_no_error(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "a")
    assert store.txn([], [Delete(prefix + "a")]).succeeded
    assert store.get(prefix + "a") is None
    assert store.txn([], [Delete(prefix + "a")]).succeeded


def test_a_prefix_is_deleted_with_all_below_it_and_nothing_else(store: KeyValueStore, prefix: str) -> None:
    for key in ("a", "a/b", "a/b/c", "ab", "b", "A"):
        put(store, prefix + key)
    store.txn([], [Delete(prefix + "a/", prefix=True)])
    assert [kv.key.removeprefix(prefix) for kv in store.range(prefix)] == ["A", "a", "ab", "b"]


def test_a_range_is_sorted_by_key_and_bounded_by_its_prefix(store: KeyValueStore, prefix: str) -> None:
    keys = [prefix + key for key in ("b", "a/2", "a/10", "a", "~", "a~", "Z")]
    for key in keys:
        put(store, key)
    assert [kv.key for kv in store.range(prefix)] == sorted(keys)
    assert [kv.key for kv in store.range(prefix + "a/")] == [prefix + "a/10", prefix + "a/2"]


def test_create_and_mod_revisions_follow_etcd(store: KeyValueStore, prefix: str) -> None:
    key = prefix + "a"
    first = put(store, key)
    second = put(store, key, b"w")
    found = store.get(key)
    assert found is not None
    assert (found.create_revision, found.mod_revision) == (first, second)
    assert first < second
    store.txn([], [Delete(key)])
    third = put(store, key)
    found = store.get(key)
    assert found is not None
    assert (found.create_revision, found.mod_revision) == (third, third)
    assert third > second


def test_all_writes_of_a_transaction_have_one_revision(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "old")
    result = store.txn([], [Put(prefix + "a", b"1"), Put(prefix + "b", b"2"), Delete(prefix + "old")])
    assert {kv.mod_revision for kv in store.range(prefix)} == {result.revision}
    assert [kv.key for kv in store.range(prefix)] == [prefix + "a", prefix + "b"]


def test_a_transaction_whose_comparison_fails_changes_nothing(store: KeyValueStore, prefix: str) -> None:
    revision = put(store, prefix + "a", b"old")
    result = store.txn(
        [absent(prefix + "b"), absent(prefix + "a")],
        [Put(prefix + "a", b"new"), Put(prefix + "b", b"new"), Delete(prefix + "a/", prefix=True)],
    )
    assert not result.succeeded
    assert result.revision >= revision
    assert [(kv.key, kv.value) for kv in store.range(prefix)] == [(prefix + "a", b"old")]


def test_a_transaction_without_operations_only_asks(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "a")
    assert store.txn([absent(prefix + "b")], []).succeeded
    assert not store.txn([absent(prefix + "a")], []).succeeded


def test_a_key_written_twice_in_one_transaction_is_refused(store: KeyValueStore, prefix: str) -> None:
    twice: list[list[Put | Delete]] = [
        [Put(prefix + "a", b"1"), Put(prefix + "a", b"2")],
        [Put(prefix + "a", b"1"), Delete(prefix + "a")],
        [Delete(prefix, prefix=True), Put(prefix + "a", b"1")],
    ]
    for operations in twice:
        with pytest.raises(ValueError, match="twice"):
            store.txn([], operations)
    assert store.range(prefix) == []


def test_a_value_that_is_too_large_is_refused_whole_and_names_its_key(store: KeyValueStore, prefix: str) -> None:
    operations = [Put(f"{prefix}small", b"x" * MAX_VALUE), Put(f"{prefix}large", b"x" * (MAX_VALUE + 1))]
    with pytest.raises(TooLargeError, match=rf"{prefix}large' would have 100,001 bytes of at most 100,000"):
        store.txn((), operations)
    assert store.range(prefix) == []
    assert store.txn((), operations[:1]).succeeded


def test_unchanged_sees_every_write_also_of_the_same_value(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "a")
    seen = store.get(prefix + "a")
    assert seen is not None
    assert store.txn([unchanged(seen)], []).succeeded
    put(store, prefix + "a")
    assert not store.txn([unchanged(seen)], [Put(prefix + "a", b"mine")]).succeeded


def test_the_create_revision_fences_a_key_that_was_removed_and_made_again(store: KeyValueStore, prefix: str) -> None:
    key = prefix + "claim"
    first = put(store, key)
    put(store, key, b"renewed")
    mine = Compare(key, "create", first)
    assert store.txn([mine], []).succeeded
    store.txn([], [Delete(key)])
    assert not store.txn([mine], []).succeeded
    put(store, key)
    assert not store.txn([mine], [Put(prefix + "head", b"zombie")]).succeeded
    assert store.get(prefix + "head") is None


def test_many_racing_creators_have_one_winner(store: KeyValueStore, prefix: str) -> None:
    start = threading.Barrier(8)

    def create(name: int) -> bool:
        start.wait()
        return store.txn([absent(prefix + "a")], [Put(prefix + "a", b"%d" % name)]).succeeded

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    found = store.get(prefix + "a")
    assert found is not None
    assert [b"%d" % name for name, winner in enumerate(won) if winner] == [found.value]


def test_increments_by_compare_and_swap_from_many_threads_are_all_counted(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "n", b"0")

    def increment(_: int) -> None:
        for _ in range(10):
            while True:
                seen = store.get(prefix + "n")
                assert seen is not None
                if store.txn([unchanged(seen)], [Put(prefix + "n", b"%d" % (int(seen.value) + 1))]).succeeded:
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(4)))
    found = store.get(prefix + "n")
    assert found is not None
    assert found.value == b"40"


def test_a_range_never_shows_half_a_transaction(store: KeyValueStore, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(5)]
    done = threading.Event()

    def write() -> None:
        for number in range(60):
            store.txn([], [Put(key, b"%d" % number) for key in keys])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    mixed = 0
    while not done.is_set():
        mixed += len({kv.value for kv in store.range(prefix)}) > 1
    writer.join()
    assert mixed == 0
    assert len(store.range(prefix)) == 5


def test_a_lease_that_is_not_renewed_takes_its_keys_with_it(store: KeyValueStore, prefix: str, ttl: float) -> None:
    lease = store.grant(ttl)
    put(store, prefix + "leased", lease=lease)
    put(store, prefix + "free")
    found = store.get(prefix + "leased")
    assert found is not None
    assert found.lease == lease
    watch = store.watch(prefix)
    assert eventually(lambda: store.get(prefix + "leased") is None, watch)
    assert [kv.key for kv in store.range(prefix)] == [prefix + "free"]
    assert not store.keep_alive(lease)


def test_a_renewed_lease_outlives_its_ttl(store: KeyValueStore, prefix: str, ttl: float) -> None:
    lease, start = store.grant(ttl), time.monotonic()
    put(store, prefix + "a", lease=lease)
    watch = store.watch(prefix)
    while time.monotonic() < start + 2.5 * ttl:
        assert store.keep_alive(lease)
        watch.wait(ttl / 4)
    assert store.get(prefix + "a") is not None
    store.revoke(lease)


def test_revoking_a_lease_removes_its_keys_at_once_and_twice_is_no_error(store: KeyValueStore, prefix: str) -> None:
    lease, other = store.grant(LONG_TTL), store.grant(LONG_TTL)
    store.txn([], [Put(prefix + "a", b"", lease), Put(prefix + "b", b"", lease), Put(prefix + "c", b"", other)])
    before = store.txn([], []).revision
    store.revoke(lease)
    assert [kv.key for kv in store.range(prefix)] == [prefix + "c"]
    assert store.txn([], []).revision == before + 1, "the keys of a lease go in one transaction"
    assert not store.keep_alive(lease)
    store.revoke(lease)
    store.revoke(other)


def test_a_put_under_a_lease_that_is_gone_is_refused_whole(store: KeyValueStore, prefix: str) -> None:
    lease = store.grant(LONG_TTL)
    store.revoke(lease)
    with pytest.raises(LeaseGoneError, match=str(lease)):
        store.txn([], [Put(prefix + "a", b""), Put(prefix + "b", b"", lease)])
    assert store.range(prefix) == []


def test_a_failed_comparison_comes_before_a_lease_that_is_gone(store: KeyValueStore, prefix: str) -> None:
    put(store, prefix + "a")
    lease = store.grant(LONG_TTL)
    store.revoke(lease)
    assert not store.txn([absent(prefix + "a")], [Put(prefix + "b", b"", lease)]).succeeded


def test_a_key_put_again_without_its_lease_outlives_it(store: KeyValueStore, prefix: str) -> None:
    lease = store.grant(LONG_TTL)
    put(store, prefix + "a", b"1", lease)
    put(store, prefix + "a", b"2")
    store.revoke(lease)
    found = store.get(prefix + "a")
    assert found is not None
    assert (found.value, found.lease) == (b"2", 0)


def test_leases_have_numbers_of_their_own(store: KeyValueStore) -> None:
    leases = [store.grant(LONG_TTL) for _ in range(5)]
    assert len(set(leases)) == 5
    assert 0 not in leases
    for lease in leases:
        store.revoke(lease)
    assert store.grant(LONG_TTL) not in leases


def test_a_watch_wakes_on_a_put_a_delete_and_the_end_of_a_lease(store: KeyValueStore, prefix: str, ttl: float) -> None:
    watch = store.watch("/nobody/", prefix)
    drain(watch)
    put(store, prefix + "a")
    assert watch.wait(1.5), "put"
    store.txn([], [Delete(prefix + "a")])
    assert watch.wait(1.5), "delete"
    put(store, prefix + "b", lease=store.grant(ttl))
    assert watch.wait(1.5), "put under a lease"
    assert watch.wait(ttl + 3.0), "lease ended"
    assert store.get(prefix + "b") is None


def test_a_watch_wakes_a_thread_that_waits_and_hears_of_other_openers(
    store: KeyValueStore, address: str, prefix: str
) -> None:
    watch, other = store.watch(prefix), open_kv(address)
    drain(watch)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, DEADLINE)
        put(other, prefix + "a")
        assert waiting.result(), "woken, and not by its deadline"
    other.close()


def test_a_watch_returns_false_after_its_timeout_and_keeps_nothing_back(store: KeyValueStore, prefix: str) -> None:
    watch = store.watch(prefix)
    drain(watch)
    start = time.monotonic()
    assert not watch.wait(0.2)
    assert 0.2 <= time.monotonic() - start < DEADLINE


def test_closing_a_watch_sends_home_whoever_waits(store: KeyValueStore, prefix: str) -> None:
    watch = store.watch(prefix)
    drain(watch)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, 30.0)
        start = time.monotonic()
        watch.close()
        assert not waiting.result()
    assert time.monotonic() - start < 5.0
    watch.close()


def test_close_may_be_repeated_and_ends_the_watches(address: str, prefix: str) -> None:
    before = set(threading.enumerate())
    store = open_kv(address)
    store.watch(prefix)
    put(store, prefix + "a")
    store.close()
    store.close()
    # gRPC keeps one thread for all channels of a process; ours must be gone
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("easyscale")]


def test_the_address_says_where_and_never_the_password(store: KeyValueStore, address: str) -> None:
    assert store.address == address.replace(" ", "%20")


@pytest.mark.parametrize("address", ["redis://x", "kv.sqlite", ""])
def test_an_unknown_scheme_is_an_address_error_that_says_what_to_use(address: str) -> None:
    with pytest.raises(AddressError, match="etcd://host:2379"):
        open_kv(address)
