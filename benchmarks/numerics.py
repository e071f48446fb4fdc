"""What exactness costs: exact kernels against stock PyTorch (MKL, oneDNN, SLEEF), same threads, in one process.

    python benchmarks/numerics.py [--threads 2] [--rounds 7] [gemm conv pointwise steps dispatch]

Each row takes turns, stock and exact, on the same inputs; printed is the median of the ratios of their times, above 1
when exact is faster, and for each table the geometric mean and the worst.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from easyscale.pipeline import heap
from easyscale.pipeline.devices import device_kind
from easyscale.pipeline.numerics import library
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/numerics"))

import zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Row = tuple[str, Callable[[], object]]

BLOCK_SECONDS = 0.03
TARGETS = {"gemm": (0.9, 0.5), "conv": (0.8, 0.3), "pointwise": (1.0, 0.0), "steps": (0.8, 0.5)}
"""Geometric mean and worst that part D asks for."""


def gemm() -> Iterator[Row]:
    """Matrix products of real layers."""
    for m, k, n in [
        *((size, size, size) for size in (256, 512, 1024, 2048, 4096)),
        (64, 576, 50176),  # a 3x3 convolution of ResNet, as a product
        (4096, 1024, 256),
        (1024, 256, 1024),  # GPT: 4 sequences of 256 tokens, width 256
        (2048, 768, 3072),  # BERT base
        (32, 64, 10),  # digits
    ]:
        a, b = torch.randn(m, k), torch.randn(k, n)
        yield f"mm {m}x{k}x{n}", lambda a=a, b=b: torch.mm(a, b)
    for rows, inside, outside in [(1024, 256, 1024), (2048, 768, 768)]:
        x, w, bias = torch.randn(rows, inside), torch.randn(outside, inside), torch.randn(outside)
        g = torch.randn(rows, outside)
        yield f"linear {rows}x{inside}->{outside}", lambda x=x, w=w, bias=bias: functional.linear(x, w, bias)
        yield f"linear backward input {rows}x{outside}->{inside}", lambda g=g, w=w: torch.mm(g, w)
        yield f"linear backward weight K={rows}", lambda g=g, x=x: torch.mm(g.t(), x)
    for k, m, n in [(50176, 64, 576), (8192, 512, 512)]:
        g, x = torch.randn(k, m), torch.randn(k, n)
        yield f"backward weight K={k} {m}x{n}", lambda g=g, x=x: torch.mm(g.t(), x)
    for batch, length, width in [(32, 256, 64), (96, 64, 32), (64, 128, 64)]:
        q, key = torch.randn(batch, length, width), torch.randn(batch, length, width)
        p = torch.randn(batch, length, length)
        yield f"bmm scores {batch}x{length}x{width}", lambda q=q, key=key: torch.bmm(q, key.transpose(1, 2))
        yield f"bmm values {batch}x{length}x{width}", lambda p=p, key=key: torch.bmm(p, key)
    a, x = torch.randn(1024, 1024), torch.randn(1024)
    yield "mv 1024x1024", lambda a=a, x=x: torch.mv(a, x)


LAYERS = [  # inside, outside, kernel, stride, groups, height
    (3, 64, 7, 2, 1, 224),
    (64, 64, 1, 1, 1, 56),
    (64, 64, 3, 1, 1, 56),
    (64, 256, 1, 1, 1, 56),
    (256, 128, 1, 1, 1, 56),
    (128, 128, 3, 2, 1, 56),
    (512, 256, 1, 1, 1, 28),
    (256, 256, 3, 1, 1, 14),
    (1024, 512, 1, 1, 1, 14),
    (512, 512, 3, 1, 1, 7),
    (32, 32, 3, 1, 32, 112),
    (96, 96, 3, 2, 96, 112),
    (144, 144, 3, 1, 144, 56),
    (384, 384, 3, 1, 384, 14),
    (960, 960, 3, 1, 960, 7),
    (144, 24, 1, 1, 1, 56),
]


def conv() -> Iterator[Row]:
    """Layers of ResNet-50 and MobileNet, batch 8, forward and both backwards."""
    for inside, outside, kernel, stride, groups, height in LAYERS:
        padding = kernel // 2
        x, w = torch.randn(8, inside, height, height), torch.randn(outside, inside // groups, kernel, kernel)
        rest = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
        y = torch.ops.aten.convolution(x, w, None, *rest)
        g = torch.randn_like(y)
        name = f"{inside}->{outside} {kernel}x{kernel}/{stride} at {height}" + (" depthwise" if groups > 1 else "")
        yield f"{name} forward", lambda x=x, w=w, rest=rest: torch.ops.aten.convolution(x, w, None, *rest)
        for what, mask in (("data", [True, False, False]), ("weight", [False, True, False])):
            yield (
                f"{name} backward {what}",
                lambda x=x, w=w, g=g, rest=rest, mask=mask: torch.ops.aten.convolution_backward(
                    g, x, w, None, *rest, mask
                ),
            )


def pointwise() -> Iterator[Row]:
    """Elementwise operators, norms, softmax, losses and AdamW, small and large."""
    softmax_backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001
    for count in (10_000, 10_000_000):
        x, y = torch.randn(count), torch.randn(count)
        at = f"{count:.0e}".replace("e+0", "e")
        for name in ("exp", "tanh", "sigmoid", "log1p", "rsqrt", "sin"):
            yield f"{name} {at}", lambda x=x, name=name: getattr(torch, name)(x.abs() if name in ("log1p",) else x)
        yield f"gelu {at}", lambda x=x: functional.gelu(x)
        yield f"silu {at}", lambda x=x: functional.silu(x)
        yield f"relu {at}", lambda x=x: torch.relu(x)
        yield f"add alpha {at}", lambda x=x, y=y: torch.add(x, y, alpha=0.5)
        yield f"addcmul {at}", lambda x=x, y=y: torch.addcmul(x, y, y, value=0.1)
        yield f"dropout {at}", lambda x=x: functional.dropout(x, 0.1)
        yield f"sum {at}", lambda x=x: x.sum()
        width = 100 if count < 100_000 else 1000
        rows = x.view(-1, width)
        grad = y.view(-1, width)
        parameters = (torch.randn(width), torch.randn(width))
        yield f"sum columns {at}", lambda rows=rows: rows.sum(0)
        yield f"softmax {at}", lambda rows=rows: torch.softmax(rows, 1)
        soft = torch.softmax(rows, 1)
        yield (
            f"softmax backward {at}",
            lambda soft=soft, grad=grad: softmax_backward(grad, soft, 1, torch.float32),
        )
        yield (
            f"layer norm {at}",
            lambda rows=rows, width=width, both=parameters: functional.layer_norm(rows, (width,), *both),
        )
        normed = torch.ops.aten.native_layer_norm(rows, [width], *parameters, 1e-5)
        yield (
            f"layer norm backward {at}",
            lambda rows=rows, grad=grad, normed=normed, width=width, both=parameters: (
                torch.ops.aten.native_layer_norm_backward(
                    grad, rows, [width], normed[1], normed[2], *both, [True, True, True]
                )
            ),
        )
        images = x.view(-1, 10 if count < 100_000 else 100, 10, 100)
        channels = images.shape[1]
        bn = nn.BatchNorm2d(channels)
        yield f"batch norm {at}", lambda images=images, bn=bn: bn(images)
        leaf = images.detach().requires_grad_()

        def batch_norm(leaf=leaf, bn=bn) -> None:
            bn(leaf).sum().backward()

        yield f"batch norm and backward {at}", batch_norm
        target = torch.randint(width, (rows.shape[0],))
        logits = rows.detach().requires_grad_()

        def cross_entropy(logits=logits, target=target) -> None:
            functional.cross_entropy(logits, target).backward()

        yield f"cross entropy and backward {at}", cross_entropy
        parameter = nn.Parameter(x.clone())
        parameter.grad = y.clone()
        adamw = torch.optim.AdamW([parameter], lr=1e-3)
        yield f"AdamW {at}", lambda adamw=adamw: adamw.step()


def _subjects() -> Iterator[tuple[str, Callable[[], zoo.Subject]]]:
    def digits() -> zoo.Subject:
        model = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10)),
        )
        return zoo.Subject(
            model, lambda: functional.cross_entropy(model(torch.randn(32, 1, 8, 8)), torch.randint(10, (32,)))
        )

    def gpt() -> zoo.Subject:
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=512, n_positions=128, n_embd=256, n_layer=4, n_head=8, bos_token_id=0, eos_token_id=0)
        )

        def loss() -> torch.Tensor:
            tokens = torch.randint(512, (8, 128))
            return model(input_ids=tokens, labels=tokens).loss

        return zoo.Subject(model, loss)

    def bert_tiny() -> zoo.Subject:
        from transformers import BertConfig, BertForMaskedLM

        model = BertForMaskedLM(
            BertConfig(
                vocab_size=30522, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
            )
        )

        def loss() -> torch.Tensor:
            tokens = torch.randint(30522, (8, 64))
            return model(input_ids=tokens, labels=tokens).loss

        return zoo.Subject(model, loss)

    yield "digits CNN, batch 32", digits
    yield "ResNet-18 at 32x32, batch 16", lambda: zoo.resnet((64, 128, 256, 512), 2, 16)
    yield "GPT 4 layers of 256, 8x128 tokens", gpt
    yield "BERT tiny, 8x64 tokens", bert_tiny
    yield "NCF, batch 1024", lambda: zoo.ncf(6040, 3706, 64, 1024)


def steps() -> Iterator[Row]:
    """Whole training steps: forward, backward, clipping, AdamW."""
    for name, make in _subjects():
        subject = make()
        subject.model.train()
        optimizer = torch.optim.AdamW(subject.model.parameters(), lr=1e-4)

        def step(subject=subject, optimizer=optimizer) -> None:
            optimizer.zero_grad()
            subject.loss().backward()
            nn.utils.clip_grad_norm_(subject.model.parameters(), 1.0)
            optimizer.step()

        yield name, step


def dispatch() -> Iterator[Row]:
    """Tiny operators: what a call costs."""
    x = torch.randn(4)
    yield "add of 4 elements", lambda: x + x
    yield "add with alpha of 4 elements", lambda: torch.add(x, x, alpha=2)
    yield "exp of 4 elements", lambda: torch.exp(x)
    yield "sum of 4 elements", x.sum
    a = torch.randn(4, 4)
    yield "mm 4x4x4", lambda: a @ a


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    "gemm": gemm,
    "conv": conv,
    "pointwise": pointwise,
    "steps": steps,
    "dispatch": dispatch,
}


def block(function: Callable[[], object], times: int) -> float:
    """Seconds per call."""
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def contest(function: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Median seconds of stock and of exact, and the median of their ratios."""
    with library.exact():
        function()
    function()
    times = max(1, round(BLOCK_SECONDS / max(block(function, 1), 1e-7)))
    stock, exact = [], []
    for _ in range(rounds):
        stock.append(block(function, times))
        with library.exact():
            exact.append(block(function, times))
    return (
        statistics.median(stock),
        statistics.median(exact),
        statistics.median(a / b for a, b in zip(stock, exact, strict=True)),
    )


def table(name: str, rounds: int) -> None:
    """Run one table and print it."""
    print(f"\n## {name}, {torch.get_num_threads()} thread(s)\n")
    print("| | stock ms | exact ms | ratio |\n|---|---:|---:|---:|")
    ratios = {}
    torch.manual_seed(0)
    for row, function in TABLES[name]():
        stock, exact, ratios[row] = contest(function, rounds)
        print(f"| {row} | {1e3 * stock:.4g} | {1e3 * exact:.4g} | {ratios[row]:.2f} |", flush=True)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    worst = min(ratios, key=ratios.__getitem__)
    text = f"geometric mean {mean:.3f}, worst {ratios[worst]:.2f} ({worst})"
    if name in TARGETS:
        text += f"; asked for: {TARGETS[name][0]} and {TARGETS[name][1]}"
    print(f"\n{text}")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description="Exact kernels against stock PyTorch.")
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if unknown := [name for name in given.tables if name not in TABLES]:
        parser.error(f"no such table: {', '.join(unknown)}")
    heap.keep()  # as in every runner; without it both mostly wait for fresh pages
    print(f"{device_kind('cpu')}, torch {torch.__version__}, Python {platform.python_version()}", end=", ")
    print(f"kernels for {library.load().isa()}, {time.strftime('%Y-%m-%d')}")
    for threads in given.threads:
        torch.set_num_threads(threads)
        for name in given.tables or TABLES:
            table(name, given.rounds)


if __name__ == "__main__":
    main()
