"""Exact kernels against stock PyTorch (cuBLAS and cuDNN in fp32, TF32 off), on the GPU, in one process.

All rows of a table take turns, stock and exact; printed is the median of the ratios of their times, above 1 when exact
is faster, and for each table the geometric mean of the rows that its target is about.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .checks import Check, Outcome, Planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .checks import Options, Teller

ROUNDS = 5
BLOCK_SECONDS = 0.02
TARGETS = {"gemm": 0.9, "conv": 0.7, "memory": 0.9, "steps": 0.8}
"""What the geometric mean of a table is to reach: our speed, as a part of stock's."""

NUMBERS = 1 << 25
"""Of a tensor of the memory-bound kernels: 128 MiB, more than any cache."""


@dataclass(frozen=True)
class Row:
    """One thing that both do.

    Args:
        name: for people. run: does it once. flops, bytes: that it takes; 0 is not told. aimed: the target is about it.
    """

    name: str
    run: Callable[[], object]
    flops: float = 0
    bytes: float = 0
    aimed: bool = True


def _randn(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, device="cuda")


def gemm(tiny: bool) -> Iterator[Row]:
    """Products: squares, which the target is about, and those of real layers."""
    import torch

    sizes = (64,) if tiny else (1024, 2048, 4096, 8192)
    others = ((64, 32, 96),) if tiny else ((2048, 768, 3072), (8192, 768, 768), (4096, 512, 50257), (64, 576, 50176))
    for m, k, n in [*((size, size, size) for size in sizes), *others]:
        a, b = _randn(m, k), _randn(k, n)
        name, aimed = f"{m}x{k}x{n}", m == k == n
        yield Row(name, partial(torch.mm, a, b), 2.0 * m * k * n, aimed=aimed)
    size = sizes[0]
    g, x = _randn(8 * size, size), _randn(8 * size, size)
    yield Row(f"weight gradient, K = {8 * size}", partial(torch.mm, g.t(), x), 16.0 * size**3, aimed=False)
    q, key = _randn(48, size, 64), _randn(48, size, 64)
    yield Row(f"bmm 48x{size}x64", partial(torch.bmm, q, key.transpose(1, 2)), 96.0 * size * size * 64, aimed=False)


RESNET50 = [  # inside, outside, kernel, stride, height: each shape once
    *((3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56)),
    *((256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 128, 3, 1, 28), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56)),
    *((512, 128, 1, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28), (256, 256, 3, 1, 14), (256, 1024, 1, 1, 14)),
    *((512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14), (1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 512, 3, 1, 7)),
    *((512, 2048, 1, 1, 7), (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7)),
]


def conv(tiny: bool) -> Iterator[Row]:
    """ResNet-50's layers, batch 32, forward and both backwards."""
    import torch

    aten, batch = torch.ops.aten, 2 if tiny else 32
    for inside, outside, kernel, stride, height in [(3, 8, 3, 1, 8)] if tiny else RESNET50:
        padding = kernel // 2
        x, w = _randn(batch, inside, height, height), _randn(outside, inside, kernel, kernel)
        rest = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
        y = aten.convolution(x, w, None, *rest)
        g = torch.randn_like(y)
        flops = 2.0 * y.numel() * inside * kernel * kernel
        name = f"{inside}->{outside} {kernel}x{kernel}/{stride} at {height}"
        yield Row(f"{name} forward", partial(aten.convolution, x, w, None, *rest), flops)
        for what, mask in (("data", [True, False, False]), ("weight", [False, True, False])):
            if what == "weight" or inside > 3:
                yield Row(
                    f"{name} backward {what}", partial(aten.convolution_backward, g, x, w, None, *rest, mask), flops
                )


def memory(tiny: bool) -> Iterator[Row]:
    """Kernels whose time is that of reading and writing."""
    import torch
    from torch import nn
    from torch.nn import functional

    count = 4096 if tiny else NUMBERS
    width = 64 if tiny else 1024
    x, y = _randn(count), _randn(count)
    once = 4.0 * count  # bytes
    yield Row("relu", partial(torch.relu, x), bytes=2 * once)
    yield Row("gelu", partial(functional.gelu, x), bytes=2 * once)
    yield Row("exp", partial(torch.exp, x), bytes=2 * once)
    yield Row("add with alpha", partial(torch.add, x, y, alpha=0.5), bytes=3 * once)
    yield Row("dropout", partial(functional.dropout, x, 0.1), bytes=2 * once)
    yield Row("sum", x.sum, bytes=once)
    rows, grad = x.view(-1, width), y.view(-1, width)
    yield Row("sum of columns", partial(torch.sum, rows, 0), bytes=once)
    yield Row("softmax", partial(torch.softmax, rows, 1), bytes=2 * once)
    soft = torch.softmax(rows, 1)
    backward = partial(torch.ops.aten._softmax_backward_data, grad, soft, 1, torch.float32)  # noqa: SLF001
    yield Row("softmax backward", backward, bytes=3 * once)
    w, b = _randn(width), _randn(width)
    yield Row("layer norm", partial(functional.layer_norm, rows, (width,), w, b), bytes=2 * once)
    normed = torch.ops.aten.native_layer_norm(rows, [width], w, b, 1e-5)
    rest = ([width], normed[1], normed[2], w, b, [True, True, True])
    yield Row(
        "layer norm backward", partial(torch.ops.aten.native_layer_norm_backward, grad, rows, *rest), bytes=3 * once
    )
    images = x.view(-1, 64, 8, 8)
    bn = nn.BatchNorm2d(64).to("cuda")
    yield Row("batch norm", partial(bn, images), bytes=3 * once)
    target = torch.randint(width, (rows.shape[0],), device="cpu").to("cuda")
    logits = rows.detach().requires_grad_()

    def cross_entropy() -> None:
        logits.grad = None
        functional.cross_entropy(logits, target).backward()

    yield Row("cross entropy and backward", cross_entropy, bytes=5 * once)
    parameter = nn.Parameter(x.clone())
    parameter.grad = y.clone()
    adamw = torch.optim.AdamW([parameter], lr=1e-3)
    yield Row("AdamW", adamw.step, bytes=7 * once)


def steps(tiny: bool) -> Iterator[Row]:
    """Whole training steps: forward, backward, clipping, AdamW. The batch is there already."""
    import torch
    from numerics import zoo
    from torch import nn
    from torch.nn import functional

    def step(model: nn.Module, loss: Callable[[], Any]) -> Callable[[], None]:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def once() -> None:
            optimizer.zero_grad()
            loss().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return once

    def resnet(widths: tuple[int, ...], blocks: int, batch: int) -> Callable[[], None]:
        model = zoo.ResNet(widths, blocks).to("cuda")
        images, labels = _randn(batch, 3, 32, 32), torch.randint(10, (batch,), device="cpu").to("cuda")
        return step(model, lambda: functional.cross_entropy(model(images), labels))

    def transformer(name: str, config: str, batch: int, length: int, **sizes: int) -> Callable[[], None]:
        import transformers

        made = getattr(transformers, config)(**sizes)
        model = getattr(transformers, name)(made).to("cuda")
        tokens = torch.randint(made.vocab_size, (batch, length), device="cpu").to("cuda")
        return step(model, lambda: model(input_ids=tokens, labels=tokens).loss)

    def ncf(batch: int) -> Callable[[], None]:
        model = zoo.NeuMF(6040, 3706, 64).to("cuda")
        user, item = (torch.randint(3706, (batch,), device="cpu").to("cuda") for _ in range(2))
        liked = (torch.rand(batch, device="cpu") < 0.3).float().to("cuda")
        return step(model, lambda: functional.binary_cross_entropy_with_logits(model(user, item), liked))

    if tiny:
        yield Row("ResNet of one block, batch 2", resnet((4,), 1, 2))
        return
    yield Row("ResNet-18 at 32x32, batch 256", resnet((64, 128, 256, 512), 2, 256))
    yield Row("NCF, batch 16384", ncf(16384))
    if find_spec("transformers"):
        small = transformer("GPT2LMHeadModel", "GPT2Config", 4, 512, n_positions=512)
        yield Row("GPT-2 small (124M), 4x512 tokens", small)
        bert = transformer("BertForMaskedLM", "BertConfig", 16, 128)
        yield Row("BERT base, 16x128 tokens", bert)


TABLES: dict[str, Callable[[bool], Iterator[Row]]] = {"gemm": gemm, "conv": conv, "memory": memory, "steps": steps}
PLANNED = {"gemm": 10, "conv": 3 * len(RESNET50) - 1, "memory": 14, "steps": 4}


def plan(table: str, _options: Options) -> list[Planned]:
    """What will be timed."""
    return [Planned("timings, stock and exact in turns", PLANNED[table])]


def run(table: str, options: Options, tell: Teller) -> None:
    """Time one table."""
    import torch
    from easyscale.pipeline.numerics import library

    end = time.monotonic() + 0.8 * options.seconds
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the rival at its best
    torch.manual_seed(0)
    library.enable("cuda")
    library.disable()
    contest = Contest(list(TABLES[table](options.tiny)), tell)
    rounds = 0
    while rounds < (1 if options.tiny else ROUNDS) and (rounds == 0 or time.monotonic() < end):
        contest.round()
        rounds += 1
    contest.tell_all(rounds, TARGETS[table])


class Contest:
    """Rows that take turns.

    Args:
        rows: all of a table. tell: is told at once of those that cannot be run.
    """

    def __init__(self, rows: list[Row], tell: Teller) -> None:
        from easyscale.pipeline.numerics import library

        self._library, self._tell = library, tell
        self._times: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
        self._counts: dict[bool, dict[str, int]] = {False: {}, True: {}}
        self._rows = rows
        for exact in (False, True):
            with self._mode(exact):
                self._rows = [row for row in self._rows if self._warm(row, exact)]

    def _mode(self, exact: bool) -> Any:
        from contextlib import nullcontext

        return self._library.exact() if exact else nullcontext()

    def _warm(self, row: Row, exact: bool) -> bool:
        try:
            _block(row, 1)
            seconds = _block(row, 1)
        except RuntimeError as error:
            who = "exact" if exact else "stock"
            self._tell(Check(row.name, Outcome.failed, f"{who}: {str(error).splitlines()[0][:300]}"))
            return False
        self._counts[exact][row.name] = max(1, round(BLOCK_SECONDS / max(seconds, 1e-6)))
        return True

    def round(self) -> None:
        """All rows, stock and exact."""
        for exact in (False, True):
            with self._mode(exact):
                for row in self._rows:
                    seconds = _block(row, self._counts[exact][row.name])
                    self._times[exact].setdefault(row.name, []).append(seconds)

    def tell_all(self, rounds: int, target: float) -> None:
        """Each row, and the geometric mean of those that the target is about."""
        ratios: dict[str, float] = {}
        for row in self._rows:
            stock, exact = (self._times[who][row.name] for who in (False, True))
            ratio = statistics.median(a / b for a, b in zip(stock, exact, strict=True))
            if row.aimed:
                ratios[row.name] = ratio
            self._tell(_told(row, statistics.median(stock), statistics.median(exact), ratio))
        if not ratios:
            self._tell(Check("geometric mean", Outcome.failed, "nothing could be timed"))
            return
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        worst = min(ratios, key=ratios.__getitem__)
        said = f"{mean:.3f} of stock's speed in {rounds} rounds, asked for {target}; worst {ratios[worst]:.2f}: {worst}"
        values = {"ratio": mean, "target": target, "worst": ratios[worst], "rounds": rounds}
        self._tell(Check("geometric mean", Outcome.met if mean >= target else Outcome.missed, said, values))


def _told(row: Row, stock: float, exact: float, ratio: float) -> Check:
    said = f"stock {1e3 * stock:.4g} ms, exact {1e3 * exact:.4g} ms, ratio {ratio:.2f}"
    values = {"stock_ms": 1e3 * stock, "exact_ms": 1e3 * exact, "ratio": ratio}
    if row.flops:
        values["stock_tflops"], values["exact_tflops"] = row.flops / stock / 1e12, row.flops / exact / 1e12
        said += f"; {values['stock_tflops']:.1f} and {values['exact_tflops']:.1f} TFLOP/s"
    if row.bytes:
        values["stock_gbs"], values["exact_gbs"] = row.bytes / stock / 1e9, row.bytes / exact / 1e9
        said += f"; {values['stock_gbs']:.0f} and {values['exact_gbs']:.0f} GB/s"
    return Check(row.name, Outcome.told, said, values)


def _block(row: Row, times: int) -> float:
    """Seconds per call."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        row.run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times
