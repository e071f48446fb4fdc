"""The same training as `ddp.py`, as a job: docs/moving.md goes through it line by line.

easyscale run examples/moving/job.py --workers 2
"""

import easyscale as es
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

EPOCHS, BATCH, SEED = 10, 16, 1


def build() -> es.Training:
    """One replica: what every rank had."""
    torch.manual_seed(SEED)  # only to begin with the parameters of ddp.py: all random numbers are seeded before

    scans = load_digits()
    images, labels = torch.tensor(scans.data, dtype=torch.float32) / 16, torch.tensor(scans.target)
    dataset = TensorDataset(images[:1400], labels[:1400])
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return cross_entropy(model(inputs), targets)

    def accuracy(model: nn.Module) -> dict[str, float]:
        right = model(images[1400:]).argmax(dim=1) == labels[1400:]
        return {"accuracy": right.float().mean().item()}

    return es.Training(
        model=model, optimizer=optimizer, scheduler=scheduler, dataset=dataset, step=loss, evaluate=accuracy
    )


job = es.Job("moved", build, ests=2, batch_size=BATCH, epochs=EPOCHS, seed=SEED, schedule="epoch", clip_norm=1.0)

if __name__ == "__main__":
    print(job.submit().result())
