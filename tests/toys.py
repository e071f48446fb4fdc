"""Small trainings that are quick on one core, and helpers to run them in one process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from easyscale.pipeline.contribution import Contribution
from easyscale.pipeline.engine import Engine, StepReport, build
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.training import Training
from easyscale.storage.digest import tree_digest
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SAMPLES = 50
VOCABULARY = 13
SEQUENCE = 6


def spec(**settings: Any) -> JobSpec:
    """A job over `SAMPLES` samples: 4 ESTs with 3 samples each, 5 steps per epoch, the last one short."""
    defaults: dict[str, Any] = {
        "name": "toy",
        "script": "toy.py",
        "code": "",
        "data": "",
        "samples": SAMPLES,
        "ests": 4,
        "batch_size": 3,
        "seed": 5,
    }
    if "epochs" not in settings:
        defaults["steps"] = 1000
    return JobSpec(**(defaults | settings))


class Images(Dataset[tuple[Tensor, int]]):
    """Ten-class 1x8x8 images with augmentation from all three random generators."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(samples, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 10, (samples,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].roll(random.randint(-1, 1), dims=-1)
        if np.random.rand() < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn_like(image), self.labels[index]


class Tokens(Dataset[Tensor]):
    """Short sequences of tokens."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, VOCABULARY, (samples, SEQUENCE + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


class Transformer(nn.Module):
    """One block, with the output tied to the embedding and a frozen table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.positions = nn.Parameter(torch.randn(SEQUENCE, 16), requires_grad=False)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.full((SEQUENCE, SEQUENCE), float("-inf")).triu(1)
        return self.head(self.block(self.embed(tokens) + self.positions, src_mask=mask))


def classify(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def predict_next(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross entropy of the next token."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def small_convnet() -> nn.Module:
    """Convolution, BatchNorm, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def cnn() -> Training:
    """A convolutional net with momentum, a learning rate that falls every third step, and random augmentation."""
    model = small_convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    return Training(
        model=model, optimizer=optimizer, scheduler=scheduler, dataset=Images(), step=classify, evaluate=weight_sum
    )


def transformer() -> Training:
    """A transformer with AdamW and a cosine schedule with warm-up."""
    model = Transformer()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=2000)
    return Training(model=model, optimizer=optimizer, scheduler=scheduler, dataset=Tokens(), step=predict_next)


def linear() -> Training:
    """The least there is: a linear layer and plain SGD."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Training(model=model, optimizer=optimizer, dataset=Images(), step=classify)


def weight_sum(model: nn.Module) -> float:
    """A metric that sees parameters, buffers, mode and random numbers."""
    output = model(torch.ones(2, 1, 8, 8))
    return float(output.double().sum() + torch.rand(()).double())


def engine(build_fn: Callable[[], Training], job: JobSpec) -> Engine:
    """A fresh replica."""
    return Engine(build(build_fn, job), job)


def digest(replica: Engine) -> str:
    """The digest of the state held."""
    return digest_of(replica.state())


def digest_of(state: Any) -> str:
    """A state's digest, as commits have it."""
    return tree_digest(state)


def ranges(sizes: Iterable[int]) -> list[range]:
    """Contiguous ranges of these lengths, from 0."""
    found, start = [], 0
    for size in sizes:
        found.append(range(start, start + size))
        start += size
    return found


def run_together(replicas: Sequence[Engine], parts: Sequence[range], steps: int) -> list[StepReport]:
    """Run steps with each replica computing its part; contributions travel as bytes."""
    reports = []
    for _ in range(steps):
        sent = [replica.compute(part).to_bytes() for replica, part in zip(replicas, parts, strict=True)]
        told = [replica.apply([Contribution.from_bytes(data) for data in sent]) for replica in replicas]
        reports.append(told[0])
    return reports
