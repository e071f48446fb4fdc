"""How long an EST takes before there are steps: timed once the process is warm, for a moment, and without a trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import toys
from easyscale.pipeline import determinism, warm
from easyscale.pipeline.engine import Engine
from easyscale.pipeline.training import Training
from easyscale.pipeline.warm import COLD_SECONDS, ENOUGH_SECONDS, MOST_PASSES, est_seconds
from easyscale.storage.digest import tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

BRIEF = 0.01


class Counter:
    """Something of which each EST has its own."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def counting() -> Training:
    """A net with BatchNorm, dropout and random items whose ESTs count their steps; the counts reach the loss."""
    plain, counter = toys.cnn(), Counter()

    def step(model: nn.Module, batch: Any) -> Tensor:
        counter.steps += 1
        return toys.classify(model, batch) * counter.steps

    return Training(
        model=plain.model, optimizer=plain.optimizer, dataset=plain.dataset, step=step, est_state={"counter": counter}
    )


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], float]]:
    """Passes that take these seconds, one after the other, by the only clock there is."""
    now = [0.0]
    monkeypatch.setattr(warm.time, "monotonic", lambda: now[0])

    def of(*seconds: float) -> Callable[[], float]:
        left = iter(seconds)

        def once() -> float:
            took = next(left)
            now[0] += took
            return took

        return once

    return of


def test_the_least_of_some_short_passes_counts(passes: Any) -> None:
    took = [3 * BRIEF, BRIEF, 2 * BRIEF, BRIEF, 1.5 * BRIEF]
    assert len(took) == MOST_PASSES
    assert est_seconds(passes(*took), cold=1.0) == BRIEF


def test_a_long_pass_is_timed_once(passes: Any) -> None:
    assert est_seconds(passes(2 * ENOUGH_SECONDS), cold=1.0) == 2 * ENOUGH_SECONDS


def test_after_a_first_pass_that_took_long_nothing_is_computed_and_nothing_told(passes: Any) -> None:
    assert est_seconds(passes(), cold=COLD_SECONDS * 1.01) is None


def test_what_was_fetched_meanwhile_does_not_count_but_ends_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], []
    monkeypatch.setattr(warm.time, "monotonic", lambda: now[0])

    def once() -> float:
        now[0] += 3.0
        done.append(1)
        return BRIEF

    assert est_seconds(once, cold=4.0) == BRIEF
    assert len(done) == 1


@pytest.mark.parametrize("settings", [{}, {"buffers": "rank0"}, {"loaders": 1}, {"micro_batches": 2}], ids=str)
def test_a_pass_that_is_only_timed_leaves_no_trace(settings: dict[str, Any]) -> None:
    determinism.configure(1)
    job = toys.spec(steps=4, **settings)
    plain, timed = toys.engine(counting, job), toys.engine(counting, job)
    try:
        for _ in range(3):
            before = tree_digest(timed.state())
            expected = plain.compute(range(4))
            again = timed.compute(range(1))
            assert timed.pass_seconds() > 0
            assert timed.pass_seconds() > 0
            assert tree_digest(timed.state()) == before
            assert timed.compute(range(1)).to_bytes() == again.to_bytes()
            timed.apply([timed.compute(range(4))])
            plain.apply([expected])
            assert tree_digest(timed.state()) == tree_digest(plain.state())
    finally:
        plain.close()
        timed.close()


@pytest.mark.parametrize(("loaders", "counts"), [(0, True), (1, False)])
def test_the_batch_counts_where_no_other_process_fetches_it(
    loaders: int, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    determinism.configure(1)
    it = toys.engine(toys.cnn, toys.spec(loaders=loaders))
    now = [0.0]
    fetch, run = it._loader.next, it._run

    def slow_next(*arguments: Any) -> Any:
        now[0] += 10.0
        return fetch(*arguments)

    def slow_run(*arguments: Any) -> Any:
        now[0] += 1.0
        return run(*arguments)

    monkeypatch.setattr(it._loader, "next", slow_next)
    monkeypatch.setattr(Engine, "_run", lambda _, *arguments: slow_run(*arguments))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    try:
        assert it.pass_seconds() == (11.0 if counts else 1.0)
    finally:
        it.close()
