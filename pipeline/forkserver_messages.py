"""What owners and their fork server say to each other: one packet each, file descriptors going with it.

An owner asks with `Spawn` or `Share`. Each child has a connection to its owner: the child says `Started` on it, the
fork server `Exited`. When the owner closes or shuts its end, the child is killed.
"""

from __future__ import annotations

import msgspec

MAX_PACKET = 1 << 16
"""Bytes."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all packets."""


class Spawn(Packet, frozen=True, kw_only=True, tag=True):
    """Make a child that runs `main()` of one of our modules.

    With it come descriptors: the child's connection to its owner, its standard output and standard error, and, where
    it needs one more, what becomes its descriptor `EXTRA_FD`.
    """

    module: str
    arguments: tuple[str, ...]


class Share(Packet, frozen=True, kw_only=True, tag=True):
    """Let somebody else ask too: the other end of the connection that comes with this is theirs."""


class Started(Packet, frozen=True, kw_only=True, tag=True):
    """The child has a session and group of its own, numbered like its process."""

    pid: int


class Exited(Packet, frozen=True, kw_only=True, tag=True):
    """Exit status, or the negative number of the signal that ended it. Its number is kept until the owner closes."""

    status: int


EXTRA_FD = 3
"""Where a child finds the descriptor that was given to it beside its outputs."""

_to_fork_server: msgspec.json.Decoder[Spawn | Share] = msgspec.json.Decoder(Spawn | Share)
_to_owner: msgspec.json.Decoder[Started | Exited] = msgspec.json.Decoder(Started | Exited)


def decode_to_fork_server(data: bytes) -> Spawn | Share:
    """Read what an owner wants."""
    return _to_fork_server.decode(data)


def decode_to_owner(data: bytes) -> Started | Exited:
    """Read what became of a child."""
    return _to_owner.decode(data)
