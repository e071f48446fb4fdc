"""What people run on torchft: its DDP and its optimizer around a loop; each process is a replica group of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lines import JOB, STEPS, Lines, batches, build, digest
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    """One replica group, until the last step."""
    training, lines = build(), Lines()
    group = int(os.environ["GROUP"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stateful = {"model": training.model, "optimizer": training.optimizer, "scheduler": training.scheduler}

    def load_state_dict(state: dict[str, Any]) -> None:
        for name, it in stateful.items():
            it.load_state_dict(state[name])

    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {name: it.state_dict() for name, it in stateful.items()},
        replica_id=f"group{group}_",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
    )
    wrapped = DistributedDataParallel(manager, training.model)
    optimizer = Optimizer(manager, training.optimizer)
    sampler = DistributedSampler(
        training.dataset, replica_rank=group, num_replica_groups=int(os.environ["GROUPS"]), group_rank=0,
        num_replicas=1, seed=JOB.seed,
    )  # fmt: skip
    for batch in batches(training, sampler, 0):
        before = manager.current_step()
        optimizer.zero_grad()  # asks for a quorum
        training.step(wrapped, batch).backward()
        if JOB.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), JOB.clip_norm)
        optimizer.step()  # dropped if the exchange broke
        if manager.current_step() > before:
            if JOB.schedule == "step":
                training.scheduler.step()
            lines.finished(manager.current_step())
        if manager.current_step() >= STEPS:
            break
    if manager.participating_rank() == 0:
        Path(os.environ["RESULT"]).write_text(digest(training.model))
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
