"""Prices clear, and what is chosen at them is within 3 % of the best of all choices, which HiGHS finds (in SciPy).

Both choose among the same rows, with the values that `Market` gives them; 200 clusters of 4 to 24 devices of two or
three kinds, with 3 to 10 jobs, none of which has anything yet.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from easyscale.coordinator.scheduling import prices as prices_module
from easyscale.coordinator.scheduling.market import Market
from easyscale.coordinator.scheduling.prices import Choice, Table, clear
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix
from unit.scheduling_toys import from_seed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.jobs import Job
    from numpy.typing import NDArray

SHARE = 0.97
"""Of the best choice's worth."""

STEP = 2 ** (1 / 32)
"""From one price that is tried to the next."""


def optimum(table: Table, free: NDArray[np.int64]) -> float:
    """The greatest worth of all choices that fit."""
    rows, scale = len(table.value), float(table.value.max())
    of_jobs = csr_matrix((np.ones(rows), (table.owner, np.arange(rows))))
    found = milp(
        -table.value / scale,
        integrality=np.ones(rows),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(of_jobs, 1, 1), LinearConstraint(table.usage.T.astype(float), 0, free)],
        options={"mip_rel_gap": 1e-4},
    )
    assert found.success, found.message
    return float(-found.fun * scale)


def table_of(capacity: Mapping[str, int], jobs: Sequence[Job]) -> tuple[Table, NDArray[np.int64]]:
    kinds = sorted(capacity)
    free = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
    return Market().table(list(jobs), kinds, free)[0], free


def chosen(table: Table, free: NDArray[np.int64]) -> Choice:
    choice = Choice(table, free.copy())
    choice.settle()
    choice.improve()
    return choice


@cache
def seeded(seed: int) -> tuple[Table, NDArray[np.int64]]:
    return table_of(*from_seed(seed))


# ---- near the optimum


def test_on_small_clusters_choices_are_the_best() -> None:
    shares = [chosen(*seeded(seed)).worth / optimum(*seeded(seed)) for seed in range(200)]
    assert min(shares) >= 1 - 1e-3, "which is what HiGHS allows itself"
    assert max(shares) <= 1 + 1e-3


def test_by_prices_they_are_within_3_percent_of_it_on_each_of_200_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,800 others, 23 are not; the worst is at 0.88."""
    monkeypatch.setattr(prices_module, "EXACT", 0)
    shares = [chosen(*seeded(seed)).worth / optimum(*seeded(seed)) for seed in range(200)]
    figures = f"mean {np.mean(shares):.4f}, worst {min(shares):.4f} of the optimum, on seed {np.argmin(shares)}"
    print(figures)
    assert min(shares) >= SHARE, figures
    assert np.mean(shares) >= 0.999, figures
    assert max(shares) <= 1 + 1e-3, f"better than the best: {figures}"


def test_on_bigger_clusters_too() -> None:
    """16 to 96 devices, and 10 to 24 jobs."""
    tables = [table_of(*from_seed(seed, 10, 24, scale=4)) for seed in range(12)]
    shares = [chosen(*one).worth / optimum(*one) for one in tables]
    assert min(shares) >= SHARE, shares


def test_the_optimum_is_not_easily_reached() -> None:
    """Else the tests above would prove nothing: in turn, or without what follows the prices, it is missed by far."""
    in_turn, at_prices = [], []
    for seed in range(40):
        table, free = seeded(seed)
        best, one, other = optimum(table, free), Choice(table, free.copy()), Choice(table, free.copy())
        for job in range(len(table.first)):
            one._set(job, one._best(job, table.value))
        other._settle(clear(table, free))
        in_turn.append(one.worth / best)
        at_prices.append(other.worth / best)
    assert min(in_turn) < 0.5
    assert np.mean(in_turn) < 0.9 < np.mean(at_prices)
    assert min(at_prices) < SHARE


@given(seed=st.integers(0, 400), more=st.integers(0, 2))
@settings(max_examples=100)
def test_one_more_device_costs_nothing(seed: int, more: int) -> None:
    capacity, jobs = from_seed(seed)
    kind = list(capacity)[more % len(capacity)]
    before, after = table_of(capacity, jobs), table_of(capacity | {kind: capacity[kind] + 1}, jobs)
    assert chosen(*after).worth >= chosen(*before).worth * (1 - 1e-9)


# ---- prices


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, NDArray[np.int64]]:
    """Any: also where many rows are worth the same, or nothing."""
    kinds = draw(st.integers(1, 3))
    values = st.sampled_from([0.0, 1.0, 2.0, 3.0]) | st.floats(1e-6, 1e3)
    counts = st.lists(st.integers(0, 6), min_size=kinds, max_size=kinds)
    first, value, usage = [], [], []
    for _ in range(draw(st.integers(1, 6))):
        first.append(len(value))
        value.append(0.0)
        usage.append([0] * kinds)
        for number in draw(st.lists(counts.filter(any), max_size=5)):
            value.append(draw(values))
            usage.append(number)
    free = np.array(draw(st.lists(st.integers(0, 10), min_size=kinds, max_size=kinds)), dtype=np.int64)
    return Table(np.array(value), np.array(usage, dtype=np.int64), np.array(first)), free


def wanted(table: Table, prices: NDArray[np.float64], kind: int) -> int:
    """Devices of a kind in the rows that are best for each job at these prices, of equals the one that needs least."""
    utility = table.value - table.usage @ prices
    result = 0
    for job in range(len(table.first)):
        rows = table.rows(job)
        best = utility[rows] >= utility[rows].max() - 1e-12 * table.value.max()
        result += int(table.usage[rows][best, kind].min())
    return result


def test_where_nobody_has_nothing_nothing_is_looked_for() -> None:
    """Also with so many devices that what can be left of them could not be counted up."""
    table = Table(np.array([0.0, 1.0]), np.array([[0] * 6, [1] + [0] * 5]), np.array([0]))
    choice = Choice(table, np.full(6, 10_000))
    choice.reserve([0], np.full(6, 10_000), table.value)
    choice.settle()
    assert choice.rows.tolist() == [1]


@given(made=tables())
@settings(max_examples=100)
def test_any_choice_fits_and_counts_what_it_leaves(made: tuple[Table, NDArray[np.int64]]) -> None:
    table, free = made
    left = free.copy()
    choice = Choice(table, left)
    choice.reserve(range(len(table.first)), free // 2, table.thrift)
    choice.settle()
    choice.improve(fixed=[0])
    assert (left == free - table.usage[choice.rows].sum(axis=0)).all()
    assert (left >= 0).all()
    assert all(row in range(*table.rows(job).indices(len(table.value))) for job, row in enumerate(choice.rows))
    choice.reserve(range(len(table.first)), free, table.value)  # more than is left
    assert (left >= 0).all()


@given(made=tables())
@settings(max_examples=100)
def test_no_kind_is_wanted_more_than_there_is(made: tuple[Table, NDArray[np.int64]]) -> None:
    table, free = made
    prices = clear(table, free)
    assert (prices >= 0).all()
    assert all(wanted(table, prices, kind) <= free[kind] for kind in range(len(free)))


@pytest.mark.parametrize("seed", range(30))
def test_so_it_is_on_clusters_and_what_nobody_needs_costs_nothing(seed: int) -> None:
    table, free = seeded(seed)
    prices = clear(table, free)
    assert all(wanted(table, prices, kind) <= free[kind] for kind in range(len(free)))
    for kind in range(len(free)):
        plenty = free.copy()
        plenty[kind] = table.usage[:, kind].max() * len(table.first)
        assert clear(table, plenty)[kind] == 0.0


def test_a_price_is_what_the_first_would_pay_who_gets_nothing() -> None:
    """Three want one device each and two are there."""
    value, usage = np.array([0.0, 5.0, 0.0, 3.0, 0.0, 2.0]), np.array([[0], [1]] * 3)
    (price,) = clear(Table(value, usage, np.array([0, 2, 4])), np.array([2]))
    assert 2.0 <= price <= 2.0 * STEP
    (price,) = clear(Table(value, usage, np.array([0, 2, 4])), np.array([3]))
    assert price == 0.0
