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


def test_what_is_guaranteed_to_a_job_is_its_own_whatever_others_would_gain() -> None:
    short = [job(f"short{place}", EST, ests=2, left=10.0, arrived=1.0) for place in range(50)]
    long = job("long", EST, ests=8, left=1e6)
    for there in (16, 200):
        plan = Market(patience=1e9).plan({"v100": there}, [*short, replace(long, guaranteed=4)], NOW)
        assert total(plan["long"]) >= 4
    assert len(plan) == 51, "what is left is the others'"
    assert total(Market(patience=1e9).plan({"v100": 16}, [*short, long], NOW).get("long", ())) < 4


def test_who_has_what_is_guaranteed_to_it_keeps_it_though_others_have_a_guarantee_too() -> None:
    has = job("has", EST, ests=4, left=1e6, guaranteed=4, given=(("v100", 4),))
    new = [job(f"new{place}", EST, ests=2, left=10.0, guaranteed=1, arrived=1.0) for place in range(4)]
    assert Market().plan({"v100": 4}, [has, *new], NOW) == {"has": (("v100", 4),)}
    assert "has" not in Market().plan({"v100": 4}, [has, *(replace(one, priority=1) for one in new)], NOW)


def test_a_guarantee_of_more_than_is_of_use_is_one_of_as_many_as_are() -> None:
    short = [job(f"short{place}", EST, ests=1, left=10.0, arrived=1.0) for place in range(9)]
    plan = Market().plan({"v100": 3}, [job("long", EST, ests=4, left=1e6, guaranteed=3), *short], NOW)
    assert plan["long"] == (("v100", 2),), "with three, one of them would have two ESTs all the same"


def test_a_starving_job_has_its_turn_beside_what_is_guaranteed_to_others() -> None:
    starving = job("starving", EST, ests=16, least=8, left=1e7)
    sure = job("sure", EST, ests=8, left=100.0, arrived=NOW, guaranteed=8)
    short = [job(f"short{place}", EST, ests=4, left=10.0, arrived=NOW) for place in range(9)]
    plan = Market().plan({"v100": 16}, [starving, sure, *short], NOW)
    assert (total(plan["sure"]), total(plan["starving"])) == (8, 8)


@given(
    guarantees=st.lists(st.integers(0, 8), min_size=1, max_size=8),
    there=st.fixed_dictionaries({kind: st.integers(0, 12) for kind in KINDS}),
)
def test_jobs_have_what_is_guaranteed_to_them_if_all_can(guarantees: list[int], there: dict[str, int]) -> None:
    jobs = [
        job(f"j{place}", EST, ests=8, left=10.0**place, guaranteed=number, arrived=float(place))
        for place, number in enumerate(guarantees)
    ]
    plan = Market(patience=1e9).plan(there, jobs, NOW)
    if sum(guarantees) * 8 <= max(there.values()):  # else kinds may not come out even
        ways = (1, 2, 3, 4, 8)  # of which the next smaller one would be slower
        for one, number in zip(jobs, guarantees, strict=True):
            assert total(plan.get(one.name, ())) >= max((way for way in ways if way <= number), default=0)
