"""What both rivals' scripts share: the example's job, and the lines that tell when a step was finished."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, os.environ["MODEL_FOLDER"])
import model

if TYPE_CHECKING:
    from collections.abc import Iterator

    import easyscale as es

JOB = model.job.settings
STEPS = int(os.environ["STEPS"])


def build() -> es.Training:
    """The example's training, the same in every process."""
    torch.manual_seed(JOB.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training: es.Training = model.job.build()
    return training


class Lines:
    """A line per finished step in `$WATCHED/<pid>.finished`, as `tests/watching/watched.py` writes it."""

    def __init__(self) -> None:
        path = Path(os.environ["WATCHED"]) / f"{os.getpid()}.finished"
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def finished(self, step: int) -> None:
        """The number takes the place of a fingerprint."""
        os.write(self._file, f"{time.time():18.6f} {step:08x}\n".encode())


def digest(module: torch.nn.Module) -> str:
    """Of parameters and buffers."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def batches(training: es.Training, sampler: Any, step: int) -> Iterator[Any]:
    """From a step on, epoch after epoch; a started epoch goes on where it was."""
    loader = torch.utils.data.DataLoader(training.dataset, batch_size=JOB.batch_size, sampler=sampler, drop_last=True)
    epoch, skip = divmod(step, len(loader))
    while True:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if number >= skip:
                yield batch
        if JOB.schedule == "epoch":
            training.scheduler.step()
        epoch, skip = epoch + 1, 0
