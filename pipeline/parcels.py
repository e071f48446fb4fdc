"""What peers send each other besides gradients: frames of bytes, and whole states straight from memory.

A frame says how long it is and has a checksum, so nothing is believed of what memory or a network has damaged. A state
travels as a skeleton and its tensors' bytes, as they lie: the same on arrival, to the bit.
"""

from __future__ import annotations

import zlib
from json import JSONDecodeError, dumps, loads  # by name: a user's script may put something else in their place
from typing import TYPE_CHECKING

import msgspec
import torch

from ..errors import CorruptError
from ..storage import trees
from .flat import ALIGNMENT
from .protocols import Parcel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from .links import Links, Pending

HEAD = 2048
"""Bytes of every frame's first message: what is longer has a second one of exactly the length that is missing."""

_FIXED = 16
"""Bytes of a head before its text: checksums of the rest of the head and of the whole text, and the text's length."""

MAX_FRAME = 1 << 34


def room(tensor: Tensor) -> int:
    """Bytes that a tensor takes among the cargo of a message: each begins where kernels like it to."""
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def load(into: Tensor, cargo: Iterable[Tensor]) -> None:
    """Copy contiguous tensors to memory of bytes, one after another."""
    at = 0
    for tensor in cargo:
        into[at : at + tensor.nbytes] = _bytes_of(tensor)
        at += room(tensor)


class Damaged(Exception):  # noqa: N818 - what happened, not what was done wrong
    """A peer sent something that cannot be read."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(why)
        self.slot = slot


class Frames:
    """Texts of any length to and from peers, and small tensors in the same message.

    Args:
        cargo: bytes of the tensors that a message from each peer carries, if any.
    """

    def __init__(self, links: Links, tag: int, cargo: Mapping[int, int] | None = None) -> None:
        self._links, self._tag, self._cargo = links, tag, cargo or {}
        self._sending: list[Pending] = []
        self._out = torch.empty(0, dtype=torch.uint8)
        self._in: dict[int, Tensor] = {}
        self._coming: dict[int, Pending] = {}

    def send(self, slots: Iterable[int], text: bytes, cargo: Sequence[Tensor] = ()) -> None:
        """Send a text to each of these, and these contiguous tensors; `settle` waits until that is done."""
        rest = zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(8, "little") + text[: HEAD - _FIXED]
        head = zlib.crc32(rest).to_bytes(4, "little") + rest
        size = HEAD + sum(map(room, cargo))
        assert not self._sending, "what was sent before has been waited for"
        if self._out.numel() != size:
            self._out = torch.zeros(size, dtype=torch.uint8)
        self._out[: len(head)] = _tensor(head)
        load(self._out[HEAD:], cargo)
        messages = [self._out]
        if len(text) > HEAD - _FIXED:
            messages.append(_tensor(text[HEAD - _FIXED :]))
        self._sending += [self._links.send(slot, self._tag, message) for slot in slots for message in messages]

    def settle(self) -> None:
        """Wait until everything has been sent."""
        for message in self._sending:
            message.wait()
        self._sending.clear()

    def expect(self, slots: Iterable[int]) -> None:
        """Be ready for a text from each of these, so that its sender need not ask first."""
        for slot in slots:
            if slot not in self._in:
                self._in[slot] = torch.empty(HEAD + self._cargo.get(slot, 0), dtype=torch.uint8)
            if slot not in self._coming:
                self._coming[slot] = self._links.receive(slot, self._tag, self._in[slot])

    def cargo(self, slot: int) -> Tensor:
        """The bytes of the tensors that came with this peer's last text, until the next is expected."""
        return self._in[slot][HEAD:]

    def receive(self, slot: int) -> bytes:
        """The next text from a peer.

        Raises:
            Damaged: it is not what was sent.
        """
        self.expect([slot])
        self._coming.pop(slot).wait()
        data = self._in[slot][:HEAD].numpy().tobytes()
        length = int.from_bytes(data[8:_FIXED], "little")
        here = data[_FIXED : _FIXED + length]
        if int.from_bytes(data[:4], "little") != zlib.crc32(data[4 : _FIXED + len(here)]) or length > MAX_FRAME:
            raise Damaged(slot, f"the head of a message from slot {slot} is damaged")
        if length > len(here):
            rest = torch.empty(length - len(here), dtype=torch.uint8)
            self._links.receive(slot, self._tag, rest).wait()
            here += rest.numpy().tobytes()
        if int.from_bytes(data[4:8], "little") != zlib.crc32(here):
            raise Damaged(slot, f"a message of {length} bytes from slot {slot} is damaged")
        return here


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """What a parcel consists of. `tensors`: name, dtype and shape of each, in the order in which they follow."""

    skeleton: str
    tensors: list[tuple[str, str, tuple[int, ...]]]
    history: dict[int, bytes]


def give(links: Links, tag: int, slots: Sequence[int], parcel: Parcel) -> None:
    """Send a state to each of these; it must stay as it is until this returns, or the links are closed."""
    skeleton, tensors = trees.flatten(parcel.state)
    kinds = [(name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()]
    frames = Frames(links, tag)
    frames.send(slots, msgspec.msgpack.encode(_Contents(dumps(skeleton), kinds, parcel.history)))
    host = [_bytes_of(tensor.cpu().contiguous()) for tensor in tensors.values()]
    links.move(tag, dict.fromkeys(slots, host))()
    frames.settle()


def take(links: Links, tag: int, slot: int) -> Parcel:
    """Receive a state.

    Raises:
        Damaged: it cannot be read.
    """
    text = Frames(links, tag).receive(slot)
    try:
        contents = msgspec.msgpack.decode(text, type=_Contents)
        skeleton = loads(contents.skeleton)
        host = {name: torch.empty(shape, dtype=trees.DTYPES[dtype]) for name, dtype, shape in contents.tensors}
        state = trees.restore(skeleton, host)
    except (msgspec.DecodeError, CorruptError, JSONDecodeError, LookupError, RuntimeError, ValueError) as error:
        raise Damaged(slot, f"the state from slot {slot} cannot be read: {type(error).__name__}: {error}") from error
    links.expect(tag, {slot: [_bytes_of(tensor) for tensor in host.values()]})
    links.move(tag, {})()
    return Parcel(state, contents.history)


def _bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, as bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
