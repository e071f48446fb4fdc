"""A small GPT that learns to write Python's own help texts, byte by byte, in a minute or two on one CPU core.

    easyscale run examples/gpt.py --workers 2

The text is `pydoc_data.topics`, which every Python brings along (`help("LAMBDAS")` shows a part of it); its last
tenth is held out. Evaluation is in bits per byte; gzip, to compare, packs the held-out text into 2.1 of them.
"""

from __future__ import annotations

import math
from pydoc_data.topics import topics

import easyscale as es
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset

CONTEXT = 64  # bytes that the model sees
WIDTH, HEADS, LAYERS = 128, 4, 4
STEPS, WARM_UP = 400, 40


class Block(nn.Module):
    """Attention to the bytes before, then a step of thought about each byte."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) -> the same shape."""
        return (x := x + self.attention(self.norm1(x))) + self.mlp(self.norm2(x))

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention with HEADS heads."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(y.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """A decoder in the manner of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.bytes.weight  # the same table reads and writes
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("mix.weight", "mlp.2.weight"))  # what is added to the residual stream
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if deep else 0.02)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, length) bytes -> (batch, length, 256) scores for the byte that follows each."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def corpus() -> tuple[Tensor, Tensor]:
    """The bytes for training and those held out."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return data.tensor_split([len(data) * 9 // 10])


class Windows(Dataset[Tensor]):
    """Pieces of `CONTEXT + 1` bytes, beginning at every 16th byte."""

    def __init__(self, data: Tensor) -> None:
        self.pieces = data.unfold(0, CONTEXT + 1, 16)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Tensor:
        return self.pieces[index]


def loss(model: nn.Module, pieces: Tensor) -> Tensor:
    """Mean over all bytes of -log p(byte | the bytes before it in the piece), in nats."""
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def bits_per_byte(model: nn.Module) -> dict[str, float]:
    """The mean loss on the held-out text."""
    pieces = corpus()[1].unfold(0, CONTEXT + 1, CONTEXT)  # every byte once
    total = sum(loss(model, part).item() * len(part) for part in pieces.split(64))
    return {"bits_per_byte": total / len(pieces) / math.log(2)}


def rate(step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def build() -> es.Training:
    """Everything that one replica needs; the random numbers are seeded before."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return es.Training(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, rate),
        dataset=Windows(corpus()[0]),
        step=loss,
        evaluate=bits_per_byte,
    )


job = es.Job("gpt", build, ests=4, batch_size=8, steps=STEPS, clip_norm=1.0, seed=1)

if __name__ == "__main__":
    handle = job.submit()
    print(handle.result())
