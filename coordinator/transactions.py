"""Transactions as data: what a decision wants written and on which condition, and who wants to hear how it ended.

Decisions are made by pure code; a driver applies their transactions and reports how they ended. An unknown
outcome needs no special handling: the next picture of the store shows what is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import structlog

from ..errors import LeaseGoneError, OutcomeUnknownError, UnavailableError

if TYPE_CHECKING:
    from .kv import Compare, Delete, KeyValueStore, Put

Outcome = Literal["yes", "no", "gone", "unknown"]
"""`no` may be tried again; `gone`: it was to be written under a lease that has ended, whatever renewals say."""

log = structlog.get_logger()


class Txn(NamedTuple):
    """A conditional write. `tag` says what it was for."""

    tag: str
    compares: tuple[Compare, ...]
    operations: tuple[Put | Delete, ...]


def apply(kv: KeyValueStore, txn: Txn) -> Outcome:
    """Send it once."""
    try:
        result = kv.txn(txn.compares, txn.operations)
    except OutcomeUnknownError as error:
        log.warning("txn.unknown", tag=txn.tag, error=str(error))
        return "unknown"
    except LeaseGoneError as error:
        log.warning("txn.lease_gone", tag=txn.tag, error=str(error))
        return "gone"
    except UnavailableError as error:
        log.warning("txn.unavailable", tag=txn.tag, error=str(error))
        return "no"
    return "yes" if result.succeeded else "no"
