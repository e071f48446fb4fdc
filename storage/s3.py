"""An object store in a bucket of S3, or of a server that speaks its protocol, through boto3.

Every request is retried here, with a deadline, and nowhere else (botocore's own retries are off, so that we know
whether an earlier attempt may have been applied). What the server promises about conditional writes and checksums is
found out by `selftest.py`; bytes that are read are verified by hash in the layers above.
"""

from __future__ import annotations

import base64
import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.retries.standard
import botocore.retryhandler
import botocore.utils
import structlog
import urllib3.util.retry
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    NoCredentialsError,
)
from botocore.parsers import ResponseParserError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from ..chance import keep_from_global, wait_random
from ..errors import AddressError, EasyScaleError, NotFoundError, OutcomeUnknownError, UnavailableError
from .objects import KEY_PATTERN, Seen, check_key, joined
from .s3_errors import HINTS, MISSING, clocks_of, facts, is_transient, skew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

    from .objects import Body, Data

log = structlog.get_logger()
T = TypeVar("T")

keep_from_global(botocore.retries.standard, botocore.retryhandler, botocore.utils, urllib3.util.retry)

RETRY_DEADLINE = 30.0
"""Seconds after which no further attempt of a request is begun."""

CONNECT_TIMEOUT = 3.0
"""Seconds for a connection to be made."""

READ_TIMEOUT = 15.0
"""Seconds without a byte from the server after which an attempt is given up."""

OPEN_DEADLINE = 4.0
"""`RETRY_DEADLINE` and longest silence while the store is opened: somebody may be waiting at a terminal."""

MULTIPART_ABOVE = 65 << 20
"""Bytes above which `put` sends parts, so that a broken connection costs one part; a full pack is one request yet."""

PART_SIZE = 16 << 20
"""Bytes of a part (S3 allows 10,000 parts of at least 5 MiB: objects up to 160 GiB)."""

PART_THREADS = 4
"""Parts of one object that are sent at the same time."""

MAX_SKEW = 300.0
"""Seconds between our clock and the server's that are worth a warning: at 900, S3 refuses us."""

READ_SIZE = 1 << 20
"""Bytes read from a connection at a time: few calls, and they pass through the processor's cache."""

UPLOAD_ATTEMPTS = 3
"""How often a multipart upload that was answered but did not take effect is made afresh."""

CONNECTIONS = 32
"""Connections kept open, hence threads that can use one store without waiting for each other."""


class S3Store:
    """Objects of one bucket below a prefix; endpoint and credentials from boto3's usual chain. Thread-safe.

    Args:
        bucket: it must exist.
        prefix: put before every key, or "".
        deadline: seconds after which no further attempt of a request is begun.

    Raises:
        AddressError: the bucket cannot be reached or used with these credentials; known within about 5 s.
    """

    def __init__(self, bucket: str, prefix: str = "", *, deadline: float = RETRY_DEADLINE) -> None:
        self.address = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        if not bucket or (prefix and not KEY_PATTERN.fullmatch(prefix)):
            raise AddressError(
                f"object store address {self.address!r}: not of the form s3://bucket/prefix",
                "a prefix has parts of letters, digits, '.', '_' and '-', separated by '/'",
            )
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._deadline = deadline
        self._session = self._refusing_settings(boto3.session.Session)
        self._client = self._connect(CONNECT_TIMEOUT, READ_TIMEOUT)
        self.check()

    def check(self) -> None:
        """Ask for one key. By LIST, because the answer to a HEAD cannot say why we are refused.

        Raises:
            AddressError: unreachable, no such bucket, wrong credentials, wrong clock; with what to do.
        """
        client = self._connect(OPEN_DEADLINE / 2, OPEN_DEADLINE)
        request = partial(client.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        try:
            answer = self._call("open", request, deadline=OPEN_DEADLINE)
        except UnavailableError as error:
            hint = "start the server, or correct AWS_ENDPOINT_URL; a proxy or firewall may be in the way"
            raise AddressError(str(error), hint) from error
        clocks = clocks_of(answer["ResponseMetadata"])
        if clocks is not None and abs(clocks.seconds) > MAX_SKEW:
            log.warning("s3_clock_skew", store=self.address, found=str(clocks), hint=HINTS["RequestTimeTooSkewed"])

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""

        def request() -> bytes:
            # The body belongs to the attempt: a connection can break in the middle of it.
            return self._client.get_object(Bucket=self._bucket, Key=full_key)["Body"].read()

        full_key = self._key(key)
        return self._call(f"get {key!r}", request)

    def view(self, key: str) -> memoryview:
        """See `ObjectStore.view`."""

        def request() -> memoryview:
            answer = self._client.get_object(Bucket=self._bucket, Key=full_key)
            buffer = memoryview(bytearray(answer["ContentLength"]))
            filled = 0
            while filled < len(buffer):
                got = answer["Body"].readinto(buffer[filled : filled + READ_SIZE])  # type: ignore[arg-type]
                if not got:
                    raise IncompleteReadError(actual_bytes=filled, expected_bytes=len(buffer))
                filled += got
            return buffer

        full_key = self._key(key)
        return self._call(f"get {key!r}", request)

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:  # noqa: ARG002
        """See `ObjectStore.put`. Every write is durable."""
        full_key, data = self._key(key), joined(data)
        if memoryview(data).nbytes <= MULTIPART_ABOVE:
            request = partial(
                self._client.put_object, Bucket=self._bucket, Key=full_key, Body=bytes(data), ContentMD5=_md5(data)
            )
            self._call(f"put {key!r}", request, failure=OutcomeUnknownError)
            return
        view = memoryview(data).cast("B")
        if not any(self._upload(full_key, view) for _ in range(UPLOAD_ATTEMPTS)):
            raise OutcomeUnknownError(
                f"{self.address}: put {key!r}: the server reported success {UPLOAD_ATTEMPTS} times, "
                f"but there is no object of {len(view)} bytes"
            )

    def create(self, key: str, data: Data) -> bool:
        """See `ObjectStore.create`. One request whatever the size (S3 allows 5 GiB): what the self-test has tried."""
        full_key, body, digest = self._key(key), bytes(data), _md5(data)
        maybe_ours = False

        def request() -> bool:
            nonlocal maybe_ours
            try:
                self._client.put_object(
                    Bucket=self._bucket, Key=full_key, Body=body, ContentMD5=digest, IfNoneMatch="*"
                )
            except (ClientError, BotoCoreError, ResponseParserError) as error:
                status = facts(error)[1]
                if status == 412:
                    return False
                maybe_ours |= status != 409  # a conflict was certainly not applied
                raise
            return True

        doing = f"create {key!r}"
        if self._call(doing, request, failure=OutcomeUnknownError):
            return True
        if not maybe_ours:
            return False
        try:
            return self.get(key) == body
        except (NotFoundError, UnavailableError) as error:
            raise OutcomeUnknownError(f"{self.address}: {doing}: answer lost, and reading back: {error}") from error

    def exists(self, key: str) -> bool:
        """See `ObjectStore.exists`."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        seen = self.look(key)
        return seen.size if seen is not None else None

    def look(self, key: str) -> Seen | None:
        """See `ObjectStore.look`."""
        request = partial(self._client.head_object, Bucket=self._bucket, Key=self._key(key))
        try:
            answer = self._call(f"look for {key!r}", request)
        except NotFoundError:
            return None
        return _seen(key, answer["ContentLength"], answer.get("LastModified"), _now(answer))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        request = partial(self._client.delete_object, Bucket=self._bucket, Key=self._key(key))
        with suppress(NotFoundError):
            self._call(f"delete {key!r}", request, failure=OutcomeUnknownError)

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list`."""
        for seen in self.survey(prefix):
            yield seen.key

    def survey(self, prefix: str) -> Iterator[Seen]:
        """See `ObjectStore.survey`. A page of a thousand at a time."""
        request = partial(self._client.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix + prefix)
        page = self._call(f"list {prefix!r}", request)
        while True:
            now = _now(page)
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                yield _seen(key, entry.get("Size", 0), entry.get("LastModified"), now)
            if not page["IsTruncated"]:
                return
            page = self._call(f"list {prefix!r}", partial(request, ContinuationToken=page["NextContinuationToken"]))

    def clock_skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the server's, to about one second."""
        answer = self._call(
            "open", partial(self._client.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        )
        clocks = clocks_of(answer["ResponseMetadata"])
        return clocks.seconds if clocks is not None else 0.0

    def accepts_wrong_checksum(self, key: str) -> bool:
        """Whether the server takes bytes that do not have the Content-MD5 sent with them; for the self-test.

        Writes the object when it does.
        """
        full_key = self._key(key)

        def request() -> bool:
            try:
                self._client.put_object(Bucket=self._bucket, Key=full_key, Body=b"sent", ContentMD5=_md5(b"meant"))
            except ClientError as error:
                if facts(error)[1] == 400:
                    return False
                raise
            return True

        return self._call(f"put {key!r} with a wrong checksum", request)

    def _key(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _connect(self, connect_timeout: float, read_timeout: float) -> S3Client:
        config = Config(
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path"},  # a name per bucket is more than most servers' DNS has
            # The newer default sends checksums as trailers, which some servers store inside the object.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return self._refusing_settings(lambda: self._session.client("s3", config=config))

    def _refusing_settings(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except (BotoCoreError, ValueError) as error:
            raise AddressError(f"{self.address}: {error}", "check the AWS_* variables and ~/.aws/config") from error

    def _call(
        self,
        doing: str,
        request: Callable[[], T],
        *,
        failure: type[UnavailableError] = UnavailableError,
        deadline: float | None = None,
    ) -> T:
        """Make a request until it is answered for good; here all errors become ours."""
        deadline = self._deadline if deadline is None else deadline
        retrying = Retrying(
            stop=stop_before_delay(deadline),
            wait=wait_exponential(multiplier=0.1, max=3) + wait_random(0, 0.2),
            retry=retry_if_exception(is_transient),
            before_sleep=partial(self._log_retry, doing),
            reraise=True,
        )
        try:
            return retrying(request)
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            raise self._explained(doing, error, failure, deadline) from error

    def _log_retry(self, doing: str, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("s3_retry", store=self.address, doing=doing, attempt=state.attempt_number, reason=str(error))

    def _explained(
        self, doing: str, error: Exception, failure: type[UnavailableError], deadline: float
    ) -> EasyScaleError:
        code, _, message = facts(error)
        where = f"{self.address} at {self._client.meta.endpoint_url}: {doing}"
        if code in MISSING:
            return NotFoundError(f"{where}: not found")
        if is_transient(error):
            return failure(f"{where}: no success within {deadline:g} s: {message}")
        if isinstance(error, NoCredentialsError):
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        else:
            hint = HINTS.get(code, "the server refuses the request as such: see its documentation or log")
        return AddressError(f"{where}: {message}{skew(error)}", hint)

    def _upload(self, full_key: str, data: memoryview) -> bool:
        """Send in parts. False when the answers look like success but no such object is there."""
        client = self._client
        call = partial(self._call, failure=OutcomeUnknownError)
        upload = call("begin upload", lambda: client.create_multipart_upload(Bucket=self._bucket, Key=full_key))
        names: dict[str, Any] = {"Bucket": self._bucket, "Key": full_key, "UploadId": upload["UploadId"]}
        try:

            def part(start: int) -> CompletedPartTypeDef:
                number, body = start // PART_SIZE + 1, bytes(data[start : start + PART_SIZE])
                send = partial(client.upload_part, **names, PartNumber=number, Body=body, ContentMD5=_md5(body))
                return {"PartNumber": number, "ETag": call(f"upload part {number}", send)["ETag"]}

            with ThreadPoolExecutor(PART_THREADS) as pool:  # after an error, those that are under way are waited for
                parts = list(pool.map(part, range(0, len(data), PART_SIZE)))
            complete = partial(client.complete_multipart_upload, **names, MultipartUpload={"Parts": parts})
            call("complete upload", complete)
            # Success may be reported by a 200 whose body says otherwise.
            head = call("confirm upload", lambda: client.head_object(Bucket=self._bucket, Key=full_key))
            return head["ContentLength"] == len(data)
        except NotFoundError:
            # The server has lost the upload, or completed it with the answer lost: sending again is right for both.
            return False
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # parts left behind cost room, nothing else
                client.abort_multipart_upload(**names)
            raise


def _now(answer: Any) -> float | None:
    """The server's clock when it answered."""
    clocks = clocks_of(answer.get("ResponseMetadata"))
    return clocks.theirs.timestamp() if clocks is not None else None


def _seen(key: str, size: int, modified: datetime | None, now: float | None) -> Seen:
    """What an answer says of an object. Where the server tells no time, it is as if it had just been written."""
    if modified is None or now is None:
        return Seen(key, size, 0.0)
    return Seen(key, size, now - modified.timestamp())


def _md5(data: Data) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
