"""Packs: the tensors of a state grouped into safetensors files of moderate size.

Partition and bytes depend only on names, dtypes, shapes and values, so replicas make the same packs and what did not
change is stored once. Types that not every safetensors reader knows are stored as floats or bytes of the same memory;
which type they truly have is for the manifest to say.
"""

from __future__ import annotations

import math
import struct
from json import dumps  # by name: a user's script may put something else in its place
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import torch

from ..errors import CorruptError
from .digest import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .objects import Data

    Pack = Mapping[str, torch.Tensor]
    """Contiguous host tensors by name."""

Codec = Literal["plain", "real", "bytes"]

PACK_BYTES = 64 << 20
"""A pack holds at most this many bytes of tensors, or one tensor. One request each, without multipart upload on S3."""

_LENGTH = struct.Struct("<Q")

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def group(name: str) -> str:
    """What a tensor's pack is about: `model/parameters`, `model/buffers`, `optimizer`, ..."""
    first, _, rest = name.partition("/")
    return f"model/{rest.partition('/')[0]}" if first == "model" and "/" in rest else first


def partition(tensors: Pack, limit: int = PACK_BYTES) -> list[dict[str, torch.Tensor]]:
    """Split tensors into packs: groups apart, in order of names, each pack at most `limit` bytes or one tensor."""
    packs: list[dict[str, torch.Tensor]] = []
    size, last = 0, ""
    for name in sorted(tensors, key=lambda name: (group(name), name)):
        tensor = tensors[name]
        if not packs or group(name) != last or size + tensor.nbytes > limit:
            packs.append({})
            size, last = 0, group(name)
        packs[-1][name] = tensor
        size += tensor.nbytes
    return packs


def codec(dtype: torch.dtype) -> Codec:
    """How a dtype is stored: `plain`, `real` (complex as pairs of floats in a last dimension of 2) or `bytes`."""
    if dtype in _CODES:
        return "plain"
    return "real" if dtype.is_complex else "bytes"


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The view of a tensor that goes into the file."""
    kind = codec(tensor.dtype)
    if kind == "real":
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8) if kind == "bytes" else tensor


def unstored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of type `dtype` whose `stored` view this is.

    Raises:
        CorruptError: it cannot be one.
    """
    kind = codec(dtype)
    plain = {"plain": dtype, "real": dtype.to_real(), "bytes": torch.uint8}[kind]
    if tensor.dtype != plain or (kind == "real" and tensor.shape[-1:] != (2,)):
        raise CorruptError(f"a {dtype} tensor is stored as {plain}, found {tensor.dtype} {list(tensor.shape)}")
    if kind == "real":
        return torch.view_as_complex(tensor)
    return tensor.view(dtype) if kind == "bytes" else tensor


def pieces(pack: Pack, metadata: Mapping[str, str] | None = None) -> list[Data]:
    """A pack's bytes in the order of the file: the header, then each tensor's own memory, not copied.

    The format is safetensors': header length (8 bytes), JSON header, data without gaps. It is written and read here
    because safetensors' own functions copy everything twice, and because its bytes may change from release to release.
    `metadata` is for files that others read: no pack has any.
    """
    views = {name: stored(tensor) for name, tensor in pack.items()}
    # Wide types first, as safetensors does: so every tensor is aligned in a memory-mapped file.
    names = sorted(views, key=lambda name: (-views[name].itemsize, name))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name in names:
        end = offset + views[name].nbytes
        code, shape = _CODES[views[name].dtype], list(views[name].shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [_LENGTH.pack(len(text)) + text, *(bytes_of(views[name]) for name in names)]


def encode(pack: Pack) -> bytes:
    """A pack as one safetensors file."""
    return b"".join(pieces(pack))


def decode(data: Data) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file as they are stored (see `unstored`).

    They lie in the given memory if that is writable, each in its own part of it; else in a copy.

    Raises:
        CorruptError: these bytes are no such file. Hostile bytes can do nothing worse.
    """
    memory = memoryview(data)
    if memory.readonly:
        memory = memoryview(bytearray(memory))
    entries, start = _header(memory)
    tensors: dict[str, torch.Tensor] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise CorruptError(f"safetensors file: tensor {name!r} has the type {entry.dtype}, which no pack has")
        count = math.prod(entry.shape)
        if entry.data_offsets != (end, end + count * dtype.itemsize):
            raise CorruptError(
                f"safetensors file: tensor {name!r} {entry.shape} should lie at byte {end}, not {entry.data_offsets}"
            )
        if entry.data_offsets[1] > len(memory) - start:
            raise CorruptError(f"safetensors file: tensor {name!r} ends after the file")
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=start + end) if count else _nothing(dtype)
        try:
            tensors[name] = flat.reshape(entry.shape)
        except (RuntimeError, TypeError) as error:  # an empty tensor with a side that overflows
            raise CorruptError(f"safetensors file: tensor {name!r} has an impossible shape: {error}") from error
        end = entry.data_offsets[1]
    if start + end != len(memory):
        raise CorruptError(f"safetensors file: {len(memory) - start - end} bytes too many")
    return tensors


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


def _header(memory: memoryview) -> tuple[dict[str, _Entry], int]:
    """What a safetensors file says it holds, and where its data begin."""
    if len(memory) < _LENGTH.size:
        raise CorruptError(f"not a valid safetensors file: it has {len(memory)} bytes")
    (length,) = _LENGTH.unpack_from(memory)
    start = _LENGTH.size + length
    if start > len(memory):
        raise CorruptError(f"not a valid safetensors file: its header of {length} bytes is not all there")
    try:
        return msgspec.json.decode(memory[_LENGTH.size : start], type=dict[str, _Entry]), start
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"not a valid safetensors file: {error}") from error


def _nothing(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)
