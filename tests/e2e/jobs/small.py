"""The job of the end-to-end tests: everything that could make a run depend on where it ran, in steps of milliseconds.

Convolution, BatchNorm, dropout, augmentation from three random generators, momentum, a schedule per step, an uneven
last batch. Each EST also keeps the ids of the samples it has seen, so that they are part of the state and its digest.

How fast it goes and what goes wrong in it come from the environment of the runner, so that the code and the bits are
those of the undisturbed run: `JOB_PACE` seconds per EST and step; `JOB_FAULT=<fault>:<step>[,<step>...]`, see
`misbehave`; with `JOB_ONCE=<file>` the fault happens to the first who can make that file, and never again; if there are
several steps, each has a file of its own. `JOB_STEPS=<folder>` is told of each step that begins, by a file of its name;
while a file `slow` lies there, each gradient takes SLOW seconds, however busy the machine is with other things.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import time
from pathlib import Path

import easyscale as es
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

SAMPLES = 60
SLOW = 0.2
PACE = float(os.environ.get("JOB_PACE", "0"))
FAULT, _, _STEPS = os.environ.get("JOB_FAULT", "none:-1").partition(":")
FAULT_STEPS = [int(step) for step in _STEPS.split(",")]
ONCE = os.environ.get("JOB_ONCE")
STEPS_BEGUN = os.environ.get("JOB_STEPS")
BUILDING = -2
"""As a step: while the training is built."""


class Images(Dataset[tuple[Tensor, int, int]]):
    """Image, label and the sample's id."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 10, (SAMPLES,), generator=generator).tolist()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        image = self.images[index].roll(random.randint(-1, 1), dims=-1)
        if np.random.rand() < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn_like(image), self.labels[index], index


class Seen:
    """The ids of all samples that one EST was given, in order."""

    def __init__(self) -> None:
        self.ids = torch.empty(0, dtype=torch.int64)

    def add(self, ids: Tensor) -> None:
        self.ids = torch.cat([self.ids, ids.cpu()])

    def state_dict(self) -> dict[str, Tensor]:
        return {"ids": self.ids}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.ids = state["ids"].clone()


def misbehave(step: int) -> None:
    """The fault that was asked for."""
    if ONCE is not None:
        try:
            Path(ONCE if len(FAULT_STEPS) == 1 else f"{ONCE}-{step}").touch(exist_ok=False)
        except FileExistsError:
            return
    if FAULT == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "die-with-worker":
        os.kill(
            int(os.environ["JOB_AGENT"]), signal.SIGKILL
        )  # what takes the machine down: all that it has dies with it
        time.sleep(1e6)
    if FAULT == "hang":
        time.sleep(1e6)
    if FAULT == "hold":
        ctypes.PyDLL(None).sleep(5)  # PyDLL does not let go of the GIL: no other thread runs meanwhile
    if FAULT == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        torch.empty(1 << 30, dtype=torch.uint8)


def build() -> es.Training:
    if BUILDING in FAULT_STEPS:
        misbehave(BUILDING)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    seen = Seen()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        images, labels, ids = batch
        if STEPS_BEGUN is not None:
            (Path(STEPS_BEGUN) / str(scheduler.last_epoch)).touch()
            if (Path(STEPS_BEGUN) / "slow").exists():
                time.sleep(SLOW)
        if scheduler.last_epoch in FAULT_STEPS:
            misbehave(scheduler.last_epoch)
        time.sleep(PACE)
        seen.add(ids)
        return functional.cross_entropy(model(images), labels)

    def weight_sum(model: nn.Module) -> float:
        return sum(float(parameter.double().sum()) for parameter in model.parameters())

    return es.Training(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=Images(),
        step=step,
        evaluate=weight_sum,
        est_state={"seen": seen},
    )


job = es.Job("small", build, ests=4, batch_size=4, steps=80, seed=3, commit_every=10)

if __name__ == "__main__":
    print(job.submit().name)
