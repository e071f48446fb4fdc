"""The connections of one member to its peers in one generation: tensors there and back, whom a break has lost, an end.

gloo's point-to-point messages, since a failed one names its peer; a wait that runs out, or `abort`, does not do. For
each peer a thread waits for its goodbye: so a connection that breaks is known at once, whatever else is going on. A
wait can only be ended by closing all connections, which is what `close` is for: after it nothing is read from or
written to any tensor that was given here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import Work

EVER = timedelta(days=365)
"""A wait that runs out closes all connections."""

LINGER_SECONDS = 1.0
"""How long the goodbyes of peers are waited for: they have not got all that I sent before they say it."""

NEVER, GOODBYE = 0, 1
"""Tags of a message that nobody sends, and of the one that comes last; others have larger ones.

A message must find a tensor of its own size waiting: gloo ends the process otherwise.
"""


class PeerLost(Exception):  # noqa: N818 - what happened, not what was done wrong
    """The connection to a peer broke."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(why)
        self.slot = slot


class OutOfPatience(Exception):  # noqa: N818 - what happened, not what was done wrong
    """A peer sent nothing for too long. All connections are closed."""


class Pending(NamedTuple):
    """A message on its way."""

    slot: int
    work: Work
    patience: timedelta = EVER

    def wait(self) -> None:
        """Until it has come, or has left this process.

        Raises:
            PeerLost: it never will. OutOfPatience: it did not, for that long.
        """
        until = time.monotonic() + self.patience.total_seconds()
        try:
            self.work.wait(self.patience)
        except RuntimeError as error:
            if time.monotonic() >= until:
                raise OutOfPatience(f"slot {self.slot} sent nothing for {self.patience}, nor did it go") from error
            raise PeerLost(self.slot, str(error)) from error


class Links:
    """Connections to all other members.

    Args:
        group: a ProcessGroupGloo, just made, and nobody else's. slot, size: mine, and how many members there are.
        on_break: told of each peer whose connection breaks before its goodbye, and why; from another thread.
        patience: of each wait for a message.
    """

    def __init__(
        self, group: Any, slot: int, size: int, on_break: Callable[[int, str], None], patience: timedelta = EVER
    ) -> None:
        self._group = group
        self._on_break = on_break
        self._patience = patience
        self._closing = False
        self._parting: list[Pending] = []
        self._expected: dict[int, tuple[list[Pending], Mapping[int, Sequence[Tensor]]]] = {}
        self.slot, self.size = slot, size
        self.peers = [(slot + turn) % size for turn in range(1, size)]
        """The others, the next one first, so that not everybody sends to the same one."""
        self.sent = 0
        """Bytes sent so far."""
        self._watchers: list[threading.Thread] = []
        for peer in self.peers:
            thread = threading.Thread(target=self._watch, args=(peer,), name=f"easyscale-peer-{peer}", daemon=True)
            thread.start()
            self._watchers.append(thread)

    def send(self, slot: int, tag: int, tensor: Tensor) -> Pending:
        """Send a contiguous tensor of the host; leave it as it is until the message has been waited for.

        Raises:
            PeerLost: the connection is broken.
        """
        self.sent += tensor.nbytes
        try:
            return Pending(slot, self._group.send([tensor], slot, tag), self._patience)
        except RuntimeError as error:
            raise PeerLost(slot, str(error)) from error

    def receive(self, slot: int, tag: int, tensor: Tensor) -> Pending:
        """Receive into a contiguous tensor of the host, of exactly the size that is sent.

        Raises:
            PeerLost: the connection is broken.
        """
        try:
            return Pending(slot, self._group.recv([tensor], slot, tag), self._patience)
        except RuntimeError as error:
            raise PeerLost(slot, str(error)) from error

    def expect(self, tag: int, receives: Mapping[int, Sequence[Tensor]]) -> None:
        """Be ready for tensors from each peer, which then need not ask first; `move` waits for them.

        Raises:
            PeerLost: one of them.
        """
        coming = [
            self.receive(slot, tag, tensor)
            for slot, tensors in receives.items()
            for tensor in tensors
            if tensor.numel()
        ]
        self._expected[tag] = coming, receives

    def move(self, tag: int, sends: Mapping[int, Sequence[Tensor]]) -> Callable[[], Mapping[int, Sequence[Tensor]]]:
        """Send tensors to each peer; what is returned waits until they have left, and all that is expected has come.

        That gives the tensors that have come, by peer.

        Raises:
            PeerLost: one of them, here or from there.
        """
        coming, receives = self._expected.pop(tag, ([], {}))
        both = coming + [
            self.send(slot, tag, tensor) for slot, tensors in sends.items() for tensor in tensors if tensor.numel()
        ]

        def settle() -> Mapping[int, Sequence[Tensor]]:
            for message in both:
                message.wait()
            return receives

        return settle

    def release(self) -> None:
        """See `Shared.release`: what has been waited for has been copied."""

    def _watch(self, peer: int) -> None:
        goodbye = torch.empty(1, dtype=torch.uint8)  # must outlive the wait
        try:
            self.receive(peer, GOODBYE, goodbye)._replace(patience=EVER).wait()
        except PeerLost as lost:
            if not self._closing:
                self._on_break(peer, str(lost))

    def part(self) -> None:
        """Say goodbye: all that I had to receive has come."""
        for peer in self.peers:
            with contextlib.suppress(PeerLost):
                self._parting.append(self.send(peer, GOODBYE, torch.ones(1, dtype=torch.uint8)))

    def close(self) -> None:
        """Close all connections; whoever still waits for a message, here or there, is told that they broke.

        After `part` the others' goodbyes are waited for, since closing may take away what they have not read yet.
        """
        deadline = time.monotonic() + (LINGER_SECONDS if self._parting else 0.0)
        for thread in self._watchers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.cut()
        for thread in self._watchers:
            thread.join()
        self._parting.clear()

    def cut(self) -> None:
        """End all waits, from any thread: all connections are closed, and there is no break to tell of."""
        self._closing = True
        nothing = torch.empty(1, dtype=torch.uint8)
        for peer in self.peers:  # a wait that runs out closes them all; one on a broken connection just fails
            with contextlib.suppress(RuntimeError):
                self._group.recv([nothing], peer, NEVER).wait(timedelta(milliseconds=1))
