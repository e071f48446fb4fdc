"""Four stages on scikit-learn's handwritten digits: prepare, train, fine-tune, evaluate. Seconds on one CPU core.

    easyscale run examples/pipeline.py --workers 2

Stages get the results of earlier ones by the names of their parameters. Interrupt it anywhere, kill it anywhere: the
same command goes on, and comes to the same bits.
"""

from __future__ import annotations

from typing import Any

import easyscale as es
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def prepare() -> dict[str, Any]:
    """Scans as (n, 64) numbers of mean 0 and deviation 1; every fifth is held out."""
    scans = load_digits()
    images = torch.tensor(scans.data, dtype=torch.float32)
    labels = torch.tensor(scans.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    mean, deviation = images[~held_out].mean(), images[~held_out].std()
    images = (images - mean) / deviation
    return {
        "train": {"images": images[~held_out], "labels": labels[~held_out]},
        "held_out": {"images": images[held_out], "labels": labels[held_out]},
        "scans": len(labels),
    }


def net() -> nn.Module:
    """(n, 64) scans -> (n, 10) scores."""
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the batch, in nats."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def training(model: nn.Module, data: dict[str, Tensor], lr: float) -> es.Training:
    """A training of this model on these scans."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return es.Training(
        model=model, optimizer=optimizer, dataset=TensorDataset(data["images"], data["labels"]), step=loss
    )


def build(prepare: dict[str, Any]) -> es.Training:
    """Train from the beginning."""
    return training(net(), prepare["train"], lr=0.05)


def build_on(prepare: dict[str, Any], train: es.Committed) -> es.Training:
    """Go on with what was trained, on the digits that are most alike, 3, 5, 8 and 9."""
    data = prepare["train"]
    alike = torch.isin(data["labels"], torch.tensor([3, 5, 8, 9]))
    model = train.load_into(net())
    return training(model, {name: values[alike] for name, values in data.items()}, lr=0.005)


def evaluate(prepare: dict[str, Any], train: es.Committed, finetune: es.Committed) -> dict[str, float]:
    """Share of the held-out scans that are recognised, before and after fine-tuning."""
    data = prepare["held_out"]

    def accuracy(committed: es.Committed) -> float:
        model = committed.load_into(net()).eval()
        return (model(data["images"]).argmax(dim=1) == data["labels"]).float().mean().item()

    return {"trained": accuracy(train), "finetuned": accuracy(finetune)}


pipeline = es.Pipeline(
    "digits-pipeline",
    [
        prepare,
        es.Job("train", build, ests=4, batch_size=16, epochs=5, seed=1),
        es.Job("finetune", build_on, ests=2, batch_size=16, epochs=2, seed=1),
        evaluate,
    ],
)

if __name__ == "__main__":
    for name, result in pipeline.run().items():
        print(name, result)
