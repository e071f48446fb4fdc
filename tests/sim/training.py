"""The training as it is played: a replica whose state depends on every EST of every step and on their order, so that
whatever is lost, doubled or mixed up shows in it. Its tensors are changed in place, as an optimizer's are."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from easyscale.storage import sums

if TYPE_CHECKING:
    from collections.abc import Callable


def mix(*what: object) -> int:
    """A number of 56 bits that depends on everything."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=7).digest())


@functools.lru_cache(maxsize=64)
def expected_values(ests: int, steps: int) -> tuple[int, ...]:
    """The state's number after each step, as one undisturbed worker computes it."""
    value, contexts = 0, [0] * ests
    values = [value]
    for step in range(steps):
        contexts = [mix(value, step, est, contexts[est]) for est in range(ests)]
        value = mix(value, step, contexts)
        values.append(value)
    return tuple(values)


@dataclass(frozen=True)
class Part:
    """What a member brings to a step: (EST, its number), in the order computed."""

    values: tuple[tuple[int, int], ...]
    watched: bytes = b""
    sample: bytes = b""

    def to_bytes(self) -> bytes:
        return ",".join(f"{est}:{value}" for est, value in self.values).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Part:
        pairs = [pair.split(":") for pair in data.decode().split(",")]
        return Part(tuple((int(est), int(value)) for est, value in pairs))


@dataclass
class Report:
    """What the history says of a step; `ests` are those whose samples were used, in order."""

    step: int
    epoch: int
    loss: float
    lr: list[float]
    ests: list[int]


class Replica:
    """Plays `engine.Engine`.

    Args:
        ests: of the job.
        work: `(step)` is the user's code at work: it takes time, may raise, hang or kill.
        stepped: `(step, value)` tells the judge which state is held now.
        flips: `(kind, step, watch)` says whether a bit of this kind flips now.
    """

    def __init__(
        self,
        ests: int,
        work: Callable[[int], None],
        stepped: Callable[[int, int], None],
        flips: Callable[[str, int, int | None], bool] = lambda *_: False,
    ) -> None:
        self.step = 0
        self._ests, self._work, self._stepped, self._flips = ests, work, stepped, flips
        self._value = torch.zeros(1, dtype=torch.int64)
        self._contexts = torch.zeros(ests, dtype=torch.int64)
        self._moment = torch.zeros(2, dtype=torch.int64)

    def compute(self, ests: range, watch: int | None = None) -> Part:
        for kind, tensor in (("state", self._value), ("moment", self._moment), ("context", self._contexts)):
            if self._flips(kind, self.step, watch):
                tensor[-1] ^= 1 << 40
        value, contexts = int(self._value), self._contexts.tolist()
        self._work(self.step)
        values = {est: mix(value, self.step, est, contexts[est]) for est in ests}
        if watch is not None and self._flips("partial", self.step, watch):
            values[watch] ^= 1
        watched = b"" if watch is None else values[watch].to_bytes(8)
        return Part(tuple(values.items()), watched, mix(values).to_bytes(8))

    def gradient_sums(self, est: int) -> bytes:
        return mix(int(self._value), self.step, est, self._contexts.tolist()[est]).to_bytes(8)

    gradient_names = ("gradient",)

    def run_local(self) -> Report:
        return self.apply([self.compute(range(self._ests))])

    def sums(self) -> bytes:
        return sums.state_sums(self.state())

    def exact_sums(self) -> dict[str, str]:
        return sums.exact_sums(self.state())

    def apply(self, contributions: list[Part]) -> Report:
        pairs = [pair for contribution in contributions for pair in contribution.values]
        values = [value for _, value in pairs]
        if self._flips("average", self.step, None):
            values[0] ^= 1
        value = mix(int(self._value), self.step, values)
        self._value.fill_(value)
        if len(values) == self._ests:
            self._contexts.copy_(torch.tensor(values))
        self._moment[0], self._moment[1] = self.step, value
        self.step += 1
        self._stepped(self.step, value)
        return Report(self.step - 1, 0, float(self.step), [0.1], [est for est, _ in pairs])

    def footprint(self) -> None:
        """What it takes of memory is nobody's concern here."""

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": 1.0}

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": {"parameters": {"w": self._value}, "buffers": {"b": self._moment}},
            "contexts": self._contexts,
        }

    def load_state(self, tree: dict[str, Any]) -> None:
        self.step = tree["step"]
        self._value.copy_(tree["model"]["parameters"]["w"])
        self._moment.copy_(tree["model"]["buffers"]["b"])
        self._contexts.copy_(tree["contexts"])
        self._stepped(self.step, int(self._value))

    def close(self) -> None:
        return None
