"""A plain DDP training of handwritten digits, as it was before: docs/moving.md goes through it line by line.

torchrun --nproc-per-node 2 examples/moving/ddp.py checkpoint.pt
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, SEED = 10, 16, 1


def main() -> None:
    """One rank."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)

    scans = load_digits()
    images, labels = torch.tensor(scans.data, dtype=torch.float32) / 16, torch.tensor(scans.target)
    dataset = TensorDataset(images[:1400], labels[:1400])
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset, seed=SEED)
    loader = DataLoader(dataset, BATCH, sampler=sampler)
    first, path = 0, Path(sys.argv[1])
    if path.exists():
        saved = torch.load(path, weights_only=True)
        first = saved["epoch"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])

    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        if rank == 0:
            torch.save(
                {
                    "epoch": epoch + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                },
                path,
            )

    if rank == 0:
        model.eval()
        with torch.no_grad():
            right = model(images[1400:]).argmax(dim=1) == labels[1400:]
        print(f"accuracy {right.float().mean().item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
