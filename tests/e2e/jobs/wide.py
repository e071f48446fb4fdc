"""A job whose ESTs take memory: each has a buffer of its own, of SIZE numbers.

`JOB_ROOM=<n>`: here memory runs out when more ESTs than that are computed in one step, other than the first, which
probes compute too. `JOB_STEPS=<folder>`: while a
file `slow` lies there, each gradient takes SLOW seconds; both as in `small.py`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import easyscale as es
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SIZE = 4 << 20
SLOW = 0.2
ROOM = int(os.environ.get("JOB_ROOM", "1000"))
STEPS = Path(os.environ.get("JOB_STEPS", "nowhere"))


class Wide(nn.Module):
    """A linear layer that remembers its last inputs in a large buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("last", torch.zeros(SIZE))

    def forward(self, inputs: Tensor) -> Tensor:
        self.last[: inputs.numel()] += inputs.detach().flatten()
        return self.layer(inputs)


def build() -> es.Training:
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    computed = [-1, 0]

    def step(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if computed[0] != scheduler.last_epoch:
            computed[:] = scheduler.last_epoch, 0
        computed[1] += 1
        if computed[1] > ROOM and scheduler.last_epoch:
            raise MemoryError(f"a test has room for {ROOM} ESTs")
        if (STEPS / "slow").exists():
            time.sleep(SLOW)
        return model(batch[0]).square().mean()

    data = TensorDataset(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)))
    return es.Training(model=model, optimizer=optimizer, scheduler=scheduler, dataset=data, step=step)


job = es.Job("wide", build, ests=4, batch_size=4, steps=24, seed=3, commit_every=1000, buffers="per_est")

if __name__ == "__main__":
    print(job.submit().name)
