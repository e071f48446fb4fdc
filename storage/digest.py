"""Digests of the *meaning* of a state: the same for everybody who holds it, whatever the packing, codec or device.

A digest depends on dtypes, shapes, values, key types and list against tuple; not on the order of dict keys, nor on
which of its many bit patterns a NaN has. How the bytes are stored has other digests: those of the blobs.
"""

from __future__ import annotations

import hashlib
import math
import sys
from json import dumps  # by name: what a user's script puts in its place must not reach a digest
from typing import TYPE_CHECKING, Any

import torch

from .trees import flatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .trees import Skeleton

if sys.byteorder != "little":  # torch tensors are hashed and stored as they lie in memory
    raise ImportError("EasyScale stores little-endian tensors and does not run on big-endian machines")

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Signed integers by their size in bytes: what the bits of other elements are looked at as."""

# All ones is a NaN in each of these, so it can stand for all their NaNs. Float types that are missing here have no
# NaN (float4) or only one (e4m3fnuz, e5m2fnuz, e8m0fnu).
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}
_EIGHT_BIT_FLOATS = {
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
}


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 (hex) over dtype, shape and the little-endian elements in row-major order, all NaNs made one.

    Any strided tensor of `trees.DTYPES` on any device. Large tensors are hashed without holding the GIL.
    """
    host = _host(tensor)
    return _hashed(host, _one_nan(host))


def raw_digest(tensor: torch.Tensor) -> str:
    """SHA-256 (hex) as `tensor_digest`, but of NaNs as they are: if the two are equal, they vouch for every bit."""
    host = _host(tensor)
    return _hashed(host, host)


def state_digest(skeleton: Skeleton, tensor_digests: Mapping[str, str]) -> str:
    """SHA-256 (hex) of a state, from its skeleton (see `trees.flatten`) and the digests of its tensors by name."""
    meaning = dumps(_meaning(skeleton, tensor_digests), separators=(",", ":"))
    return hashlib.sha256(b"easyscale state 1\n" + meaning.encode()).hexdigest()


def tree_digest(tree: Any) -> str:
    """`state_digest` of a state that has not been taken apart."""
    skeleton, tensors = flatten(tree)
    return state_digest(skeleton, {name: tensor_digest(tensor) for name, tensor in tensors.items()})


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous host tensor: a flat view of bytes, nothing is copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def has_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether a NaN or an infinity is in a tensor; False for types that know neither."""
    values = _as_floats(tensor)
    if values is None or math.isfinite(float(values.sum())):
        return False
    return not bool(torch.isfinite(values).all())


def has_nan(tensor: torch.Tensor) -> bool:
    """Whether a NaN is in a tensor; False for types that do not know it."""
    values = _as_floats(tensor)
    return values is not None and bool(torch.isnan(values.sum())) and bool(torch.isnan(values).any())


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _hashed(host: torch.Tensor, elements: torch.Tensor) -> str:
    dtype = str(host.dtype).removeprefix("torch.")
    sha = hashlib.sha256(f"easyscale tensor 1\n{dtype}\n{list(host.shape)}\n".encode())
    sha.update(bytes_of(elements))
    return sha.hexdigest()


def _as_floats(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same elements in a float type that torch can sum, or None if they are no floats."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in _EIGHT_BIT_FLOATS:
        return tensor.float()
    return tensor if tensor.dtype in _BITS else None


def _one_nan(tensor: torch.Tensor) -> torch.Tensor:
    # A NaN makes the sum NaN. The sum runs at memory speed, isnan() over all elements at a tenth of it.
    values = _as_floats(tensor)
    if values is None or not torch.isnan(values.sum()):
        return tensor
    stored = values if tensor.is_complex() else tensor
    nan = torch.isnan(values)
    if stored.dtype not in _BITS or not nan.any():  # inf - inf, or a type with only one NaN
        return tensor
    return stored.view(_BITS[stored.dtype]).masked_fill(nan, -1)


def _meaning(node: Skeleton, digests: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_meaning(item, digests) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    if tag == "dict":
        entries = [[key, _meaning(value, digests)] for key, value in content]
        return {tag: sorted(entries, key=lambda entry: dumps(entry[0]))}
    if tag == "tuple":
        return {tag: _meaning(content, digests)}
    return {tag: digests[content]} if tag == "tensor" else node
