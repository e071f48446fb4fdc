"""The job that the engine is checked with: a small convolutional net on made-up images.

Batch norm, dropout, augmentation, momentum, clipping and a schedule: what usually makes a run depend on its machines.
"""

from __future__ import annotations

import easyscale as es
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import Tensor, nn
from torch.utils.data import Dataset

SAMPLES = 512


class Images(Dataset[tuple[Tensor, int]]):
    """Ten classes of 1 x 8 x 8 images: a pattern for each, and noise, which is drawn anew whenever one is asked for."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.patterns = torch.randn(10, 1, 8, 8, generator=generator)
        self.labels = torch.randint(10, (SAMPLES,), generator=generator).tolist()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = self.labels[index]
        return self.patterns[label] + torch.randn(1, 8, 8), label


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the batch, in nats."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def build() -> es.Training:
    """Everything that one replica needs; the random numbers are seeded before."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return es.Training(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4),
        dataset=Images(),
        step=loss,
    )


job = es.Job("gpu-check", build, ests=4, batch_size=16, steps=24, commit_every=8, schedule="epoch", clip_norm=1.0)
