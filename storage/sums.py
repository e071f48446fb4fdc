"""Sums over the bits of a state: what replicas compare every few steps, at the speed of memory.

`bit_sum` is exact integer arithmetic that no order of addition changes, so it is the same on every device; one flipped
bit always changes it. It may differ where `digest.py` sees no difference (another NaN, another order of a dict's keys):
whoever finds a difference compares the *exact* sums, which agree with the digests by construction. Neither is
cryptographic, and neither is stored.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from json import dumps
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from .digest import INTEGERS, state_digest, tensor_digest
from .trees import flatten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

SIZE = 8
"""Bytes of a sum."""

SAMPLED = 4096
"""Elements of a tensor in a sample, about."""

PLAIN = "plain values"
"""Stands, before the tensors, for all that a state has besides: numbers, text, names, types and shapes."""


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum, modulo 2^64, of the 64-bit words that a tensor's elements make in row-major order.

    What is left over after the last whole word is added element by element. Any strided tensor of `trees.DTYPES`.

    Returns:
        A 0-d int64 tensor on the tensor's device.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg() or not tensor.is_contiguous():
        tensor = tensor.resolve_neg().contiguous()
    flat, size = tensor.detach().reshape(-1), tensor.element_size()
    count, per_word = flat.numel(), SIZE // size
    whole = count - count % per_word
    if flat.storage_offset() % per_word:  # a word must not begin within one
        flat = flat.clone()
    if count == whole:
        return flat.view(torch.int64).sum()
    rest = flat[whole:].view(INTEGERS[size]).sum()  # of small integers, which torch adds up in int64
    return flat[:whole].view(torch.int64).sum() + rest if whole else rest


def pack_sums(tensors: Iterable[Tensor]) -> bytes:
    """The sums of some tensors, 8 bytes each. Waits for their devices once."""
    return _together([bit_sum(tensor) for tensor in tensors])


def sample_sum(flat: Sequence[Tensor], besides: str = "") -> bytes:
    """8 bytes that stand for flat gradients: the sum of a few thousand elements' bits, always the same ones.

    Where something has gone wrong before, nearly all of a gradient is different, so a sample tells it, at no cost.
    `besides` is what they are to stand for as well.
    """
    sums = []
    for tensor in flat:
        real = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
        elements = real.view(INTEGERS[real.element_size()])
        sums.append(elements[:: max(1, elements.numel() // SAMPLED)].sum())
    found = torch.stack(sums).tolist() if sums else []  # waits for the device once
    return hashlib.blake2b(f"{found} {besides}".encode(), digest_size=SIZE).digest()


def state_sums(tree: Any) -> bytes:
    """The sums of a state (see `trees.flatten`), 8 bytes each: first the plain values', then each tensor's."""
    text, tensors = _taken_apart(tree)
    kinds = _kinds(tuple((tensor.dtype, tensor.shape) for tensor in tensors))
    return hashlib.blake2b(text + kinds, digest_size=SIZE).digest() + pack_sums(tensors)


def exact_sums(tree: Any) -> dict[str, str]:
    """The beginnings of a state's digests (16 hex digits each) by tensor, and one for its plain values.

    They are equal exactly where `digest.state_digest` is, and cost as much.
    """
    skeleton, tensors = flatten(tree)
    plain = state_digest(skeleton, dict.fromkeys(tensors, ""))
    return {PLAIN: plain[: 2 * SIZE], **{name: tensor_digest(t)[: 2 * SIZE] for name, t in sorted(tensors.items())}}


def named(packed: bytes, names: Sequence[str]) -> dict[str, str]:
    """Packed sums by name, as hex digits."""
    return {name: packed[SIZE * at : SIZE * (at + 1)].hex() for at, name in enumerate(names)}


def differing(all_sums: Sequence[bytes], names: Sequence[str]) -> list[str]:
    """The names at which packed sums are not all equal; all of them, if there are not equally many."""
    if len({len(sums) for sums in all_sums} | {SIZE * len(names)}) > 1:
        return list(names)
    places = range(0, SIZE * len(names), SIZE)
    return [
        name for name, at in zip(names, places, strict=True) if len({sums[at : at + SIZE] for sums in all_sums}) > 1
    ]


def _together(sums: Sequence[Tensor]) -> bytes:
    """0-d tensors as 8 bytes each; waits once for each device."""
    places: dict[torch.device, list[int]] = {}
    for place, one in enumerate(sums):
        places.setdefault(one.device, []).append(place)
    whole = torch.empty(len(sums), dtype=torch.int64)
    for mine in places.values():
        whole[mine] = torch.stack([sums[place] for place in mine]).cpu()
    return whole.numpy().tobytes()


def _taken_apart(tree: Any) -> tuple[bytes, list[Tensor]]:
    """Something that says all plain values of a state, and its tensors in order: as `flatten`, but much faster."""
    tensors: list[Tensor] = []

    def take(thing: Any) -> None:
        if not isinstance(thing, torch.Tensor):
            raise TypeError(type(thing))
        tensors.append(thing)

    try:
        return msgspec.msgpack.encode(tree, enc_hook=take), tensors
    except (OverflowError, TypeError):  # an int of more than 64 bits, or what no state may have
        skeleton, found = flatten(tree)
        return dumps(skeleton).encode(), list(found.values())


@lru_cache(maxsize=4)  # the same at every step
def _kinds(kinds: tuple[tuple[torch.dtype, torch.Size], ...]) -> bytes:
    return "\n".join(f"{dtype} {list(shape)}" for dtype, shape in kinds).encode()
