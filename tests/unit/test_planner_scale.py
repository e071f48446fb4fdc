"""A job with a thousand workers: transactions and values stay within what etcd takes."""

from __future__ import annotations

from easyscale.coordinator import keys, records, views
from easyscale.coordinator.kv import Delete, Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.coordinator.planner import Planner

ETCD_OPERATIONS = 128
VALUE_BYTES = 100_000
MEMBERS = 1000


def lost_altogether() -> views.View:
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
    kv.txn((), puts)
    return views.parse(kv.range(keys.PREFIX))


def test_losing_a_thousand_workers_at_once_fits_into_transactions_that_etcd_takes() -> None:
    (txn, *_) = Planner().decide(lost_altogether(), 0.0)
    assert len(txn.operations) <= ETCD_OPERATIONS
    assert len(txn.compares) + 1 <= ETCD_OPERATIONS, "the leader's own comparison comes on top"
    assert all(len(op.value) < VALUE_BYTES for op in txn.operations if isinstance(op, Put))
    assert Delete(keys.generation_claims("job", 1), prefix=True) in txn.operations


def test_a_plan_of_a_thousand_members_is_a_small_value() -> None:
    members = tuple(records.Member(f"worker-{i:04d}-abcdef", i, i + 1) for i in range(MEMBERS))
    assert len(records.encode(records.Plan(generation=10**6, members=members))) < VALUE_BYTES
