"""Tenants: each has its share if it has a use for it, what it has no use for is the others', and nothing flaps."""

from __future__ import annotations

from dataclasses import replace

from easyscale.coordinator.scheduling.jobs import total
from easyscale.coordinator.scheduling.market import Market
from hypothesis import given
from hypothesis import strategies as st
from unit.scheduling_toys import KINDS, NOW, job

LOADS = st.lists(st.tuples(st.integers(1, 8), st.floats(10, 1e6)), min_size=1, max_size=6)
"""Jobs of a tenant: their ESTs, and the steps that are left."""

EST = {"k80": 6.0, "p100": 2.0, "v100": 1.0}


def test_many_short_jobs_of_one_tenant_do_not_take_anothers_share() -> None:
    short = [job(f"short{place}", EST, ests=2, left=10.0, tenant="busy", arrived=1.0) for place in range(50)]
    long = job("long", EST, ests=8, left=1e6, tenant="patient")
    alone = replace(long, tenant="busy")
    assert total(Market().plan({"v100": 16}, [*short, long], NOW)["long"]) == 8
    assert total(Market(patience=1e9).plan({"v100": 16}, [*short, alone], NOW).get("long", ())) < 8


def test_what_a_tenant_has_no_use_for_is_lent_and_given_back() -> None:
    mine = [job(f"mine{place}", EST, ests=4, left=1e5, tenant="me") for place in range(4)]
    before = Market().plan({"v100": 16}, mine, NOW)
    assert sum(total(given) for given in before.values()) == 16
    mine = [replace(one, given=before[one.name]) for one in mine]
    other = [job(f"theirs{place}", EST, ests=4, left=1e7, tenant="they") for place in range(9)]
    after = Market().plan({"v100": 16}, [*mine, *other], NOW)
    assert sum(total(after.get(one.name, ())) for one in mine) == 8
    assert sum(total(after.get(one.name, ())) for one in other) == 8


@given(
    loads=st.lists(LOADS, min_size=2, max_size=4),
    there=st.fixed_dictionaries({kind: st.integers(4, 24) for kind in KINDS}),
)
def test_a_tenant_whose_jobs_lack_devices_has_at_least_its_share_of_what_there_is(
    loads: list[list[tuple[int, float]]], there: dict[str, int]
) -> None:
    jobs = [
        job(f"{tenant}-{place}", EST, ests=ests, left=left, tenant=str(tenant))
        for tenant, load in enumerate(loads)
        for place, (ests, left) in enumerate(load)
    ]
    plan = Market(patience=1e9).plan(there, jobs, NOW)
    for tenant, load in enumerate(loads):
        has = [total(plan.get(f"{tenant}-{place}", ())) for place in range(len(load))]
        nothing = [place for place, count in enumerate(has) if not count]
        share = sum(count // len(loads) for count in there.values())
        taken_first = sum(-(-count // 10) for count in there.values())  # by jobs that decide when everything is done
        if nothing:
            assert sum(has) >= (share - taken_first) / 2, "but for what does not come out even"
