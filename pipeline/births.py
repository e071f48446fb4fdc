"""What owners and their nursery say to each other: one packet each, file descriptors going with it.

An owner asks with `Birth` or `Adopt`. Each child has a connection to its owner: the child says `Born` on it, the
nursery `Ended`. When the owner closes or shuts its end, the child is killed.
"""

from __future__ import annotations

import msgspec

MAX_PACKET = 1 << 16
"""Bytes."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all packets."""


class Birth(Packet, frozen=True, kw_only=True, tag=True):
    """Make a child that runs `main()` of one of our modules.

    With it come descriptors: the child's connection to its owner, its standard output and standard error, and, where
    it needs one more, what becomes its descriptor `EXTRA_FD`.
    """

    module: str
    arguments: tuple[str, ...]


class Adopt(Packet, frozen=True, kw_only=True, tag=True):
    """Let somebody else ask too: the other end of the connection that comes with this is theirs."""


class Born(Packet, frozen=True, kw_only=True, tag=True):
    """The child has a session and group of its own, numbered like its process."""

    pid: int


class Ended(Packet, frozen=True, kw_only=True, tag=True):
    """Exit status, or the negative number of the signal that ended it. Its number is kept until the owner closes."""

    status: int


EXTRA_FD = 3
"""Where a child finds the descriptor that was given to it beside its outputs."""

_to_nursery: msgspec.json.Decoder[Birth | Adopt] = msgspec.json.Decoder(Birth | Adopt)
_to_owner: msgspec.json.Decoder[Born | Ended] = msgspec.json.Decoder(Born | Ended)


def decode_to_nursery(data: bytes) -> Birth | Adopt:
    """Read what an owner wants."""
    return _to_nursery.decode(data)


def decode_to_owner(data: bytes) -> Born | Ended:
    """Read what became of a child."""
    return _to_owner.decode(data)
