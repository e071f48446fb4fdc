"""Who is worth it and who runs what, against all possibilities."""

from __future__ import annotations

from itertools import combinations

import pytest
from easyscale.coordinator import records
from easyscale.coordinator.arrangement import NONE, Model, paces_of
from easyscale.coordinator.split import UNLIMITED, Pace
from hypothesis import given
from hypothesis import strategies as st
from pictures import worker_record

SECONDS = st.sampled_from([0.5, 1.0, 2.5]) | st.floats(0.05, 4.0)
EXCHANGES = st.lists(st.sampled_from([0.0, 0.3, 2.0]), min_size=3, max_size=3).map(sorted)
"""Of two, three and four members: of more it is not cheaper."""


def model(
    ests: list[float],
    *,
    least: int = 1,
    total: int = 5,
    exchange: list[float] | None = None,
    most: list[int] | None = None,
) -> Model:
    """Workers named by letters."""
    rooms = most or [UNLIMITED] * 4
    paces = {name: Pace(est, 0.1, room) for name, est, room in zip("abcd", ests, rooms, strict=False)}
    known = {f"peer {size}": seconds for size, seconds in enumerate(exchange or [], 2)}
    return Model(total, least, paces, known, lambda _: "peer", {})


@given(
    ests=st.lists(SECONDS, min_size=1, max_size=4), least=st.integers(1, 2), total=st.integers(2, 7), exchange=EXCHANGES
)
def test_the_best_is_as_good_as_any_subset_and_covers_every_est_once(
    ests: list[float], least: int, total: int, exchange: list[float]
) -> None:
    it = model(ests, least=min(least, len(ests)), total=total, exchange=exchange)
    workers = list(it.paces)
    found = it.best(workers)
    subsets = [s for size in range(it.least, min(len(workers), total) + 1) for s in combinations(workers, size)]
    assert found.seconds <= min(it.arrange(subset).seconds for subset in subsets) + 1e-9
    assert [est for m in found.members for est in range(m.first, m.last)] == list(range(total))
    assert len(found.members) >= it.least
    assert found.workers == [worker for worker in workers if worker in found.workers], "their order is kept"


@given(staying=st.lists(SECONDS, min_size=1, max_size=2), coming=st.lists(SECONDS, max_size=2), exchange=EXCHANGES)
def test_growing_leaves_nobody_out_and_does_not_make_a_step_slower(
    staying: list[float], coming: list[float], exchange: list[float]
) -> None:
    it = model(staying + coming, exchange=exchange)
    here, new = list(it.paces)[: len(staying)], list(it.paces)[len(staying) :]
    found = it.grow(here, new)
    assert set(here) <= set(found.workers)
    assert found.seconds <= it.arrange(here, len(here)).seconds
    assert it.improve(here, new).seconds <= found.seconds + 1e-9


@given(
    ests=st.lists(SECONDS, min_size=4, max_size=4) | SECONDS.map(lambda est: [est] * 4),
    most=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    least=st.integers(1, 3), total=st.integers(3, 9), exchange=EXCHANGES,
)  # fmt: skip
def test_nobody_has_more_ests_than_its_memory_has_room_for(
    ests: list[float], most: list[int], least: int, total: int, exchange: list[float]
) -> None:
    it = model(ests, least=least, total=total, exchange=exchange, most=most)
    workers = list(it.paces)
    found = [it.best(workers), it.grow(workers[:2], workers[2:]), it.improve(workers[:2], workers[2:])]
    if sum(most) < total:
        assert found == [NONE] * 3
        return
    for one in found:
        assert [est for m in one.members for est in range(m.first, m.last)] == list(range(total))
        assert all(m.last - m.first <= it.paces[m.worker].most for m in one.members)
    assert found[0].seconds <= it.arrange(workers).seconds + 1e-9
    assert set(workers[:2]) <= set(found[1].workers), "growing leaves nobody out"
    if len({*ests}) == 1:  # else who is faster may have less room, and not all subsets are tried
        subsets = [s for size in range(least, min(4, total) + 1) for s in combinations(workers, size)]
        assert found[0].seconds <= min(it.arrange(subset).seconds for subset in subsets) + 1e-9


def test_who_is_needed_has_an_est_however_slow_it_is() -> None:
    assert [m.last - m.first for m in model([1.0, 99.0], least=2).arrange("ab").members] == [4, 1]
    assert [m.worker for m in model([1.0, 99.0]).arrange("ab").members] == ["a"]


@pytest.mark.parametrize("known", [{}, {"other": records.Rate(1.0)}])
def test_without_any_known_kind_nothing_is_known(known: dict[str, records.Rate]) -> None:
    alive = {"a": worker_record("a", kind="A")}
    assert paces_of(records.Rates(spec="s", kinds=known), ["a"], alive) is None
    assert paces_of(None, ["a"], alive) is None


def test_an_unknown_kind_is_taken_as_the_mean_of_the_known() -> None:
    alive = {name: worker_record(name, kind=name.upper()) for name in "abc"}
    rates = records.Rates(spec="s", kinds={"A": records.Rate(1.0, 0.2), "B": records.Rate(3.0, 0.4)}, factors={"b": 2})
    paces = paces_of(rates, list("abc"), alive)
    assert paces == {"a": Pace(1.0, 0.2), "b": Pace(6.0, 0.4), "c": Pace(2.0, pytest.approx(0.3))}


def test_each_worker_has_room_by_its_own_memory_and_what_it_ran_or_could_not_run() -> None:
    rate = records.Rate(1.0, 0.2, memory=1000, est_bytes=100)
    told = records.Progress(step=3, memory=records.Footprint(peak=1900, ests=9, est=100))
    alive = {
        "a": worker_record("a", memory=2000),
        "b": worker_record("b", memory=2000, job="job", progress=told),
        "c": worker_record("c", memory=2000, job="other", progress=told),
        "d": worker_record("d", memory=2000, job="job", progress=told, rooms={"s": 2}),
        "e": worker_record("e", memory=2000, rooms={"t": 2}),
        "f": worker_record("f", memory=1050),
        "g": worker_record("g", memory=1050, kind="unheard of"),
    }
    paces = paces_of(records.Rates(spec="s", kinds={"cpu": rate}), list(alive), alive, "job")
    assert paces is not None
    rooms = {worker: pace.most for worker, pace in paces.items()}
    assert rooms == {"a": 8, "b": 9, "c": 8, "d": 2, "e": 8, "f": 0, "g": UNLIMITED}


def test_hundreds_of_workers_and_known_exchanges_are_arranged() -> None:
    paces = {f"w{n}": Pace(1.0 + n % 7 / 10 + (n % 50 == 0), 0.1) for n in range(800)}
    it = Model(65_536, 1, paces, {f"peer {n}": n / 1e4 for n in range(2, 800, 25)}, lambda _: "peer", {})
    workers = list(paces)
    assert len(it.improve(workers[:700], workers[700:]).members) == 800
