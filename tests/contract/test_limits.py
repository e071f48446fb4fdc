"""A job of hundreds of ESTs, workers and attempts on a real etcd: nothing outgrows what etcd takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import keys, records, views
from easyscale.coordinator.etcd import EtcdStore
from easyscale.coordinator.kv import Delete, Put
from easyscale.coordinator.planner import Planner
from easyscale.coordinator.transactions import Txn, apply
from easyscale.pipeline.agent import KEPT_NOTES, MAX_MESSAGE, MAX_REFUSAL, MAX_TRACEBACK
from pictures import worker_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from etcd_service import EtcdCluster

pytestmark = pytest.mark.etcd

ETCD_OPERATIONS = 128
"""`--max-txn-ops` as etcd ships."""

ETCD_REQUEST_BYTES = 1_572_864
"""`--max-request-bytes` as etcd ships."""

VALUE_BYTES = 100_000
WORKERS = 300
ATTEMPTS = 3


@pytest.fixture
def store(etcd_cluster: Callable[..., EtcdCluster]) -> Iterator[EtcdStore]:
    cluster = etcd_cluster(1)
    store = EtcdStore(cluster.address)
    yield store
    store.close()
    cluster.close()


def put_all(store: EtcdStore, operations: Sequence[Put | Delete], at_once: int = ETCD_OPERATIONS) -> None:
    """What in truth each worker writes for itself."""
    for start in range(0, len(operations), at_once):
        assert store.txn((), operations[start : start + at_once]).succeeded


def size(txn: Txn) -> int:
    """Bytes that a transaction brings; its framing comes on top."""
    return sum(len(op.key) + (len(op.value) if isinstance(op, Put) else 0) for op in txn.operations)


def test_this_etcd_refuses_what_is_too_large(store: EtcdStore) -> None:
    many = [Put(f"/a/{i}", b"") for i in range(ETCD_OPERATIONS + 1)]
    with pytest.raises(ValueError, match="too many operations"):
        store.txn((), many)
    assert store.txn((), many[1:]).succeeded
    large = [Put(f"/a/{i}", b"x" * VALUE_BYTES) for i in range(ETCD_REQUEST_BYTES // VALUE_BYTES + 1)]
    with pytest.raises(ValueError, match="too large"):
        store.txn((), large)
    assert store.txn((), large[2:]).succeeded


def test_hundreds_of_workers_that_all_fail_again_and_again_fit_into_etcd(store: EtcdStore) -> None:
    """Every attempt: all claim, half of them report with the longest words there are, the others vanish."""
    refusals = {f"{i:064d}": "r" * MAX_REFUSAL for i in range(KEPT_NOTES)}
    spec = records.JobRecord(
        name="job", spec="s", code="c", steps=100, ests=WORKERS, retries=records.Retry(died=10**6, raised=10**6)
    )
    put_all(store, [Put(keys.spec("job"), records.encode(spec)), Put(keys.desired("job"), b"running")])
    planner, now, largest, most, heaviest = Planner(settle=0.0), 0.0, 0, 0, 0

    def decide() -> views.JobView:
        nonlocal now, most, heaviest
        for _ in range(WORKERS):  # reports are counted some at a time
            now += 0.01
            txns = planner.decide(views.parse(store.range(keys.PREFIX)), now)
            for txn in txns:
                most = max(most, len(txn.operations), len(txn.compares) + 1)
                heaviest = max(heaviest, size(txn))
                assert apply(store, txn) == "yes", txn.tag
            if not txns:
                break
        return views.parse(store.range(keys.PREFIX)).jobs["job"]

    for attempt in range(ATTEMPTS):
        workers = [f"a-rather-long-name-of-a-worker-{attempt}-{i:04d}" for i in range(WORKERS)]
        put_all(
            store,
            [
                Put(keys.worker(w), records.encode(worker_record(w, state="ready", job="job", refusals=refusals)))
                for w in workers
            ],
            at_once=16,
        )
        job = decide()
        assert len(job.members) == WORKERS
        claims: list[Put | Delete] = [
            Put(keys.claim("job", job.generation, slot), records.encode(records.Claim(worker=m.worker, held=attempt)))
            for slot, m in enumerate(job.members)
        ]
        put_all(store, claims)
        reports: list[Put | Delete] = [
            Put(
                keys.report("job", worker),
                records.encode(
                    records.Report(
                        worker=worker, generation=job.generation, cause="raised", step=attempt,
                        message="\N{SNOWMAN}" * MAX_MESSAGE, traceback="\N{SNOWMAN}" * MAX_TRACEBACK,
                    )
                ),
            )
            for worker in workers[::2]
        ]  # fmt: skip
        put_all(store, reports, at_once=16)
        put_all(store, [Delete(keys.worker(worker)) for worker in workers])
        largest = max(largest, *(len(kv.value) for kv in store.range(keys.PREFIX)))
        job = decide()
        assert job.status is not None
        assert sum(job.status.value.attempts.values()) >= (attempt + 1) * WORKERS, "all were counted"
        assert job.reports == {}
        largest = max(largest, *(len(kv.value) for kv in store.range(keys.PREFIX)))
    print(f"largest value {largest} bytes, most operations {most}, heaviest transaction {heaviest} bytes")
    assert largest < VALUE_BYTES
    assert most <= ETCD_OPERATIONS
    assert heaviest < ETCD_REQUEST_BYTES
