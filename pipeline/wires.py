"""Short messages between members on one machine: sockets that the thread that trains reads by itself.

What gloo sends has to pass a thread of its own at either end, and wakes it up although the thread that trains is still
computing, which on a busy machine costs more than a small exchange. Here nobody is woken up who does not wait.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from .links import OutOfPatience, PeerLost

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 1 << 12
"""Bytes of a message. A step's worth of these must go although nobody reads yet: both ends send before they read."""


class Door:
    """Where higher slots let lower ones in; `address` is told to them."""

    def __init__(self) -> None:
        self.address = f"\0easyscale-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(128)

    def accept(self, count: int) -> dict[int, socket.socket]:
        """Those who have knocked before, by slot."""
        found = {}
        self._listener.settimeout(1.0)
        for _ in range(count):
            one, _ = self._listener.accept()
            one.settimeout(1.0)
            found[int.from_bytes(one.recv(8), "little")] = one
        return found

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()


def knock(address: str, slot: int) -> socket.socket:
    """Come to a higher slot's door, as `slot`; it need not be waiting there.

    Raises:
        OSError: there is no such door here.
    """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        one.connect(address)
        one.send(slot.to_bytes(8, "little"))
    except OSError:
        one.close()
        raise
    return one


class Wires:
    """One socket to each peer. Messages of one tag arrive in the order they were sent.

    Args:
        sockets: by slot. patience: seconds of each wait.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], patience: float) -> None:
        self._sockets = sockets
        self._patience = patience
        self._heard: dict[tuple[int, int], deque[bytes]] = {}
        self.sent = 0
        """Bytes sent so far."""
        for one in sockets.values():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # a quarter of it counts as free to use
            one.settimeout(patience)

    def send(self, slot: int, tag: int, data: bytes) -> None:
        """Send at most LONGEST bytes.

        Raises:
            PeerLost, OutOfPatience: they do not go.
        """
        assert len(data) <= LONGEST
        self.sent += len(data)
        try:
            self._sockets[slot].send(tag.to_bytes(1, "little") + data)
        except TimeoutError as error:
            raise OutOfPatience(f"slot {slot} took nothing for {self._patience} s") from error
        except OSError as error:
            raise PeerLost(slot, f"the connection broke: {error}") from error

    def receive(self, slot: int, tag: int) -> bytes:
        """The next message of this tag from a peer.

        Raises:
            PeerLost, OutOfPatience: it does not come.
        """
        mine = self._heard.setdefault((slot, tag), deque())
        while not mine:
            try:
                data = self._sockets[slot].recv(1 + LONGEST)
            except TimeoutError as error:
                raise OutOfPatience(f"slot {slot} sent nothing for {self._patience} s") from error
            except ConnectionResetError:  # it has gone and left something of mine unread; what it sent comes next
                continue
            except OSError as error:
                raise PeerLost(slot, f"the connection broke: {error}") from error
            if not data:
                raise PeerLost(slot, "the connection was closed by the peer")
            self._heard.setdefault((slot, data[0]), deque()).append(data[1:])
        return mine.popleft()

    def cut(self) -> None:
        """End all waits, from any thread: nothing is sent or received any more."""
        for one in self._sockets.values():
            with suppress(OSError):  # it has been, or the peer has gone
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the sockets; nobody waits any more."""
        for one in self._sockets.values():
            one.close()
