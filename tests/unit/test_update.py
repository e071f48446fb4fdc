"""The optimizer's half: what torch offers is restored to the bit, in a fresh object that never made a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import toys
from easyscale.pipeline import determinism
from easyscale.pipeline.contexts import copy_tree
from easyscale.pipeline.training import Training
from torch.optim import lr_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW, amsgrad, one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
    "Adam with a tensor as rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], lr=0.2, momentum=0.5),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 2, 5], 0.5),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}
CASES = [(name, "StepLR") for name in OPTIMIZERS] + [("SGD with momentum", name) for name in SCHEDULERS]


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own call inside SequentialLR
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # and inside its constructors
def test_optimizer_and_scheduler_go_on_alike_in_a_fresh_object(optimizer: str, scheduler: str) -> None:
    determinism.configure(1)

    def build_fn() -> Training:
        model = toys.small_convnet()
        o = OPTIMIZERS[optimizer](list(model.parameters()))
        return Training(
            model=model, optimizer=o, scheduler=SCHEDULERS[scheduler](o), dataset=toys.Images(), step=toys.classify
        )

    whole = toys.engine(build_fn, toys.spec(ests=1))
    states, digests, reports = [], [], []
    for _ in range(8):
        states.append(copy_tree(whole.state()))
        digests.append(toys.digest(whole))
        reports.append(whole.run_local())
    for step in (0, 1, 5):
        before = copy_tree(states[step])
        fresh = toys.engine(build_fn, toys.spec(ests=1))
        fresh.load_state(states[step])
        assert toys.digest(fresh) == digests[step]
        assert [fresh.run_local() for _ in range(step, 8)] == reports[step:]
        assert toys.digest(fresh) == toys.digest(whole)
        assert toys.digest_of(states[step]) == toys.digest_of(before), "training on has changed what was loaded"
