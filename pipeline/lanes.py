"""How partials travel between the members of a generation: inside one process, or as blobs through the object store.

A lane carries bytes and decides nothing, so it never shows in the bits. The lane between peers (`peers.py`) stands
beside these two behind the same protocol, `protocols.Lane`.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from ..errors import CorruptError, EasyScaleError, NotFoundError
from .session import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..storage.objects import ObjectStore
    from .messages import Run
    from .protocols import Parcel

log = structlog.get_logger()

KEPT_STEPS = 2
"""A member that sends its part of step t has everybody's part of t-1, so nobody needs those of t-2 any more.
So it is with what is said between steps."""

MAX_READS = 5
"""How often an object that arrives damaged is read again, in case it was damaged on its way only."""


DIGEST_BYTES = 32
"""Of the SHA-256 that a lane object begins with."""


class Carried(Protocol):
    """A contribution that can be sent."""

    def to_bytes(self) -> bytes:
        """Bit-exact encoding."""
        ...


C = TypeVar("C", bound=Carried)


class _Unmet:
    """A lane whose members never meet: all of them have the state to begin with, or load it from a commit."""

    kind = "local"
    waits = False
    ran_out = False
    sent = 0

    def part(self) -> None:
        """See `protocols.Lane`."""

    def interrupt(self) -> None:
        """See `protocols.Lane`. Nothing waits here."""

    def close(self, *, finished: bool) -> None:
        """See `protocols.Lane`."""

    def meet(self) -> bool:
        """See `protocols.Lane`."""
        return True

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """See `protocols.Lane`."""
        raise NotImplementedError(f"{type(self).__name__} carries no states")

    def take(self, slot: int) -> Parcel | None:
        """See `protocols.Lane`."""
        raise NotImplementedError(f"{type(self).__name__} carries no states")


class LocalLane(_Unmet, Generic[C]):
    """All ESTs are in one runner: what is sent is what is received."""

    def __init__(self) -> None:
        self._sent: tuple[int, Control, C] | None = None

    def send(self, step: int, control: Control, contribution: C | None) -> None:
        """See `protocols.Lane`."""
        assert contribution is not None, "there is nobody to say anything else to"
        self._sent = step, control, contribution

    def poll(self, step: int) -> list[tuple[Control, C]] | None:
        """See `protocols.Lane`."""
        if self._sent is None or self._sent[0] != step:
            return None
        _, control, contribution = self._sent
        self._sent = None
        return [(control, contribution)]


class StoreLane(_Unmet, Generic[C]):
    """Partials as transient objects: members that reach only the object store train together.

    One object per member and step, since latency, not bandwidth, is what an exchange through a store costs: everybody
    reads everybody's partials and finishes the tree alone, in one round trip instead of the two of a sharded exchange.

    Args:
        store: where. job: its name.
        run: the membership. decode: bytes -> contribution.
    """

    kind = "store"

    def __init__(self, store: ObjectStore, job: str, run: Run, decode: Callable[[bytes], C]) -> None:
        self._store = store
        self._run = run
        self._decode = decode
        self._prefix = f"jobs/{job}/lane/{run.generation:08d}"
        self._step, self._round = -1, 0
        self._received: dict[int, tuple[Control, Any]] = {}
        self._damaged = 0
        self.sent = 0
        self.mine: list[str] = []
        """Keys of my objects that may still be wanted."""

    def _key(self, step: int, slot: int) -> str:
        between = f"-{self._round:08d}" if self._round else ""
        return f"{self._prefix}/{step:012d}/{slot:05d}{between}"

    def send(self, step: int, control: Control, contribution: C | None) -> None:
        """See `protocols.Lane`."""
        # first: a failed send must not leave the last step's parts to be taken
        self._step, self._round, self._received = step, control.round, {}
        key = self._key(step, self._run.slot)
        if key not in self.mine:
            self.mine.append(key)
        data = pack(control, contribution.to_bytes() if contribution is not None else b"")
        self._store.put(key, data, durable=False)
        self.sent += len(data)
        self._received[self._run.slot] = control, contribution
        while len(self.mine) > KEPT_STEPS:
            try:
                self._store.delete(self.mine[0])
            except EasyScaleError as error:  # it only costs room, and is removed with the next one
                log.warning("lane.left", key=self.mine[0], error=str(error))
                break
            del self.mine[0]

    def close(self, *, finished: bool) -> None:
        """See `protocols.Lane`. What others may still want to read is left for `gc`."""
        for key in self.mine if finished else []:
            with suppress(EasyScaleError):
                self._store.delete(key)
        self.mine = []

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """See `protocols.Lane`."""
        assert step == self._step
        for slot in range(len(self._run.members)):
            if slot in self._received:
                continue
            try:
                control, data = unpack(self._store.get(self._key(step, slot)))
            except NotFoundError:
                return None
            except CorruptError as error:
                self._damaged += 1
                if self._damaged >= MAX_READS:
                    raise
                log.warning("lane.damaged", key=self._key(step, slot), error=str(error))
                return None
            self._received[slot], self._damaged = (control, None if self._round else self._decode(data)), 0
        return [self._received[slot] for slot in range(len(self._run.members))]


def pack(control: Control, data: bytes) -> bytes:
    """Control record and contribution as one object: the SHA-256 of the rest, 8 bytes of length, JSON, the data.

    Partials go straight into the state, so a bit that flips on the way must not go unnoticed.
    """
    head = msgspec.json.encode(control)
    length = len(head).to_bytes(8, "little")
    return b"".join([_digest(length, head, data), length, head, data])


def unpack(data: bytes) -> tuple[Control, bytes]:
    """What `pack` packed.

    Raises:
        CorruptError: it is something else.
    """
    digest, rest = data[:DIGEST_BYTES], memoryview(data)[DIGEST_BYTES:]
    if _digest(rest) != digest:
        raise CorruptError(f"a lane object of {len(data)} bytes is damaged: it does not have the digest it names")
    length = int.from_bytes(rest[:8], "little")
    try:
        return msgspec.json.decode(rest[8 : 8 + length], type=Control), bytes(rest[8 + length :])
    except msgspec.DecodeError as error:
        raise CorruptError(f"a lane object is damaged: {error}") from error


def _digest(*pieces: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
