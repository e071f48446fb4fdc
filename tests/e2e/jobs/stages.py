"""A tiny job that can be made to wait wherever user code runs, so that something can be done to it just there.

`JOB_PAUSE=<stage>` waits at `inspect`, `build`, `step`, `evaluate` or `commit` (while the state is copied): it makes
the file `JOB_SIGN`, and goes on when that is gone. At `loader` it is a loader process that waits, and the next step
raises.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import easyscale as es
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

INSPECTED = Path(__file__).resolve().parent.name == "jobs"
"""Runners run a copy that lies elsewhere."""

SECONDS = 120.0
PACE = 0.01
"""Seconds per EST and step: the job must not be done before anybody has heard of what was sent in a pause."""

PAUSED: set[str] = set()
PAUSE_AFTER = 3
"""Steps before the pauses at `step`, `evaluate` and `commit`."""


def pause(stage: str) -> None:
    """Wait here, if that was asked for; once in each process."""
    if stage != os.environ.get("JOB_PAUSE") or stage in PAUSED:
        return
    PAUSED.add(stage)
    sign = Path(os.environ["JOB_SIGN"])
    sign.touch()
    deadline = time.monotonic() + SECONDS
    while sign.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def until_made(sign: Path) -> None:
    """Wait for the file."""
    deadline = time.monotonic() + SECONDS
    while not sign.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


class Numbers(Dataset[Tensor]):
    """Sample i is drawn at random."""

    fetched: ClassVar[set[int]] = set()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        if get_worker_info() is not None:
            self.fetched.add(index)  # an item may be fetched twice: see `loader`
            if len(self.fetched) > 2:  # not the first batch
                pause("loader")
        return torch.randn(4) + index


class Count:
    """How many samples an EST has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        if self.seen >= 2 * PAUSE_AFTER:
            pause("commit")
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def build() -> es.Training:
    """Stages as in the module's docstring."""
    if not INSPECTED:
        pause("build")
    model = nn.Linear(4, 1)
    count = Count()

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        count.seen += len(batch)
        if count.seen > 2 * PAUSE_AFTER:
            pause("step")
        time.sleep(PACE)
        if os.environ.get("JOB_PAUSE") == "loader":
            until_made(Path(os.environ["JOB_SIGN"]))
            raise ValueError("enough")
        return model(batch).square().mean()

    def evaluate(model: nn.Module) -> float:
        pause("evaluate")
        return float(model.weight.detach().sum())

    return es.Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9),
        dataset=Numbers(),
        step=step,
        evaluate=evaluate,
        est_state={"count": count},
    )


if INSPECTED:
    pause("inspect")
job = es.Job("stages", build, ests=2, batch_size=2, steps=40, seed=1, commit_every=4, evaluate_every=4)
