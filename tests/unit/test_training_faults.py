"""What other systems lose or shift when a run is resumed, each kind for itself: through a commit in a store, into a
process image that has never made a step, at every step of an epoch and beyond."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import toys
from easyscale.pipeline import determinism
from easyscale.pipeline.contexts import copy_tree
from easyscale.pipeline.data import sample_ids
from easyscale.pipeline.training import Training
from easyscale.storage import commits
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from easyscale.pipeline.engine import Engine, StepReport
    from easyscale.pipeline.spec import JobSpec
    from torch import Tensor, nn

STEPS = 12
"""Two epochs of five steps, the last one short, and the beginning of a third."""

RESUMED_AT = range(1, 11)


def everything() -> Training:
    """A schedule whose constructor steps it; gradients too large for fp16 now and then: the scaler backs off."""
    training = toys.cnn()
    schedule = torch.optim.lr_scheduler.SequentialLR(
        training.optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(training.optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9),
        ],
        [3],
    )

    def step(model: nn.Module, batch: Any) -> Tensor:
        loss = toys.classify(model, batch)
        return loss * 1e4 if schedule.last_epoch in (4, 8) else loss

    return Training(
        model=training.model, optimizer=training.optimizer, scheduler=schedule, dataset=training.dataset, step=step,
        evaluate=weights,
    )  # fmt: skip


def weights(model: nn.Module) -> float:
    return float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))


def job() -> JobSpec:
    return toys.spec(amp="fp16", ema=0.9, micro_batches=2)


class Run(NamedTuple):
    """Before each step: the state, what is evaluated; and what each step reported."""

    states: list[Any]
    metrics: list[dict[str, float]]
    reports: list[StepReport]


@cache
def undisturbed() -> Run:
    engine = new_engine()
    run = Run([], [], [])
    for _ in range(STEPS):
        run.states.append(copy_tree(engine.state()))
        run.metrics.append(engine.evaluate())
        run.reports.append(engine.run_local())
    return run


def new_engine() -> Engine:
    determinism.configure(1)
    return toys.engine(everything, job())


def resumed(step: int) -> Engine:
    """A fresh replica that has loaded the commit of this step from a store."""
    store = MemoryStore()
    snapshot = commits.Snapshot.take(step, undisturbed().states[step])
    written = commits.write_commit(
        store, snapshot, job="job", parent=None, spec="5" * 64, code="c" * 64, ests=4, determinism={}, generation=1,
        metrics={}, history=None,
    )  # fmt: skip
    engine = new_engine()
    engine.load_state(commits.read_commit(store, written.manifest_digest)[1])
    assert engine.step == step
    return engine


@pytest.mark.parametrize("step", RESUMED_AT)
def test_resumed_in_the_middle_of_an_epoch_it_neither_repeats_nor_skips_a_sample(step: int) -> None:
    engine = resumed(step)
    spec = job()
    taken: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    for t in range(STEPS):
        whole.update(sample for est in range(4) for sample in sample_ids(spec, t, est))
        at = t if t < step else engine.step
        taken.update(sample for est in range(4) for sample in sample_ids(spec, at, est))
        if t >= step:
            assert engine.run_local() == undisturbed().reports[t]
    assert taken == whole
    assert engine.step == STEPS


@pytest.mark.parametrize("step", RESUMED_AT)
def test_resumed_its_learning_rates_are_those_of_the_uninterrupted_run(step: int) -> None:
    engine = resumed(step)
    rates = [report.lr for report in undisturbed().reports]
    assert len({tuple(rate) for rate in rates}) > 6
    assert [engine.run_local().lr for _ in range(step, STEPS)] == rates[step:]


@pytest.mark.parametrize("step", RESUMED_AT)
def test_resumed_its_gradient_scaler_has_its_scale_and_its_count_of_good_steps(step: int) -> None:
    scalers = [state["scaler"] for state in undisturbed().states]
    assert len({scaler["scale"] for scaler in scalers}) >= 3
    assert max(scaler["_growth_tracker"] for scaler in scalers) >= 3
    engine = resumed(step)
    assert engine.state()["scaler"] == scalers[step]
    for t in range(step, STEPS - 1):
        assert engine.run_local().skipped == undisturbed().reports[t].skipped
        assert engine.state()["scaler"] == scalers[t + 1]


@pytest.mark.parametrize("step", RESUMED_AT[3:])  # before that the scaler has let no step count
def test_resumed_its_averaged_weights_are_neither_lost_nor_the_raw_ones(step: int) -> None:
    engine = resumed(step)
    raw = weights(engine._model)
    assert engine.evaluate() == undisturbed().metrics[step]
    assert list(engine.evaluate().values()) != [raw]


def test_between_two_micro_batches_there_is_no_state_to_commit() -> None:
    engine = new_engine()
    for _ in range(3):
        before = toys.digest(engine)
        contribution = engine.compute(range(4))
        assert toys.digest(engine) == before, "half a step is not in the state"
        assert engine.step == int(engine.state()["step"])
        engine.apply([contribution])
        assert toys.digest(engine) != before


def test_after_growing_no_generator_is_fresh_and_none_is_another_ranks() -> None:
    alone, grown = (resumed(5) for _ in range(2))
    newcomers = [resumed(5) for _ in range(3)]
    for replica in newcomers:  # what they have drawn so far must not matter
        torch.rand(17)
        replica.compute(range(1))
    reports = toys.run_together([grown, *newcomers], toys.ranges([1, 1, 1, 1]), 4)
    assert reports == [alone.run_local() for _ in range(4)] == undisturbed().reports[5:9]
    assert {toys.digest(replica) for replica in (grown, *newcomers)} == {toys.digest(alone)}
