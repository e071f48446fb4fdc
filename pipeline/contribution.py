"""What one worker brings to one step: partial sums of gradients, and what its ESTs changed besides.

It travels as one safetensors file in which one more tensor holds the structure as JSON. The round trip is exact to the
bit for every dtype; reading it runs no code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from json import dumps, loads  # by name: a user's script may put something else in their place
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import CorruptError
from ..storage import packs, sums, trees

if TYPE_CHECKING:
    from torch import Tensor

    from .reduction import Node

_STRUCTURE = "structure"
"""Name of the tensor of bytes that holds the skeleton and the true dtypes. No other tensor has a name like it."""


class Mean(NamedTuple):
    """The gradients' mean over all ESTs, which a lane may make of the nodes while they are on their way.

    Args:
        flat: one tensor per reduction dtype. finite: whether all of it is.
    """

    flat: list[Tensor]
    finite: bool


@dataclass(frozen=True, slots=True)
class Contribution:
    """One worker's part of one step. Tensors straight from `Engine.compute` are valid until the engine's `apply`.

    Args:
        step: `t`; the gradients belong to `S(t)`.
        nodes: (first rank, end) -> the flat gradients' sum over these ranks, one tensor per reduction dtype.
        used: for each trainable parameter 1 if some EST had a gradient for it, else 0.
        losses: rank -> loss.
        contexts: rank -> the EST's context after the step, where ESTs have one.
        buffers: the model's buffers as EST 0 left them, from whoever ran EST 0; None if it ran elsewhere, or if the
            model has none or keeps them per EST.
        watched: sums of one EST's gradient, if asked for. They do not travel with the rest.
        mean: instead of everybody's nodes. It does not travel any more.
    """

    step: int
    nodes: dict[Node, list[Tensor]]
    used: bytes
    losses: dict[int, float] = field(default_factory=dict)
    contexts: dict[int, Any] = field(default_factory=dict)
    buffers: dict[str, Tensor] | None = None
    watched: bytes = b""
    mean: Mean | None = None

    @property
    def sample(self) -> bytes:
        """What stands for nodes and losses: see `storage.sums.sample_sum`. Waits for the device."""
        return sums.sample_sum([flat for value in self.nodes.values() for flat in value], repr(self.losses))

    def to_bytes(self) -> bytes:
        """As one safetensors file."""
        skeleton, tensors = trees.flatten(
            {
                "step": self.step,
                "nodes": list(self.nodes),
                "sums": list(self.nodes.values()),
                "used": self.used.hex(),
                "losses": self.losses,
                "contexts": self.contexts,
                "buffers": self.buffers,
            }
        )
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
        structure = dumps([skeleton, dtypes]).encode()
        host = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        host[_STRUCTURE] = torch.frombuffer(bytearray(structure), dtype=torch.uint8)
        return packs.encode(host)

    @staticmethod
    def from_bytes(data: bytes) -> Contribution:
        """Read what `to_bytes` wrote; the tensors are on the host.

        Raises:
            CorruptError: these bytes are no contribution.
        """
        try:
            raw = packs.decode(data)
            skeleton, dtypes = loads(raw.pop(_STRUCTURE).numpy().tobytes())
            tensors = {name: packs.unstored(tensor, trees.DTYPES[dtypes[name]]) for name, tensor in raw.items()}
            tree = trees.restore(skeleton, tensors)
            return Contribution(
                step=tree["step"],
                nodes=dict(zip(tree["nodes"], tree["sums"], strict=True)),
                used=bytes.fromhex(tree["used"]),
                losses=tree["losses"],
                contexts=tree["contexts"],
                buffers=tree["buffers"],
            )
        except (CorruptError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"not a contribution: {type(error).__name__}: {error}") from error
