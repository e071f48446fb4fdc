"""The lane's tensors and texts between peers on one machine: they read each other's memory.

Gradients stay where they are, and must stay as they are until all have read them, so peers tell each other when they
have (`Shared.release`). Where they cannot, because somebody has gone or been called away, the memory is retired: nobody
writes to it again, and whoever still reads it gets what was offered. What is small is copied to where it may be read
until it has been answered. Only where things lie goes over sockets (`wires.py`).
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import torch

from . import segments
from .links import PeerLost
from .parcels import Damaged, Frames, load, room
from .segments import Place
from .wires import LONGEST, Door, Wires, knock

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from .links import Links

T = TypeVar("T")

_PLACE = struct.Struct("<qQqq")
"""Of one tensor that is offered."""

_HEAD = struct.Struct("<LqQqq")
"""Of a text: checksum, a file, bytes of cargo at its beginning, and bytes of text after them if it is not here."""

READ = 0
"""Tag of what says that all has been read; a lane's own tags are others."""


class _Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who I am, where I am met, and a segment in which a number is to be found by whoever can read my memory."""

    machine: str
    pid: int
    door: str
    fd: int
    inode: int
    number: int


class Shared:
    """Does for tensors what `Links` does, but what is received are views of the sender's memory. See `meet`.

    Args:
        pids: the peers' processes, by slot. wires: to them.
    """

    def __init__(self, pids: Mapping[int, int], wires: Wires) -> None:
        self.wires = wires
        self._pids = pids
        self._like: dict[int, Mapping[int, Sequence[Tensor]]] = {}
        self._maps: dict[tuple[int, int], Tensor] = {}
        self._staged: dict[tuple[int, int], Tensor] = {}
        self._offered: list[Tensor] = []
        self._sent = 0

    @staticmethod
    def meet(links: Links, tag: int, patience: float) -> Shared | None:
        """Find out whether all members can read each other's memory: the same answer for all of them.

        Args:
            tag: of messages between them that nobody else uses. patience: seconds of each later wait.

        Raises:
            PeerLost, Damaged: a peer did not answer.
        """
        number = secrets.randbits(62)
        mine = segments.zeros(1, torch.int64).fill_(number)
        place, door = segments.place(mine) or Place(fd=-1), Door()
        knocked: dict[int, socket.socket] = {}
        try:
            frames = Frames(links, tag)
            hello = _Hello(_machine(), os.getpid(), door.address, place.fd, place.inode, number)
            hellos = _said(frames, links, hello, _Hello)
            agree = all(them.machine == hello.machine != "" and _reads(them) for them in hellos.values())
            with suppress(OSError):
                for slot in range(links.slot + 1, links.size if agree else 0):
                    knocked[slot] = knock(hellos[slot].door, links.slot)
            agree &= len(knocked) == links.size - 1 - links.slot
            answers = _said(frames, links, agree, bool)  # once all have, everybody has read and knocked
            if not agree or not all(answers.values()):
                return None
            sockets = knocked | door.accept(links.slot)
            knocked = {}
        finally:
            door.close()
            for one in knocked.values():
                one.close()
        pids = {peer: hellos[peer].pid for peer in links.peers}
        return Shared(pids, Wires(sockets, patience))

    @property
    def sent(self) -> int:
        """Bytes sent so far; what is read where it lies counts for each peer that reads it."""
        return self._sent + self.wires.sent

    def read_by_peers(self, size: int) -> None:
        """Count what somebody will read where it lies."""
        self._sent += size

    def expect(self, tag: int, receives: Mapping[int, Sequence[Tensor]]) -> None:
        """Be ready for tensors like these from each peer. They are not written to."""
        self._like[tag] = receives

    def move(self, tag: int, sends: Mapping[int, Sequence[Tensor]]) -> Callable[[], dict[int, list[Tensor]]]:
        """As `Links.move`; what was sent must stay as it is until `release`.

        Raises:
            PeerLost, Damaged, OutOfPatience: here or from there.
        """
        like, staged = self._like.pop(tag, {}), 0
        places: dict[int, Place] = {}
        for slot, tensors in sends.items():
            for tensor in tensors:
                if id(tensor) not in places:
                    place = segments.place(tensor)
                    if place is None:
                        place, staged = self._stage(tag, staged, tensor), staged + 1
                    places[id(tensor)] = place
                    self._offered.append(tensor)
                self.read_by_peers(tensor.nbytes)
            self.wires.send(slot, tag, b"".join(_PLACE.pack(*places[id(tensor)]) for tensor in tensors))

        def arrive() -> dict[int, list[Tensor]]:
            return {slot: self._views(slot, self.wires.receive(slot, tag), tensors) for slot, tensors in like.items()}

        return arrive

    def release(self) -> None:
        """All that peers have sent has been read: wait until they have read what I have, or will never tell.

        Raises:
            OutOfPatience: they have told nothing for too long.
        """
        lost = set()
        for tell in (lambda peer: self.wires.send(peer, READ, b""), lambda peer: self.wires.receive(peer, READ)):
            for peer in self._pids:
                try:
                    tell(peer)
                except PeerLost:  # which costs nothing now; the next step will find out
                    lost.add(peer)
        if lost:
            self.retire()
        self._offered.clear()

    def retire(self) -> None:
        """What peers may still be reading is left to them."""
        for tensor in self._offered:
            segments.retire(tensor)
        self._offered.clear()

    def close(self) -> None:
        """Let go of the peers' memory, of which nothing is used any more, and of the sockets to them."""
        self.wires.close()
        self._maps.clear()
        self._staged.clear()
        self._like.clear()

    def view(self, slot: int, place: Place, like: Tensor) -> Tensor:
        """A tensor in a peer's memory, of the type and size of another; it must not be written to.

        Raises:
            Damaged, PeerLost: it is not there.
        """
        if place.size == 0 == like.nbytes:
            return like
        key = slot, place.inode
        try:
            whole = self._maps.get(key)
            if whole is None:
                whole = self._maps[key] = segments.mapped(self._pids[slot], place.fd, place.inode)
        except (OSError, ValueError) as error:
            raise PeerLost(slot, f"its memory cannot be read: {error}") from error
        part = whole[place.begin : place.begin + place.size]
        if not part.nbytes == place.size == like.nbytes:
            raise Damaged(slot, f"slot {slot} offers {place.size} bytes at {place.begin}, not {like.nbytes}")
        return part.view(like.dtype)

    def _views(self, slot: int, table: bytes, like: Sequence[Tensor]) -> list[Tensor]:
        if len(table) != _PLACE.size * len(like):
            raise Damaged(slot, f"slot {slot} offers something else than {len(like)} tensors")
        places = [Place(*place) for place in _PLACE.iter_unpack(table)]
        return [self.view(slot, place, one) for place, one in zip(places, like, strict=True)]

    def _stage(self, tag: int, number: int, tensor: Tensor) -> Place:
        """Copy a tensor to a segment."""
        if not tensor.numel():
            return Place()
        staged = self._staged.get((tag, number))
        if staged is None:
            staged = self._staged[tag, number] = segments.zeros(tensor.numel(), tensor.dtype)
        return _placed(staged.copy_(tensor))


class SharedFrames:
    """What `Frames` are, for members on one machine.

    Args:
        tag: of these only. cargo: bytes of the tensors that come with each text of a peer, if any.
    """

    def __init__(self, shared: Shared, tag: int, cargo: Mapping[int, int] | None = None) -> None:
        self._shared, self._tag, self._cargo = shared, tag, cargo or {}
        self._pages: list[Tensor] = []
        self._came: dict[int, Tensor] = {}

    def send(self, slots: Iterable[int], text: bytes, cargo: Sequence[Tensor] = ()) -> None:
        """Send a text to each of these, and these contiguous tensors.

        What does not fit into a message is copied to where it may be read until the call after next. By then all have
        sent another one themselves, which they do when they have read this one.
        """
        size, long = sum(map(room, cargo)), len(text) > LONGEST - _HEAD.size
        if long:
            cargo = [*cargo, torch.frombuffer(bytearray(text), dtype=torch.uint8)]
        place = Place()
        if cargo:
            page = self._page(sum(map(room, cargo)))
            load(page, cargo)
            place = _placed(page)
        where = place.fd, place.inode, size, len(text) if long else 0
        data = _HEAD.pack(_checksum(text, *where), *where) + (b"" if long else text)
        for slot in slots:
            self._shared.read_by_peers(size + len(text) if long else size)
            self._shared.wires.send(slot, self._tag, data)

    def _page(self, size: int) -> Tensor:
        """The page before the last, or a larger one."""
        page = self._pages.pop(0) if len(self._pages) > 1 else None
        if page is None or page.numel() < size:
            page = segments.zeros(size, torch.uint8)
        self._pages.append(page)
        return page

    def settle(self) -> None:
        """Nothing is on its way for long."""

    def expect(self, slots: Iterable[int]) -> None:
        """Who sends need not ask."""

    def cargo(self, slot: int) -> Tensor:
        """The bytes of the tensors that came with this peer's last text, until the next is received."""
        return self._came[slot]

    def receive(self, slot: int) -> bytes:
        """The next text from a peer.

        Raises:
            Damaged: it is not what was sent. PeerLost, OutOfPatience: it does not come.
        """
        data = self._shared.wires.receive(slot, self._tag)
        if len(data) < _HEAD.size:
            raise Damaged(slot, f"a message from slot {slot} is damaged")
        checksum, fd, inode, size, long = _HEAD.unpack_from(data)
        text = data[_HEAD.size :]
        if long:
            text = self._shared.view(slot, Place(fd, inode, size, long), _bytes(long)).numpy().tobytes()
        if _checksum(text, fd, inode, size, long) != checksum or size != self._cargo.get(slot, 0):
            raise Damaged(slot, f"a message of {len(text)} bytes and {size} of tensors from slot {slot} is damaged")
        self._came[slot] = self._shared.view(slot, Place(fd, inode, 0, size), _bytes(size))
        return text


def _checksum(text: bytes, *where: int) -> int:
    return zlib.crc32(text, zlib.crc32(_HEAD.pack(0, *where)))


def _bytes(size: int) -> Tensor:
    """Stands for so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="meta")


def _placed(tensor: Tensor) -> Place:
    place = segments.place(tensor)
    if place is None:
        raise OSError("this process gets no more memory that others can read: is its limit of open files too low?")
    return place


def _said(frames: Frames, links: Links, mine: object, kind: type[T]) -> dict[int, T]:
    """Tell all peers something, and hear the same of them."""
    frames.send(links.peers, msgspec.msgpack.encode(mine))
    heard = {}
    for peer in links.peers:
        text = frames.receive(peer)
        try:
            heard[peer] = msgspec.msgpack.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise Damaged(peer, f"slot {peer} sent a damaged greeting: {error}") from error
    frames.settle()
    return heard


def _reads(them: _Hello) -> bool:
    try:
        return int(segments.mapped(them.pid, them.fd, them.inode).view(torch.int64)[0]) == them.number
    except (OSError, ValueError, RuntimeError):
        return False


def _machine() -> str:
    """Tells machines, and containers that do not see each other's processes, apart; empty if that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
