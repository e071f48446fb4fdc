"""A job with a thousand workers: transactions and values stay within what etcd takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import Delete, Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.coordinator.planner import Planner

if TYPE_CHECKING:
    from easyscale.coordinator.transactions import Txn

ETCD_OPERATIONS = 128
VALUE_BYTES = 100_000
MEMBERS = 1000


def lost_altogether() -> MemoryKV:
    """All members vanish; half of their claims and a few hundred reports are still there."""
    kv = MemoryKV()
    spec = records.JobRecord(name="job", spec="s", code="c", steps=100, ests=MEMBERS, retries=records.Retry(died=9999))
    workers = [f"a-rather-long-worker-name-{i:04d}" for i in range(MEMBERS)]
    plan = records.Plan(generation=1, members=tuple(records.Member(w, i, i + 1) for i, w in enumerate(workers)))
    puts = [Put(keys.spec("job"), records.encode(spec)), Put(keys.plan("job"), records.encode(plan))]
    puts += [
        Put(keys.claim("job", 1, i), records.encode(records.Claim(worker=w, held=7)))
        for i, w in enumerate(workers)
        if i % 2
    ]
    puts += [
        Put(keys.report("job", w), records.encode(records.Report(worker=w, generation=1, cause="died", step=7)))
        for w in workers[:300]
    ]
    puts += [Put(keys.assigned(w), b"job") for w in workers]
    for put in puts:
        kv.txn((), (put,))
    return kv


def test_losing_a_thousand_workers_at_once_fits_into_transactions_that_etcd_takes() -> None:
    kv, planner, decisions = lost_altogether(), Planner(), []
    while txns := planner.decide(views.parse(kv.range(keys.PREFIX)), 0.0):
        decisions += txns
        assert all(kv.txn(txn.compares, txn.operations).succeeded for txn in txns)
    for txn in decisions:
        check(txn)
    assert Delete(keys.generation_claims("job", 1), prefix=True) in decisions[0].operations
    status = views.parse(kv.range(keys.PREFIX)).jobs["job"].status
    assert status is not None
    assert status.value.attempts == {"died": MEMBERS}, "each is counted, and once"
    assert status.value.streak == {"died": 1}, "a rack that loses its power is one try, however many it takes along"


def check(txn: Txn) -> None:
    """It fits."""
    assert len(txn.operations) <= ETCD_OPERATIONS
    assert len(txn.compares) + 1 <= ETCD_OPERATIONS, "the leader's own comparison comes on top"
    assert all(len(op.value) < VALUE_BYTES for op in txn.operations if isinstance(op, Put))


def test_a_plan_of_a_thousand_members_is_a_small_value() -> None:
    members = tuple(records.Member(f"worker-{i:04d}-abcdef", i, i + 1) for i in range(MEMBERS))
    assert len(records.encode(records.Plan(generation=10**6, members=members))) < VALUE_BYTES
