"""All policies, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UserError
from .market import Market
from .proposals import Proposals
from .rigid import Backfill, Fifo, Srtf

if TYPE_CHECKING:
    from collections.abc import Callable

    from .policy import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "backfill": Backfill,
    "srtf": Srtf,
    "paper": Proposals,
    "easyscale": Market,
}


def named(name: str) -> Policy:
    """A new one of this name.

    Raises:
        UserError: there is none.
    """
    if name not in POLICIES:
        raise UserError(f"there is no policy {name!r}", f"use one of {', '.join(POLICIES)}")
    return POLICIES[name]()
