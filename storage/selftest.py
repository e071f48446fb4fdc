"""What an object store claims, tried out at start-up: conditional create, bytes read back, checksums.

S3-compatible servers exist that ignore conditional headers (two workers would both own a commit) or that store
checksum trailers inside the object. Better to refuse them at the start, in five requests, than to lose a job later.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import structlog

from ..errors import AddressError, EasyScaleError

if TYPE_CHECKING:
    from .objects import ObjectStore

log = structlog.get_logger()

# Every byte value, line ends of all sorts and the framing of a chunked body: what a meddling server would touch.
PATTERN = bytes(range(256)) + b"\r\n\n\r0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n\x00"


@runtime_checkable
class ChecksumProbe(Protocol):
    """A store that sends checksums along and can tell whether the server looks at them."""

    def accepts_wrong_checksum(self, key: str) -> bool:
        """Whether a write with a wrong checksum is taken; the object is then written."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Args:
        check: its name.
        ok: the store does what it should.
        fatal: if not ok, the store is unfit; otherwise it is only a pity.
        detail: what was found and, if not ok, why it matters.
        hint: what to do, if not ok.
    """

    check: str
    ok: bool
    fatal: bool
    detail: str
    hint: str = ""


def self_test(store: ObjectStore) -> list[Finding]:
    """Try the store under a fresh key `selftest/<nonce>`, which is removed afterwards, if the store lets us.

    Raises:
        AddressError, UnavailableError: as the store's own methods do.
    """
    key = f"selftest/{secrets.token_hex(16)}"
    try:
        findings = [*_conditional_create(store, key)]
        if isinstance(store, ChecksumProbe):
            findings.append(_checksum(store.accepts_wrong_checksum(key)))
    finally:
        try:
            store.delete(key)
        except EasyScaleError as error:  # a few bytes are left, and whatever is wrong shows in what failed before
            log.warning("selftest.left", store=store.address, key=key, error=str(error))
    return findings


def require_fit(store: ObjectStore) -> None:
    """Refuse a store that would corrupt jobs; log what is merely a pity.

    Raises:
        AddressError: what failed, why it matters and what to do.
        UnavailableError: the store did not answer.
    """
    for finding in self_test(store):
        if finding.ok:
            continue
        if finding.fatal:
            raise AddressError(f"object store {store.address}: {finding.check}: {finding.detail}", finding.hint)
        log.warning("store_weakness", store=store.address, check=finding.check, detail=finding.detail)


def _conditional_create(store: ObjectStore, key: str) -> list[Finding]:
    other = PATTERN[::-1]
    first, second, found = store.create(key, PATTERN), store.create(key, other), store.get(key)
    if not first:
        detail = "creating an object that did not exist was refused, so no commit could ever be published"
    elif second:
        detail = "a second create of the same object succeeded: two workers would both own one commit"
    else:
        detail = "a second create of the same object is refused"
    return [
        Finding(
            "conditional create",
            first and not second,
            True,
            detail,
            "use a server that honours 'If-None-Match: *' on PUT (AWS S3, SeaweedFS, MinIO, a local folder), "
            "or upgrade this one",
        ),
        Finding(
            "round trip",
            found == (other if second else PATTERN),
            True,
            f"{len(PATTERN)} bytes were written and {len(found)} read back"
            + (", the same" if found in (PATTERN, other) else ", changed: whatever is stored there would be damaged"),
            "a proxy or gateway in front of the server may rewrite bodies; connect to the server itself or upgrade it",
        ),
    ]


def _checksum(accepted: bool) -> Finding:
    return Finding(
        "checksums",
        not accepted,
        False,
        "a write whose Content-MD5 is wrong is accepted: damage on the way there is found only when reading"
        if accepted
        else "a write whose Content-MD5 is wrong is refused",
        "use a server that checks Content-MD5",
    )
