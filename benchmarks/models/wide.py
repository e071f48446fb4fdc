"""A job whose state is large for the time of its steps: ten million parameters and their momentum, 80 MB."""

from __future__ import annotations

import easyscale as es
import torch
from torch.utils.data import TensorDataset


def build() -> es.Training:
    """Ten layers of a million parameters."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(10)))
    data = TensorDataset(torch.randn(256, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return es.Training(model=model, optimizer=optimizer, dataset=data, step=lambda m, batch: m(batch[0]).pow(2).mean())


job = es.Job("wide", build, ests=3, batch_size=2, steps=1000)
