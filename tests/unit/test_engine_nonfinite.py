"""What a NaN does (fault 40): all replicas decide alike about it, and what is left out leaves no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import toys
from easyscale.errors import NonFiniteError, SpecError
from easyscale.pipeline import determinism
from easyscale.pipeline.contexts import copy_tree
from easyscale.pipeline.data import sample_ids
from easyscale.pipeline.spec import check
from easyscale.pipeline.training import Training
from torch import Tensor, nn
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.pipeline.spec import JobSpec

STEPS = 13
SPLITS = ((4,), (1, 3), (2, 1, 1))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    determinism.configure(1)


class Poisoned(Dataset[tuple[int, Tensor, int]]):
    """Images with their sample ids."""

    def __init__(self) -> None:
        self.images = toys.Images()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[int, Tensor, int]:
        return (index, *self.images[index])


class Explode(torch.autograd.Function):
    """Adds nothing to the loss and an infinity to the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sum() * 0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(ctx.saved_tensors[0], float("inf"))


class Steps:
    """How many optimizer steps there were: state that is everybody's."""

    def __init__(self) -> None:
        self.number = torch.zeros((), dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class Seen:
    """The samples an EST has seen in steps that count."""

    def __init__(self) -> None:
        self.ids = torch.zeros(0, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"ids": self.ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ids = state["ids"]


def poisoned(bad_losses: dict[int, float], bad_gradients: set[int]) -> Callable[[], Training]:
    """A net with everything that has a state, and samples that make losses or gradients infinite."""

    def build_fn() -> Training:
        model, steps, seen = toys.small_convnet(), Steps(), Seen()
        model.register_buffer("mask", torch.full((3,), float("-inf")))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

        def count(*_: Any) -> None:
            steps.number = steps.number + 1

        optimizer.register_step_post_hook(count)

        def step(model: nn.Module, batch: Any) -> Tensor:
            ids, images, labels = batch
            seen.ids = torch.cat([seen.ids, ids])
            loss = toys.classify(model, (images, labels))
            for sample in ids.tolist():
                if sample in bad_losses:
                    loss = loss * bad_losses[sample]
                if sample in bad_gradients:
                    loss = loss + Explode.apply(model[0].weight)
            return loss

        return Training(
            model=model,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
            dataset=Poisoned(),
            step=step,
            state={"steps": steps},
            est_state={"seen": seen},
        )

    return build_fn


def at(job: JobSpec, step: int, est: int) -> int:
    """A sample that this EST sees at this step."""
    return sample_ids(job, step, est)[0]


CASES: dict[str, dict[str, Any]] = {
    "skip": {"nonfinite": "skip", "ema": 0.9},
    "skip, buffers per EST": {"nonfinite": "skip", "buffers": "per_est", "clip_norm": 1.0},
    "rewind": {"nonfinite": "rewind", "commit_every": 3, "ema": 0.9},
    "rewind, buffers per EST": {"nonfinite": "rewind", "commit_every": 3, "buffers": "per_est", "schedule": "epoch"},
    "rewind, fp16": {"nonfinite": "rewind", "commit_every": 3, "amp": "fp16"},
}
BAD = {1: "loss", 4: "gradient", 5: "loss"}
"""Steps of the first epoch that fail; 4 and 5 lie at the end of one epoch and in the next, 5 just before an anchor."""


def case(name: str) -> tuple[JobSpec, Callable[[], Training]]:
    job = toys.spec(**CASES[name])
    losses = {at(job, 1, 2): float("nan"), at(job, 5, 0): float("inf")}
    return job, poisoned(losses, {at(job, 4, 3)})


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_is_not_finite_is_passed_over_alike_by_any_number_of_workers_resumed_at_any_step(name: str) -> None:
    job, build_fn = case(name)
    alone = toys.engine(build_fn, job)
    states, digests, reports = [], [], []
    for _ in range(STEPS):
        states.append(copy_tree(alone.state()))
        digests.append(toys.digest(alone))
        reports.append(repr(alone.run_local()))  # a NaN is not equal to itself
    digests.append(toys.digest(alone))
    assert sum("skipped=True" in report for report in reports) >= len(BAD)
    for sizes in SPLITS:
        workers = [toys.engine(build_fn, job) for _ in sizes]
        for step in range(STEPS):
            told = toys.run_together(workers, toys.ranges(sizes), 1)
            assert repr(told[0]) == reports[step]
            assert {toys.digest(worker) for worker in workers} == {digests[step + 1]}, (sizes, step)
            newcomer = toys.engine(build_fn, job)
            newcomer.load_state(states[step + 1] if step + 1 < STEPS else alone.state())
            workers[step % len(workers)] = newcomer


def without(state: dict[str, Any], *names: str) -> str:
    state = {**state, "optimizer": state["optimizer"]["state"]}
    return toys.digest_of({name: part for name, part in state.items() if name not in names})


MOVES_ON = ("step", "scheduler", "nonfinite")


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_skip_leaves_everything_but_the_step_and_the_learning_rate(kind: str) -> None:
    job = toys.spec(nonfinite="skip", ema=0.9, clip_norm=1.0)
    bad = at(job, 1, 2)
    build_fn = poisoned({bad: float("nan")} if kind == "loss" else {}, {bad} if kind == "gradient" else set())
    engine, healthy = toys.engine(build_fn, job), toys.engine(poisoned({}, set()), job)
    assert not engine.run_local().skipped
    healthy.run_local(), healthy.run_local()
    before = without(engine.state(), *MOVES_ON)
    report = engine.run_local()
    assert report.skipped
    assert engine.step == 2
    assert without(engine.state(), *MOVES_ON) == before
    assert without(healthy.state(), *MOVES_ON) != before
    assert engine.state()["scheduler"]["last_epoch"] == 2
    assert engine.state()["optimizer"]["param_groups"] == healthy.state()["optimizer"]["param_groups"]
    assert not engine.run_local().skipped
    assert engine.state()["user"]["steps"]["number"] == 2


def test_rewind_goes_back_to_the_last_step_that_commit_every_divides_and_never_sees_the_bad_batch_again() -> None:
    job = toys.spec(nonfinite="rewind", commit_every=3, ema=0.9)
    later = {sample for est in range(4) for sample in sample_ids(job, 5, est)}
    bad = next(sample for est in range(4) for sample in sample_ids(job, 4, est) if sample not in later)
    engine = toys.engine(poisoned({bad: float("nan")}, set()), job)
    for _ in range(3):
        engine.run_local()
    anchor = without(engine.state(), *MOVES_ON)
    assert not engine.run_local().skipped
    assert without(engine.state(), *MOVES_ON) != anchor
    assert engine.run_local().skipped
    assert engine.step == 5
    assert without(engine.state(), *MOVES_ON) == anchor
    assert engine.state()["scheduler"]["last_epoch"] == 5
    assert engine.state()["nonfinite"]["count"] == 1
    assert not engine.run_local().skipped
    assert engine.state()["nonfinite"]["count"] == 0, "step 6 made a new anchor"
    assert toys.digest_of(engine.state()["nonfinite"]["anchor"]["model"]) == toys.digest_of(engine.state()["model"])


def test_rewind_makes_no_anchor_of_parameters_that_an_update_has_broken() -> None:
    job = toys.spec(nonfinite="rewind", commit_every=2)

    def build_fn() -> Training:
        training = poisoned({}, set())()
        weight = training.model[0].weight

        def overflow(*_: Any) -> None:
            if steps.number == 4:
                with torch.no_grad():
                    weight.fill_(float("inf"))

        steps: Any = training.state["steps"]
        training.optimizer.register_step_post_hook(overflow)
        return training

    engine = toys.engine(build_fn, job)
    for _ in range(2):
        engine.run_local()
    anchor = without(engine.state(), *MOVES_ON)
    for _ in range(2):
        engine.run_local()
    assert engine.step == 4
    assert without(engine.state(), *MOVES_ON) == anchor
    assert engine.state()["nonfinite"]["count"] == 1


def test_stop_changes_nothing_and_names_job_step_est_samples_and_what_to_do() -> None:
    job = toys.spec()
    engine = toys.engine(poisoned({at(job, 1, 2): float("nan"), at(job, 1, 3): float("nan")}, set()), job)
    engine.run_local()
    before = toys.digest(engine)
    assert "nonfinite" not in engine.state()
    samples = ", ".join(map(str, sample_ids(job, 1, 3)))
    with pytest.raises(NonFiniteError) as caught:
        engine.run_local()
    assert toys.digest(engine) == before
    text = str(caught.value)
    assert "step 1 (epoch 0) is not finite: the loss is nan for EST 2, nan for EST 3\n" in text
    assert f"\n  samples of EST 3: {samples}\n" in text
    assert "the newest commit is whole" in text
    assert "--set nonfinite=skip --accept-changes" in text


def test_stop_names_the_parameters_whose_gradients_are_not_finite() -> None:
    job = toys.spec()
    engine = toys.engine(poisoned({}, {at(job, 0, 2)}), job)
    before = toys.digest(engine)
    with pytest.raises(
        NonFiniteError, match=r"step 0 .*the losses are, but the averaged gradient of '0.weight' is not"
    ):
        engine.run_local()
    assert toys.digest(engine) == before


def test_a_hundred_steps_may_be_left_out_in_a_row_and_a_finite_one_starts_the_count_anew() -> None:
    job = toys.spec(nonfinite="skip", ests=1, samples=toys.SAMPLES)
    engine = toys.engine(toys.linear, job)
    step = engine._training.step
    broken: list[bool] = [False]
    object.__setattr__(engine._training, "step", lambda m, b: step(m, b) * (float("nan") if broken[0] else 1.0))
    broken[0] = True
    for _ in range(100):
        assert engine.run_local().skipped
    broken[0] = False
    assert not engine.run_local().skipped
    broken[0] = True
    for _ in range(100):
        assert engine.run_local().skipped
    before = toys.digest(engine)
    with pytest.raises(NonFiniteError, match="100 steps in a row were left out before"):
        engine.run_local()
    assert toys.digest(engine) == before


def test_training_goes_back_to_one_anchor_three_times_and_no_more() -> None:
    job = toys.spec(nonfinite="rewind", commit_every=10)
    bad = {at(job, t, 0): float("nan") for t in (1, 2, 3, 4)}
    engine = toys.engine(poisoned(bad, set()), job)
    for _ in range(4):
        engine.run_local()
    with pytest.raises(NonFiniteError, match="went back 3 times to the same anchor"):
        engine.run_local()


def test_a_job_may_change_its_policy_and_a_state_without_an_anchor_is_its_own() -> None:
    job = toys.spec()
    before = toys.engine(poisoned({}, set()), job)
    before.run_local()
    changed = toys.spec(nonfinite="rewind", commit_every=3)
    engine = toys.engine(poisoned({at(job, 1, 0): float("nan")}, set()), changed)
    engine.load_state(before.state())
    anchor = without(before.state(), *MOVES_ON)
    assert engine.run_local().skipped
    assert without(engine.state(), *MOVES_ON) == anchor
    back = toys.engine(poisoned({}, set()), job)
    back.load_state(engine.state())
    assert "nonfinite" not in back.state()


def test_rewind_needs_commit_every_which_then_defines_the_bits() -> None:
    with pytest.raises(SpecError, match="nonfinite is 'rewind', but commit_every is not given"):
        check(toys.spec(nonfinite="rewind"))
    three, four = (toys.spec(nonfinite="rewind", commit_every=n) for n in (3, 4))
    assert three.differences(four) == {"commit_every": (3, 4)}
    assert toys.spec(commit_every=3).differences(toys.spec(commit_every=4)) == {}


def test_infinities_that_are_meant_pass() -> None:
    """-inf in a buffer (`poisoned` has one), and a huge but finite gradient whose sum overflows."""
    job = toys.spec()

    def huge(model: nn.Module, batch: Any) -> Tensor:
        total = model[1].weight.sum()
        return (total - total.detach()) * 3e38

    def build_fn() -> Training:
        training = toys.linear()
        optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-38)
        return Training(model=training.model, optimizer=optimizer, dataset=training.dataset, step=huge)

    assert not toys.engine(poisoned({}, set()), job).run_local().skipped
    assert not toys.engine(build_fn, toys.spec(ests=1)).run_local().skipped
