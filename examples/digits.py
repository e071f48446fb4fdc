"""Handwritten digits: a small convolutional net on scikit-learn's scans, in about half a minute on one CPU core.

    easyscale run examples/digits.py --workers 3

All that usually makes a run depend on the machines it ran on is here on purpose: BatchNorm, dropout, random
augmentation, momentum and a learning rate schedule.
"""

from __future__ import annotations

import math

import easyscale as es
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

EPOCHS = 20


class Digits(Dataset[tuple[Tensor, int]]):
    """Every fifth scan is held out for evaluation; the others are turned and moved a little, anew in each epoch."""

    def __init__(self, train: bool) -> None:
        scans = load_digits()
        chosen = (torch.arange(len(scans.target)) % 5 != 0) == train
        self.images = torch.tensor(scans.images, dtype=torch.float32)[chosen, None] / 16  # (n, 1, 8, 8) in 0..1
        self.labels = torch.tensor(scans.target)[chosen]
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return (jiggle(image) if self.train else image), int(self.labels[index])


def jiggle(image: Tensor) -> Tensor:
    """Turn by up to 12 degrees and move by up to a pixel in each direction."""
    angle, right, down = ((torch.rand(3) * 2 - 1) * torch.tensor([math.pi / 15, 0.25, 0.25])).tolist()
    turn = [[math.cos(angle), -math.sin(angle), right], [math.sin(angle), math.cos(angle), down]]
    grid = F.affine_grid(torch.tensor([turn]), [1, *image.shape], align_corners=False)
    return F.grid_sample(image[None], grid, align_corners=False)[0]


def net() -> nn.Module:
    """(n, 1, 8, 8) images -> (n, 10) scores."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32), *block(32, 32), nn.MaxPool2d(2),
        *block(32, 64), *block(64, 64), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 2 * 2, 10),
    )  # fmt: skip


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the batch, in nats."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def accuracy(model: nn.Module) -> dict[str, float]:
    """Share of the held-out scans that are recognised."""
    held_out = Digits(train=False)
    device = next(model.parameters()).device
    right = model(held_out.images.to(device)).argmax(dim=1) == held_out.labels.to(device)
    return {"accuracy": right.float().mean().item()}


def build() -> es.Training:
    """Everything that one replica needs; the random numbers are seeded before."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return es.Training(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS),
        dataset=Digits(train=True),
        step=loss,
        evaluate=accuracy,
    )


job = es.Job("digits", build, ests=4, batch_size=16, epochs=EPOCHS, schedule="epoch", seed=1)

if __name__ == "__main__":
    handle = job.submit()
    print(handle.result())
