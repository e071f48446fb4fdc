"""What PyTorch's own Python does otherwise on a GPU: computed on both devices by a process that is exact.

A process of its own (`worlds.start`), with the stand-in (`stand_in.environment`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import toys
from easyscale.pipeline.engine import Engine, build
from easyscale.pipeline.reduction import mean
from easyscale.storage import sums
from easyscale.storage.commits import Snapshot
from easyscale.storage.digest import has_nonfinite, tree_digest
from torch import nn, optim

if TYPE_CHECKING:
    from collections.abc import Callable


Make = "Callable[[Iterator[Tensor]], Optimizer]"

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw-foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "adamw-fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "adadelta": lambda p: optim.Adadelta(p),
    "rprop": lambda p: optim.Rprop(p),
    "asgd": lambda p: optim.ASGD(p),
}


def model() -> nn.Module:
    """Of what autocast treats in all its ways."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8 * 36), nn.Linear(8 * 36, 32)),
        *(nn.Softmax(1), nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 10)),
    )


def trained(device: str, make: Any, *, amp: torch.dtype | None = None, clip: float | None = None) -> dict[str, Any]:
    """The model and the optimizer after four steps."""
    net = model().to(device)
    images, labels = torch.randn(6, 3, 8, 8).to(device), torch.arange(6).to(device)
    optimizer = make(net.parameters())
    scaler = torch.amp.GradScaler(device, enabled=amp is torch.float16)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=amp, enabled=amp is not None):
            out = net(images)
            loss = (
                nn.functional.cross_entropy(torch.cat([out, out.float()]), labels.repeat(2)) + out.sum().log1p().abs()
            )
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return {"model": dict(net.state_dict()), "out": out.detach(), "optimizer": optimizer.state_dict()}


def averaged(device: str, average: Any) -> dict[str, Any]:
    """Averages of weights."""
    net = nn.Linear(4, 4).to(device)
    mean = optim.swa_utils.AveragedModel(net, multi_avg_fn=average)
    for factor in (1, 2, 3):
        net.weight.data.mul_(factor)
        mean.update_parameters(net)
    return dict(mean.state_dict())


WORK: dict[str, Callable[[str], Any]] = {
    "sums": lambda device: summed(device),
    **{f"optimizer-{name}": lambda device, make=make: trained(device, make) for name, make in OPTIMIZERS.items()},
    "clipped": lambda device: trained(device, OPTIMIZERS["sgd"], clip=0.5),
    "autocast-bf16": lambda device: trained(device, OPTIMIZERS["sgd"], amp=torch.bfloat16),
    "autocast-fp16": lambda device: trained(device, OPTIMIZERS["adamw"], amp=torch.float16, clip=0.5),
    "swa": lambda device: averaged(device, None),
    "ema": lambda device: averaged(device, optim.swa_utils.get_ema_multi_avg_fn(0.9)),
    "random-numbers": lambda device: [
        torch.randn(50, device=device),
        torch.rand(50, device=device),
        torch.randint(9, (50,), device=device),
        torch.randperm(50, device=device),
        torch.multinomial(torch.ones(50, device=device), 5),
        torch.randn(50, device=device, generator=torch.Generator().manual_seed(1)),
    ],
}


def summed(device: str) -> list[str]:
    """What replicas compare: of tensors on a device and on the host beside them."""
    tensors = [
        torch.randn(5000).to(device),
        torch.randn(7).bfloat16().to(device),
        torch.ones(3),
        torch.zeros(0).to(device),
    ]
    state = {"weights": tensors, "step": 3}
    return [
        sums.pack_sums(tensors).hex(),
        sums.sample_sum(tensors[:2], "beside").hex(),
        sums.state_sums(state).hex(),
        *sums.exact_sums(state).values(),
        *map(str, map(has_nonfinite, tensors)),
        str(mean({(0, 1): [tensors[0].clone()], (1, 2): [tensors[0] * 2]}, 2, [tensors[0]])),
        tree_digest(tensors[0]),
    ]


def digest(work: Callable[[str], Any], device: str) -> str:
    """Of what comes of it."""
    torch.manual_seed(3)
    return tree_digest(work(device))


def refusal() -> str:
    """What is said of a generator of the GPU's."""
    try:
        torch.randn(50, device="cuda", generator=torch.Generator("cuda"))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def snapshot(device: str, *, kept: bool) -> str:
    """Digest of a state that was copied while training went on; `kept`: as the engine was told, and must see to."""
    spec = toys.spec(numerics="exact")
    engine = Engine(build(toys.cnn, spec), spec, device)
    engine.run_local()
    taken = Snapshot.take(engine.step, engine.state())
    if kept:
        engine.keep_until(taken.copied)
    engine.run_local()
    taken.arrive()
    engine.close()
    return tree_digest(taken.tensors)


def main() -> dict[str, Any]:
    """Digests of all work on both devices, and the rest."""
    found = {name: [digest(work, device) for device in ("cpu", "cuda")] for name, work in WORK.items()}
    snapshots = [snapshot("cpu", kept=True), snapshot("cuda", kept=True), snapshot("cuda", kept=False)]
    return {"digests": found, "refusal": refusal(), "snapshots": snapshots}
