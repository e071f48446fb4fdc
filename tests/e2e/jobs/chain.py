"""The pipeline of the end-to-end tests: prepare (a function), train (a job), evaluate (a function), in milliseconds.

`JOB_STEPS=<folder>` is told of each point that a stage comes to, by a file `<stage>.<point>.<pid>`; while a file
`stop.<stage>.<point>` lies there, whoever comes to that point waits. Of training, `step` is in the middle of one, after
the first commit. With `JOB_RESTLESS=1` the first function returns
something else each time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import easyscale as es
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

POINTS = os.environ.get("JOB_STEPS")
RESTLESS = os.environ.get("JOB_RESTLESS")


def at(stage: str, point: str) -> None:
    if POINTS is None:
        return
    (Path(POINTS) / f"{stage}.{point}.{os.getpid()}").touch()
    while (Path(POINTS) / f"stop.{stage}.{point}").exists():
        time.sleep(0.01)


def prepare() -> dict[str, Any]:
    at("prepare", "begun")
    images = torch.randn(40, 6)
    labels = (images.sum(dim=1) > 0).long()
    at("prepare", "computed")
    called = time.time() if RESTLESS else 0.0
    return {"images": images, "labels": labels, "names": ("no", "yes"), "called": called, "nothing": None}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def build(prepare: dict[str, Any]) -> es.Training:
    at("train", "building")
    model = net()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if model[1].num_batches_tracked == 4:  # so many steps are behind the state
            at("train", "step")
        return functional.cross_entropy(model(batch[0]), batch[1])

    data = TensorDataset(prepare["images"], prepare["labels"])
    prepare["images"] = torch.zeros(1)  # what a stage does to its inputs is its own business
    return es.Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data, step=step)


def evaluate(prepare: dict[str, Any], train: es.Committed) -> dict[str, Any]:
    at("evaluate", "begun")
    assert prepare["names"] == ("no", "yes")
    scores = train.load_into(net()).eval()(prepare["images"]) + torch.rand(1)
    at("evaluate", "computed")
    right = (scores.argmax(dim=1) == prepare["labels"]).float().mean().item()
    return {"right": right, "scores": scores, "step": train.step}


chain = es.Pipeline(
    "chain", [prepare, es.Job("train", build, ests=2, batch_size=5, steps=12, commit_every=3, seed=3), evaluate]
)
