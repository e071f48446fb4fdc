"""What `verify` came to, kept for those who look at the job later. For people only: nothing is decided from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ..coordinator import keys, records
from ..coordinator.kv import Put, absent, unchanged
from ..errors import CorruptError, UnavailableError
from .submit import ATTEMPTS

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValue, KeyValueStore

KEPT = 10
"""Results that are kept of a job, the newest ones."""

SHOWN = 500
"""Characters that are kept of what was found."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `verify`.

    Args:
        start, end: the steps between which everything was looked at. steps: how many were computed anew.
        at: Unix time in seconds. host, device: where.
        found: what differs, or why not all was computed; "" if every bit is as it should be.
    """

    verdict: Literal["verified", "differs"]
    start: int
    end: int
    steps: int
    at: float
    host: str
    device: str
    found: str = ""


class _Kept(msgspec.Struct, frozen=True):
    newest: tuple[Verified, ...]


def read(kv: KeyValueStore, job: str) -> tuple[Verified, ...]:
    """Results of a job, oldest first; none where they cannot be read.

    Raises:
        UnavailableError: the store does not answer.
    """
    return _decode(kv.get(keys.verified(job)))


def keep(kv: KeyValueStore, job: str, result: Verified) -> None:
    """Keep a result.

    Raises:
        UnavailableError: the store does not answer, or others keep writing at the same time.
    """
    key = keys.verified(job)
    result = msgspec.structs.replace(result, found=result.found[:SHOWN])
    for _ in range(ATTEMPTS):
        before = kv.get(key)
        kept = _Kept((*_decode(before), result)[-KEPT:])
        if kv.txn((unchanged(before) if before else absent(key),), (Put(key, records.encode(kept)),)).succeeded:
            return
    raise UnavailableError(f"{kv.address}: {key} keeps changing")


def _decode(entry: KeyValue | None) -> tuple[Verified, ...]:
    try:
        return records.decode(entry.value, _Kept, entry.key).newest if entry else ()
    except CorruptError:
        return ()
