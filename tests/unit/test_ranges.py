"""ESTs are spread in contiguous, even ranges, and workers over jobs without anybody getting less than its least."""

from __future__ import annotations

from easyscale.coordinator.ranges import even, shares
from hypothesis import given
from hypothesis import strategies as st

WANTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=8
)


@given(ests=st.integers(1, 200), workers=st.integers(1, 40))
def test_ranges_cover_every_est_once_in_order_and_differ_by_one_at_most(ests: int, workers: int) -> None:
    names = [f"w{i}" for i in range(workers)]
    members = even(ests, names)
    assert [est for m in members for est in range(m.first, m.last)] == list(range(ests))
    assert [m.worker for m in members] == names[:ests], "the order of workers is the order of ranges"
    lengths = [m.last - m.first for m in members]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def test_ranges_of_examples() -> None:
    assert [(m.first, m.last) for m in even(7, ["a", "b", "c"])] == [(0, 3), (3, 5), (5, 7)]
    assert even(4, []) == ()


@given(capacity=st.integers(0, 30), wants=WANTS)
def test_no_worker_is_given_twice_and_every_job_gets_nothing_or_at_least_its_least(
    capacity: int, wants: list[tuple[int, int]]
) -> None:
    counts = shares(capacity, wants)
    assert len(counts) == len(wants)
    assert sum(counts) <= capacity
    for count, (least, most) in zip(counts, wants, strict=True):
        assert count == 0 or least <= count <= most


@given(capacity=st.integers(0, 30), wants=WANTS)
def test_no_worker_is_idle_while_a_job_that_runs_wants_more(capacity: int, wants: list[tuple[int, int]]) -> None:
    counts = shares(capacity, wants)
    if sum(counts) < capacity:
        assert all(count in (0, most) for count, (_, most) in zip(counts, wants, strict=True))


@given(capacity=st.integers(0, 30), wants=WANTS)
def test_a_job_gets_nothing_only_if_those_before_it_left_less_than_its_least(
    capacity: int, wants: list[tuple[int, int]]
) -> None:
    counts = shares(capacity, wants)
    left = capacity
    for count, (least, _) in zip(counts, wants, strict=True):
        assert (count == 0) == (least > left)
        left -= least if count else 0


@given(capacity=st.integers(0, 30), wants=WANTS)
def test_what_is_beyond_the_least_goes_round_the_table(capacity: int, wants: list[tuple[int, int]]) -> None:
    counts = shares(capacity, wants)
    extras = [(c - least, most - least) for c, (least, most) in zip(counts, wants, strict=True) if c]
    unfilled = [extra for extra, room in extras if extra < room]
    if unfilled:
        assert all(extra <= min(unfilled) + 1 for extra, _ in extras)
        assert unfilled == sorted(unfilled, reverse=True), "who comes first is served first"


def test_shares_of_examples() -> None:
    assert shares(5, [(1, 4), (1, 4)]) == [3, 2]
    assert shares(3, [(4, 4), (1, 2)]) == [0, 2], "who cannot have its least does not hold up the next"
    assert shares(1, [(1, 4), (1, 4)]) == [1, 0]
