"""Other people's models, unmodified, built from configs: what exact mode has to be able to train.

Each is a function of nothing that gives the model and a function that makes a batch's loss. `train` runs steps as a
user would write them: dropout, clipping, a learning rate schedule. All randomness comes from torch's default generator.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Subject:
    """A model and what it learns.

    Args:
        model: ready to be trained. loss: of one random batch.
    """

    model: nn.Module
    loss: Callable[[], torch.Tensor]


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocabulary, shape)


def bert() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64,
    )  # fmt: skip
    model = BertForMaskedLM(config)

    def loss() -> torch.Tensor:
        tokens = _tokens(300, 4, 32)
        mask = torch.ones_like(tokens)
        mask[1, 20:] = 0
        return model(input_ids=tokens, attention_mask=mask, labels=tokens.where(torch.rand(4, 32) < 0.3, -100)).loss

    return Subject(model, loss)


def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    )

    def loss() -> torch.Tensor:
        tokens = _tokens(300, 4, 48)
        return model(input_ids=tokens, labels=tokens).loss

    return Subject(model, loss)


def llama() -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)

    def loss() -> torch.Tensor:
        tokens = _tokens(300, 4, 40)
        return model(input_ids=tokens, labels=tokens).loss

    return Subject(model, loss)


def vit() -> Subject:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)

    def loss() -> torch.Tensor:
        return model(pixel_values=torch.randn(4, 3, 32, 32), labels=torch.randint(10, (4,))).loss

    return Subject(model, loss)


def t5() -> Subject:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=300, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config)

    def loss() -> torch.Tensor:
        return model(input_ids=_tokens(300, 4, 24), labels=_tokens(300, 4, 16)).loss

    return Subject(model, loss)


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if stride > 1 or inside != outside
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(y)).add_(self.shortcut(x)), inplace=True)


class ResNet(nn.Module):
    """torchvision's, with a stem for small images; `blocks` per stage."""

    def __init__(self, widths: tuple[int, ...], blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        layers: list[nn.Module] = []
        inside = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                layers.append(_Block(inside, width, 2 if stage and not block else 1))
                inside = width
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


def resnet(widths: tuple[int, ...] = (16, 32), blocks: int = 1, batch: int = 8, channels_last: bool = False) -> Subject:
    model = ResNet(widths, blocks)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)

    def loss() -> torch.Tensor:
        images = torch.randn(batch, 3, 32, 32).to(memory_format=layout)
        return functional.cross_entropy(model(images), torch.randint(10, (batch,)), label_smoothing=0.1)

    return Subject(model, loss)


def mobilenet() -> Subject:
    def separable(inside: int, outside: int, stride: int) -> nn.Module:
        hidden = inside * 4
        return nn.Sequential(
            *(nn.Conv2d(inside, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden)),
            *(nn.Hardswish(), nn.Conv2d(hidden, outside, 1, bias=False), nn.BatchNorm2d(outside)),
        )

    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True)),
        *(separable(8, 8, 1), separable(8, 12, 2), nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(192, 10)),
    )

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(10, (8,)))

    return Subject(model, loss)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(40, 16, batch_first=True)
        self.head = nn.Linear(16, 9)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(self.embedding(tokens))[0])[0])


def lstm_tagger() -> Subject:
    model = _Tagger()

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(_tokens(200, 6, 15)).flatten(0, 1), _tokens(9, 90))

    return Subject(model, loss)


class NeuMF(nn.Module):
    """Neural collaborative filtering: a product of embeddings beside a perceptron."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users = nn.ModuleList(nn.Embedding(users, width) for _ in range(2))
        self.items = nn.ModuleList(nn.Embedding(items, width) for _ in range(2))
        self.deep = nn.Sequential(
            *(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * width, width), nn.ReLU())
        )
        self.head = nn.Linear(2 * width, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        wide = self.users[0](user) * self.items[0](item)
        deep = self.deep(torch.cat([self.users[1](user), self.items[1](item)], dim=-1))
        return self.head(torch.cat([wide, deep], dim=-1)).squeeze(-1)


def ncf(users: int = 100, items: int = 80, width: int = 16, batch: int = 64) -> Subject:
    model = NeuMF(users, items, width)

    def loss() -> torch.Tensor:
        user, item = torch.randint(users, (batch,)), torch.randint(items, (batch,))
        return functional.binary_cross_entropy_with_logits(model(user, item), (torch.rand(batch) < 0.3).float())

    return Subject(model, loss)


MODELS: dict[str, Callable[[], Subject]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "t5": t5,
    "resnet": resnet,
    "resnet_channels_last": lambda: resnet(channels_last=True),
    "mobilenet": mobilenet,
    "lstm_tagger": lstm_tagger,
    "ncf": ncf,
}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
}


def train(name: str, optimizer: str, steps: int, seed: int = 1) -> str:
    """Build a model, train it, and give the digest of all its parameters and buffers. NaN is one value.

    Returns:
        16 hex digits.
    """
    torch.manual_seed(seed)
    subject = MODELS[name]()
    subject.model.train()
    stepping = OPTIMIZERS[optimizer](subject.model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepping, steps)
    for _ in range(steps):
        stepping.zero_grad()
        subject.loss().backward()
        torch.nn.utils.clip_grad_norm_(subject.model.parameters(), 1.0)
        stepping.step()
        schedule.step()
    return digest(subject.model.state_dict().values())


def digest(tensors) -> str:
    """16 hex digits of tensors, in their order and with their shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy(force=True)
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), np.float32(np.nan), array)
        found.update(repr((array.shape, str(tensor.dtype))).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def main(steps: str, *names: str) -> dict[str, str]:
    """Digests of models after some steps, by model and optimizer; what is refused or fails says so."""
    found = {}
    for name in names or MODELS:
        for optimizer in OPTIMIZERS:
            try:
                found[f"{name}/{optimizer}"] = train(name, optimizer, int(steps))
            except RuntimeError as error:
                found[f"{name}/{optimizer}"] = f"{type(error).__name__}: {error}"[:300]
    return found
