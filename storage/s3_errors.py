"""What S3's answers mean that are no success: not now, not there, or a refusal and what to do about it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError, CredentialRetrievalError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

MISSING = {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}  # HEAD has no body, so botocore gives the status as code

# Answers that say "not now". Besides these, 409, 429 and 5xx; BadDigest means that the bytes were hurt on their way.
RETRY_CODES = {"BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "Throttling", "XAmzContentSHA256Mismatch"}
RETRY_STATUSES = {409, 429, 500, 502, 503, 504}
RETRY_ERRORS = (
    BotoConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    ResponseParserError,
)

_REGION = "set AWS_DEFAULT_REGION to the bucket's region"
_PERMISSIONS = "these credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on the bucket"
_RENEW = "the temporary credentials are over: renew them"
HINTS = {
    "403": _PERMISSIONS,
    "AccessDenied": _PERMISSIONS,
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": _RENEW,
    "InvalidAccessKeyId": "the server does not know AWS_ACCESS_KEY_ID: check it and AWS_ENDPOINT_URL",
    "InvalidToken": _RENEW,
    "NoSuchBucket": "create the bucket, or correct its name (option --store or EASYSCALE_STORE)",
    "NotImplemented": "the server lacks a part of S3 that EasyScale needs: use another one",
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": "set this machine's clock (and keep it right with NTP), or the server's if that is wrong",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID: check both",
}
"""What to do about a refusal, by S3's error code."""


def facts(error: BaseException) -> tuple[str, int, str]:
    """S3's error code ("" when there was no answer), HTTP status (0) and a message."""
    if not isinstance(error, ClientError):
        return "", 0, str(error)
    response: dict[str, Any] = error.response  # type: ignore[assignment]
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = response.get("Error", {}).get("Message", "")
    return code, status, f"{status} {code}: {message}"


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed if it is made again."""
    code, status, _ = facts(error)
    return isinstance(error, RETRY_ERRORS) or code in RETRY_CODES or status in RETRY_STATUSES


@dataclass(frozen=True, slots=True)
class Clocks:
    """This machine's clock and the server's at the same moment, to about a second."""

    ours: datetime
    theirs: datetime

    @property
    def seconds(self) -> float:
        """By which ours is ahead."""
        return (self.ours - self.theirs).total_seconds()

    def __str__(self) -> str:
        minutes, side = abs(self.seconds) / 60, "ahead of" if self.seconds > 0 else "behind"
        ours, theirs = (f"{clock:%Y-%m-%d %H:%M:%S}" for clock in (self.ours, self.theirs))
        return f"this machine's clock ({ours} UTC) is {minutes:.0f} minutes {side} the server's ({theirs} UTC)"


def clocks_of(answer: Any) -> Clocks | None:
    """The two clocks, from the `ResponseMetadata` of an answer that has just come."""
    with suppress(KeyError, ValueError, TypeError):
        return Clocks(datetime.now(UTC), parsedate_to_datetime(answer["HTTPHeaders"]["date"]).astimezone(UTC))
    return None


def skew(error: Exception) -> str:
    """By how much a clock is wrong, when that is why the server refuses us."""
    if not isinstance(error, ClientError) or facts(error)[0] != "RequestTimeTooSkewed":
        return ""
    clocks = clocks_of(error.response["ResponseMetadata"])
    return f": {clocks}" if clocks else ""
