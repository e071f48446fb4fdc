"""Who is worth it and who runs what, against all possibilities."""

from __future__ import annotations

from itertools import combinations

import pytest
from easyscale.coordinator import records
from easyscale.coordinator.arrangement import Model, paces_of
from easyscale.coordinator.split import Pace
from hypothesis import given
from hypothesis import strategies as st
from pictures import worker_record

SECONDS = st.sampled_from([0.5, 1.0, 2.5]) | st.floats(0.05, 4.0)
EXCHANGES = st.lists(st.sampled_from([0.0, 0.3, 2.0]), min_size=3, max_size=3).map(sorted)
"""Of two, three and four members: of more it is not cheaper."""


def model(ests: list[float], *, least: int = 1, total: int = 5, exchange: list[float] | None = None) -> Model:
    """Workers named by letters."""
    paces = {name: Pace(est, 0.1) for name, est in zip("abcd", ests, strict=False)}
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


def test_hundreds_of_workers_and_known_exchanges_are_arranged() -> None:
    paces = {f"w{n}": Pace(1.0 + n % 7 / 10 + (n % 50 == 0), 0.1) for n in range(800)}
    it = Model(65_536, 1, paces, {f"peer {n}": n / 1e4 for n in range(2, 800, 25)}, lambda _: "peer", {})
    workers = list(paces)
    assert len(it.improve(workers[:700], workers[700:]).members) == 800
