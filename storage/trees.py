"""Nested training state taken apart into a JSON-able skeleton plus named tensors, and put together again.

The round trip is exact: key types, key order, tuple against list, and every bit of every tensor and number. There is
no pickle, so reading a state runs no code. Where the bytes go is the business of `packs.py` and `commits.py`.
"""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CorruptError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Skeleton = Any
    """None, bool, int, finite float and str stand for themselves, a list for a list; other nodes carry a tag:
    `{"float": "nan"}`, `{"tensor": NAME}`, `{"tuple": [...]}`, `{"dict": [[key, node], ...]}`."""

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
        *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
    )
}
"""Element types that can be stored, by name. Quantised and sub-byte types have no plain bytes to keep."""

MAX_DEPTH = 100
"""Levels of nesting: real states have about ten. It also ends a structure that contains itself."""

MAX_INT_BITS = 4096
"""Bits of an int: enough for the state of any random generator, and short enough to be parsed."""

_KNOWN = frozenset(DTYPES.values())
_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_AMBIGUOUS = re.compile(r"-?[0-9]+|__metadata__")  # an int key, or the name that safetensors reserves


def flatten(tree: Any) -> tuple[Skeleton, dict[str, torch.Tensor]]:
    """Take a state apart.

    Args:
        tree: dict with str or int keys (a subclass such as OrderedDict comes back as dict), list, tuple, None, bool,
            int, float, str, and strided tensors of `DTYPES` on any device (a Parameter comes back as Tensor).

    Returns:
        The skeleton, and the tensors themselves (not copies) by path, like `optimizer/state/0/exp_avg`. A tensor that
        occurs twice is there twice, and comes back as two tensors of equal value.

    Raises:
        UserError: anything else is in the tree; it names the path and the type.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _take(tree, (), tensors), tensors


def restore(skeleton: Skeleton, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put a state together again; the tensors are used as they are, not copied.

    Raises:
        CorruptError: the skeleton is malformed, or does not use exactly these tensors.
    """
    unused = dict(tensors)
    tree = _give(skeleton, 0, unused)
    if unused:
        raise CorruptError(f"state skeleton: tensor {min(unused)!r} belongs nowhere")
    return tree


def leaves(skeleton: Skeleton) -> Iterator[tuple[str, Skeleton]]:
    """Each leaf's path and node: numbers, strings, None, tensor references, and empty containers."""
    yield from _walk(skeleton, ())


def snapshot(
    tensors: Mapping[str, torch.Tensor], reuse: Mapping[str, torch.Tensor] | None = None
) -> tuple[dict[str, torch.Tensor], torch.Event | None]:
    """Copy tensors into host memory, contiguous, each on its own.

    From a GPU they are copied beside what it computes, into pinned memory, on a stream of ours: after all that was
    started here before, and while the caller goes on.

    Args:
        tensors: what to copy; all that are on a GPU are on the same.
        reuse: an earlier snapshot that nobody reads any more: its buffers are overwritten and returned where shape
            and dtype match. Two snapshots used in turn are a double buffer.

    Returns:
        The copies, and an event: whoever reads them waits for it (`synchronize`), and so does the stream that changes
        the tensors (`wait`). None: they are there.
    """
    host: dict[str, torch.Tensor] = {}
    here: list[str] = []
    away: list[str] = []
    with torch.no_grad():
        for name, tensor in tensors.items():
            buffer = reuse.get(name) if reuse else None
            if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            host[name] = buffer
            (away if tensor.is_cuda else here).append(name)
        if here:  # many small tensors: one call for all takes half the time
            torch._foreach_copy_([host[name] for name in here], [tensors[name] for name in here])
        if not away:
            return host, None
        device = tensors[away[0]].device
        stream, computed, copied = _side_stream(device), torch.Event(device), torch.Event(device)
        computed.record(torch.accelerator.current_stream(device))
        stream.wait_event(computed)
        with stream:
            targets, sources = [host[name] for name in away], [tensors[name] for name in away]
            torch._foreach_copy_(targets, sources, non_blocking=True)
        copied.record(stream)
        return host, copied


@cache
def _side_stream(device: torch.device) -> torch.Stream:
    return torch.Stream(device)


def _take(node: Any, path: tuple[str, ...], tensors: dict[str, torch.Tensor]) -> Skeleton:
    if len(path) > MAX_DEPTH:
        raise UserError(
            f"state at {'/'.join(path[:8])!r}...: nested deeper than {MAX_DEPTH} levels", "does it contain itself?"
        )
    kind = type(node)
    if node is None or kind is bool:
        return node
    if kind is int or kind is str:
        return _plain(node, path)
    if kind is float:
        return node if math.isfinite(node) else {"float": str(node)}
    if isinstance(node, torch.Tensor):
        name = "/".join(path)
        tensors[name] = _storable(node, path)
        return {"tensor": name}
    if type(node) in (list, tuple):
        items = [_take(item, (*path, str(index)), tensors) for index, item in enumerate(node)]
        return items if type(node) is list else {"tuple": items}
    if isinstance(node, dict):
        return {
            "dict": [[_key(key, path), _take(value, (*path, _segment(key)), tensors)] for key, value in node.items()]
        }
    raise UserError(
        f"{_where(path)}: a value of type {_type_name(node)} cannot be stored",
        "use dict, list, tuple, None, bool, int, float, str and tensors (for example float(x) or torch.as_tensor(x))",
    )


def _plain(value: int | str, path: tuple[str, ...]) -> int | str:
    if isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise UserError(f"{_where(path)}: an int of {value.bit_length()} bits cannot be stored")
        return value
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{_where(path)}: the text {value!r} is not valid Unicode") from None
    return value


def _key(key: Any, path: tuple[str, ...]) -> int | str:
    if type(key) not in (int, str):
        raise UserError(
            f"{_where(path)}: a key of type {_type_name(key)} cannot be stored ({key!r})",
            "keys of a state must be str or int",
        )
    return _plain(key, path)


@lru_cache(maxsize=1 << 14)  # the same few names at every commit
def _segment(key: int | str) -> str:
    """A key as part of a path: JSON Pointer's escapes, and `~2` before a str that reads like an int key."""
    if not isinstance(key, str):
        return str(key)
    text = key.replace("~", "~0").replace("/", "~1")
    return f"~2{text}" if _AMBIGUOUS.fullmatch(key) else text


def _storable(tensor: torch.Tensor, path: tuple[str, ...]) -> torch.Tensor:
    if type(tensor) not in _TENSOR_TYPES:
        raise UserError(
            f"{_where(path)}: a tensor of type {_type_name(tensor)} cannot be stored", "store a plain torch.Tensor"
        )
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.dtype not in _KNOWN:
        raise UserError(
            f"{_where(path)}: a tensor with {tensor.dtype}, {tensor.layout}, device {tensor.device} cannot be stored",
            "store a dense, unquantised tensor",
        )
    return tensor.detach()


def _where(path: tuple[str, ...]) -> str:
    return f"state at {'/'.join(path)!r}" if path else "state"


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _give(node: Skeleton, depth: int, unused: dict[str, torch.Tensor]) -> Any:
    if depth > MAX_DEPTH:
        raise CorruptError(f"state skeleton: nested deeper than {MAX_DEPTH} levels")
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is list:
        return [_give(item, depth + 1, unused) for item in node]
    match node:
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_give(item, depth + 1, unused) for item in items)
        case {"dict": list(entries), **rest} if not rest:
            return _give_dict(entries, depth, unused)
        case {"float": str(text), **rest} if not rest and text in _NON_FINITE:
            return _NON_FINITE[text]
        case {"tensor": str(name), **rest} if not rest:
            if name not in unused:
                raise CorruptError(f"state skeleton: there is no tensor {name!r}, or it is used twice")
            return unused.pop(name)
    raise CorruptError(f"state skeleton: malformed node {str(node)[:100]}")


def _give_dict(entries: list[Any], depth: int, unused: dict[str, torch.Tensor]) -> dict[int | str, Any]:
    result: dict[int | str, Any] = {}
    for entry in entries:
        match entry:
            case [key, value] if type(key) in (int, str) and key not in result:
                result[key] = _give(value, depth + 1, unused)
            case _:
                raise CorruptError(f"state skeleton: malformed or repeated dict entry {str(entry)[:100]}")
    return result


def _walk(node: Skeleton, path: tuple[str, ...]) -> Iterator[tuple[str, Skeleton]]:
    children: list[tuple[str, Skeleton]] = []
    if isinstance(node, dict) and "dict" in node:
        children = [(_segment(key), value) for key, value in node["dict"]]
    elif isinstance(node, list) or (isinstance(node, dict) and "tuple" in node):
        items = node if isinstance(node, list) else node["tuple"]
        children = [(str(index), item) for index, item in enumerate(items)]
    if not children:
        yield "/".join(path), node
    for segment, child in children:
        yield from _walk(child, (*path, segment))
