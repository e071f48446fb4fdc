"""The deterministic step: who computes which ESTs never shows in the bits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import toys
from easyscale.errors import RemoteError
from easyscale.pipeline import determinism
from easyscale.pipeline.contribution import Contribution
from easyscale.pipeline.flat import GradientLayout
from easyscale.pipeline.training import Training
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.pipeline.engine import Engine
    from easyscale.pipeline.spec import JobSpec

STEPS = 7
"""More than one epoch, and the short batch at its end."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    determinism.configure(1)


def counting() -> Training:
    """Every EST counts its steps and what it saw, in objects of its own; the counts reach the loss."""
    counter, model = Counter(), toys.small_convnet()

    def step(model: nn.Module, batch: Any) -> Tensor:
        counter.steps += 1
        counter.seen = counter.seen + batch[0].mean()
        return toys.classify(model, batch) + counter.seen * model[0].weight.sum() / counter.steps

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model=model, optimizer=optimizer, dataset=toys.Images(), step=step, est_state={"counter": counter})


class Counter:
    def __init__(self) -> None:
        self.steps = 0
        self.seen = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.seen = state["steps"], state["seen"]


class Rare(nn.Module):
    """Parameters used by some ESTs, by none, and never trained; buffers of other types than float."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 10)
        self.sometimes = nn.Parameter(torch.full((10,), 0.5))
        self.never = nn.Parameter(torch.ones(3, 5))
        self.frozen = nn.Parameter(torch.ones(10), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(10, dtype=torch.bool))
        self.register_buffer("last", torch.zeros(10), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        out = self.body(images.flatten(1)) * self.frozen
        self.seen |= out[0] > 0
        self.last = out[0]  # another tensor in the buffer's place, and part of the graph
        return out + self.sometimes if images.mean() > 0 else out


def rare() -> Training:
    model = Rare()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    return Training(model=model, optimizer=optimizer, dataset=toys.Images(), step=toys.classify)


def half() -> Training:
    """Parameters of three dtypes, and an optimizer whose state is wider than its parameters."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 16, dtype=torch.bfloat16),
        nn.Linear(16, 16),
        nn.Linear(16, 10, dtype=torch.float64),
    )

    def step(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        hidden = model[1](model[0](batch[0]).bfloat16()).float()
        return {"loss": nn.functional.cross_entropy(model[3](model[2](hidden).double()), batch[1])}

    return Training(model=model, optimizer=Wide(model.parameters()), dataset=toys.Images(), step=step)


class Wide(torch.optim.Optimizer):
    """Momentum kept in float64 for parameters of any dtype, with a little noise."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["momentum"] = 0.9 * state.get("momentum", 0) + p.grad.double()
                p.add_(state["momentum"] + 1e-3 * torch.randn(()), alpha=-group["lr"])


CASES: dict[str, tuple[Callable[[], Training], dict[str, Any]]] = {
    "cnn": (toys.cnn, {}),
    "transformer with clipping and EMA": (toys.transformer, {"clip_norm": 1.0, "ema": 0.9}),
    "buffers per EST": (toys.cnn, {"buffers": "per_est", "schedule": "epoch"}),
    "micro-batches": (toys.cnn, {"micro_batches": 2, "drop_last": True}),
    "fp16": (toys.cnn, {"amp": "fp16", "clip_norm": 1.0}),
    "bf16": (toys.cnn, {"amp": "bf16"}),
    "rarely used parameters": (rare, {}),
    "rarely used parameters, buffers per EST": (rare, {"buffers": "per_est", "micro_batches": 3}),
    "state per EST": (counting, {}),
    "mixed dtypes": (half, {"ema": 0.5}),
    "mixed dtypes summed as they are": (half, {"reduce": "grad"}),
}
SPLITS = [sizes for n in range(2, 5) for sizes in itertools.product(range(1, 4), repeat=n) if sum(sizes) == 4]


def local(name: str) -> tuple[JobSpec, Engine]:
    build_fn, settings = CASES[name]
    job = toys.spec(**settings)
    return job, toys.engine(build_fn, job)


@pytest.mark.parametrize("name", CASES)
def test_every_split_of_four_ests_over_workers_gives_the_bits_of_one_worker(name: str) -> None:
    job, alone = local(name)
    reports = [alone.run_local() for _ in range(STEPS)]
    assert len(SPLITS) == 7
    for sizes in SPLITS:
        workers = [toys.engine(CASES[name][0], job) for _ in sizes]
        assert toys.run_together(workers, toys.ranges(sizes), STEPS) == reports
        assert {toys.digest(worker) for worker in workers} == {toys.digest(alone)}, sizes


@pytest.mark.parametrize("name", CASES)
def test_the_state_of_any_step_goes_on_alike_in_a_fresh_process_image(name: str) -> None:
    job, alone = local(name)
    states, reports, digests = [], [], []
    for _ in range(STEPS):
        states.append(torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, alone.state()))
        digests.append(toys.digest(alone))
        reports.append(alone.run_local())
    for step in (0, 1, 4, 6):
        fresh = toys.engine(CASES[name][0], job)
        fresh.load_state(states[step])
        assert fresh.step == step
        assert toys.digest(fresh) == digests[step]
        assert [fresh.run_local() for _ in range(step, STEPS)] == reports[step:]
        assert toys.digest(fresh) == toys.digest(alone)
    alone.load_state(states[2])
    assert [alone.run_local() for _ in range(2, STEPS)] == reports[2:], "rewound"


def test_membership_may_change_at_every_step_and_in_the_middle_of_one() -> None:
    job, alone = local("cnn")
    replicas = [toys.engine(toys.cnn, job) for _ in range(3)]
    for _ in range(STEPS):
        alone.run_local()
    for step in range(STEPS):
        parts = toys.ranges([(4,), (1, 3), (2, 2), (2, 1, 1)][step % 4])
        sent = [replica.compute(part).to_bytes() for replica, part in zip(replicas, parts, strict=False)]
        if step == 3:  # the others vanish with what they had: the first one computes their ESTs too
            sent = [sent[0], replicas[0].compute(range(2, 4)).to_bytes()]
        for replica in replicas:
            replica.apply([Contribution.from_bytes(data) for data in reversed(sent)])
    assert {toys.digest(replica) for replica in replicas} == {toys.digest(alone)}


@pytest.mark.parametrize("loaders", [1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_number_of_loader_processes_never_shows_in_the_bits(loaders: int) -> None:
    _, alone = local("cnn")
    helped = toys.engine(toys.cnn, toys.spec(loaders=loaders))
    try:
        assert [helped.run_local() for _ in range(STEPS)] == [alone.run_local() for _ in range(STEPS)]
        assert toys.digest(helped) == toys.digest(alone)
    finally:
        helped.close()


def test_a_step_that_is_computed_but_never_applied_leaves_no_trace() -> None:
    for name in CASES:
        _, engine = local(name)
        engine.run_local()
        before = toys.digest(engine)
        engine.compute(range(1, 3))
        assert toys.digest(engine) == before, name


def test_a_gradient_of_minus_zero_is_still_minus_zero_after_one_est() -> None:
    parameter = nn.Parameter(torch.ones(2))
    layout = GradientLayout([("p", parameter)])
    (parameter * torch.tensor([-0.0, 0.0])).sum().backward()
    out = layout.new(torch.device("cpu"))
    used = layout.collect(out)
    assert parameter.grad is None
    layout.scatter(out, used)
    assert parameter.grad is not None
    assert torch.signbit(parameter.grad).tolist() == [True, False]


def test_adding_in_place_gives_the_bits_of_collecting_and_adding() -> None:
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    layout = GradientLayout([(str(p.dtype), p) for p in parameters])
    left, right, added = (layout.new(torch.device("cpu")) for _ in range(3))
    for out in (left, added):
        parameters[0].grad = torch.tensor([-0.0, 1 / 3, -0.0])
        parameters[1].grad = torch.tensor([-0.0, 1 / 3, 1e30], dtype=torch.bfloat16)
        layout.collect(out)
    for use, out in ((layout.collect, right), (layout.add, added)):
        parameters[1].grad = torch.tensor([-0.0, 1e-3, 1e30], dtype=torch.bfloat16)
        parameters[2].grad = torch.tensor([-0.0, 1 / 3, 1e30], dtype=torch.float64)
        assert use(out) == bytes([0, 1, 1])
    for a, b, c in zip(left.flat, right.flat, added.flat, strict=True):
        assert (a + b).numpy().tobytes() == c.numpy().tobytes()


def test_gradients_keep_their_parameters_memory_format_and_tied_or_frozen_ones_take_no_room() -> None:
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tied = [("a", conv.weight), ("b", conv.weight), ("c", nn.Parameter(torch.ones(9), requires_grad=False))]
    layout = GradientLayout(tied)
    flat = layout.new(torch.device("cpu"))
    assert layout.names == ["a"]
    assert flat.views[0].stride() == conv.weight.stride()
    assert [t.shape for t in flat.flat] == [(48,)]


def test_parameters_that_nobody_used_do_not_move_and_rarely_used_ones_do() -> None:
    _, engine = local("rarely used parameters")
    for _ in range(STEPS):
        engine.run_local()
    parameters = engine.state()["model"]["parameters"]
    assert torch.equal(parameters["never"], torch.ones(3, 5)), "weight decay must not reach it"
    assert torch.equal(parameters["frozen"], torch.ones(10))
    assert not torch.equal(parameters["sometimes"], torch.full((10,), 0.5))
    assert engine.state()["model"]["buffers"]["calls"] == STEPS


def test_micro_batches_average_to_the_gradient_of_the_whole_batch() -> None:
    whole, pieces = (toys.engine(toys.linear, toys.spec(micro_batches=n)) for n in (1, 2))
    for _ in range(5):  # batches of 3 in pieces of 2 and 1
        assert pieces.run_local().loss == pytest.approx(whole.run_local().loss, rel=1e-5)
    for name, parameter in whole.state()["model"]["parameters"].items():
        torch.testing.assert_close(pieces.state()["model"]["parameters"][name], parameter)


def test_a_step_with_infinite_gradients_is_skipped_by_the_scaler_and_still_counts() -> None:
    def overflowing() -> Training:
        training = toys.cnn()
        calls = iter(range(1000))

        def step(model: nn.Module, batch: Any) -> Tensor:
            loss = toys.classify(model, batch)
            return loss.detach() + (loss - loss.detach()) * (1e38 if next(calls) == 4 * 2 + 1 else 1)  # EST 1, step 2

        return Training(
            model=training.model, optimizer=training.optimizer, dataset=training.dataset, step=step,
            scheduler=training.scheduler,
        )  # fmt: skip

    engine = toys.engine(overflowing, toys.spec(amp="fp16"))
    scales, skipped, parameters = [], [], []
    for _ in range(4):
        skipped.append(engine.run_local().skipped)
        scales.append(engine.state()["scaler"]["scale"])
        parameters.append(engine.state()["model"]["parameters"]["0.weight"].clone())
    assert skipped == [True, False, True, False], "the first scale is too large for this net"
    assert scales == [32768.0, 32768.0, 16384.0, 16384.0]
    assert torch.equal(parameters[1], parameters[2])
    assert not torch.equal(parameters[2], parameters[3])
    assert engine.step == 4
    assert engine.state()["scheduler"]["last_epoch"] == 4


@pytest.mark.parametrize("schedule", ["step", "epoch"])
def test_the_learning_rate_follows_steps_or_epochs(schedule: str) -> None:
    engine = toys.engine(toys.cnn, toys.spec(schedule=schedule))
    rates = [engine.run_local().lr for _ in range(16)]
    halvings = [t // 3 if schedule == "step" else t // 5 // 3 for t in range(16)]
    assert rates == [[0.1 * 0.5**n] for n in halvings]


def test_the_average_of_the_parameters_is_what_is_evaluated() -> None:
    def trained(model: nn.Module) -> dict[str, float]:
        return {"weight": float(model[1].weight.abs().sum()), "training": float(model.training)}

    def build_fn() -> Training:
        t = toys.linear()
        return Training(model=t.model, optimizer=t.optimizer, dataset=t.dataset, step=t.step, evaluate=trained)

    engine = toys.engine(build_fn, toys.spec(ema=0.75))
    average = engine.state()["model"]["parameters"]["1.weight"].clone()
    for _ in range(3):
        engine.run_local()
        average += 0.25 * (engine.state()["model"]["parameters"]["1.weight"] - average)
    metrics = engine.evaluate()
    assert metrics["weight"] == pytest.approx(float(average.abs().sum()), rel=1e-6)
    assert metrics["training"] == 0.0
    trained_weight = engine.state()["model"]["parameters"]["1.weight"]
    assert metrics["weight"] != pytest.approx(float(trained_weight.abs().sum()), rel=1e-6)


@pytest.mark.parametrize("buffers", ["rank0", "per_est"])
def test_evaluation_leaves_no_trace_and_can_be_repeated(buffers: str) -> None:
    def partly_frozen() -> Training:
        training = toys.cnn()
        training.model[1].eval()
        return training

    engine = toys.engine(partly_frozen, toys.spec(buffers=buffers, ema=0.5))
    engine.run_local()
    modes = [module.training for module in engine._model.modules()]
    before, numbers = toys.digest(engine), torch.get_rng_state()
    first = engine.evaluate()
    assert first == engine.evaluate()
    assert list(first) == ["weight_sum"]
    assert toys.digest(engine) == before
    assert torch.equal(torch.get_rng_state(), numbers)
    assert [module.training for module in engine._model.modules()] == modes
    assert False in modes


def test_contributions_that_do_not_make_a_step_are_refused_and_change_nothing() -> None:
    _, engine = local("cnn")
    engine.run_local()
    before = toys.digest(engine)
    first, second = engine.compute(range(2)), engine.compute(range(2, 4))
    with pytest.raises(ValueError, match=r"ESTs \[0, 1\] are not those of all 4"):
        engine.apply([first])
    engine.apply([first, second])
    with pytest.raises(ValueError, match="a contribution to step 1 is not one to step 2"):
        engine.apply([first, second])
    assert engine.step == 2
    assert toys.digest(engine) != before


def test_an_item_that_raises_leaves_the_state_and_names_the_sample() -> None:
    engine = toys.engine(toys.linear, toys.spec())
    before = toys.digest(engine)
    images = engine._training.dataset.images
    engine._training.dataset.images = images[:20]
    with pytest.raises(RemoteError, match=r"sample \d+ of the dataset"):
        engine.run_local()
    assert toys.digest(engine) == before
    engine._training.dataset.images = images
    reference = toys.engine(toys.linear, toys.spec())
    assert engine.run_local() == reference.run_local()
    assert toys.digest(engine) == toys.digest(reference)
