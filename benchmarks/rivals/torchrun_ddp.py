"""What people run under `torchrun --nnodes=1:3`: DDP, a checkpoint every few steps, resumed when restarted."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from lines import JOB, STEPS, Lines, batches, build, digest
from torch.nn.parallel import DistributedDataParallel

EVERY = int(os.environ["EVERY"])
CHECKPOINT = Path(os.environ["CHECKPOINT"])


def main() -> None:
    """One worker, until the last step."""
    dist.init_process_group("gloo")
    training, lines, step = build(), Lines(), 0
    wrapped = DistributedDataParallel(training.model)
    stateful = {"model": training.model, "optimizer": training.optimizer, "scheduler": training.scheduler}
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        step = saved["step"]
        for name, it in stateful.items():
            it.load_state_dict(saved[name])
    sampler = torch.utils.data.DistributedSampler(training.dataset, seed=JOB.seed)
    for batch in batches(training, sampler, step):
        training.optimizer.zero_grad()
        training.step(wrapped, batch).backward()
        if JOB.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), JOB.clip_norm)
        training.optimizer.step()
        if JOB.schedule == "step":
            training.scheduler.step()
        step += 1
        lines.finished(step)
        if dist.get_rank() == 0 and step % EVERY == 0:
            new = CHECKPOINT.with_suffix(".new")
            torch.save({"step": step, **{name: it.state_dict() for name, it in stateful.items()}}, new)
            new.replace(CHECKPOINT)
        if step >= STEPS:
            break
    if dist.get_rank() == 0:
        Path(os.environ["RESULT"]).write_text(digest(training.model))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
