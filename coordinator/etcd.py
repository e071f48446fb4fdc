"""etcd as a key-value store, over the gRPC stubs of `python3-etcd3`.

Guarantees that every call ends within its deadline with an answer, "not done" or "unknown", and that the store outlives
any member of the cluster without being opened again. The package's own client is not used: it keeps a failed endpoint
out for five minutes and its watcher's thread dies of the first error.
"""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_before_delay

from ..errors import AddressError, LeaseGoneError, OutcomeUnknownError, UnavailableError
from . import etcd_access
from .kv import CALL_DEADLINE, KeyValue, Put, TxnResult, check_operations

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would print every lost connection on stderr

import grpc  # type: ignore[import-untyped]
import structlog
from etcd3 import etcdrpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenacity import RetryCallState

    from .kv import Compare, Delete

_log = structlog.get_logger()
_T = TypeVar("_T")

OPEN_DEADLINE = 3.0
"""Seconds in which the cluster must answer when it is opened."""

_PROBE = "/easyscale/v1/"  # a role that may read our keys may read this one
_RETRY_PAUSE = 0.05
_WATCH_PAUSES = (0.1, 2.0)  # seconds before a lost watch is tried again: first, most
_OPTIONS = (
    ("grpc.enable_retries", 0),  # a retry behind our back would hide that a write was sent
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # in truth the time that one attempt to connect may take
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # a dead machine says nothing; etcd allows a ping every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
)
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_REFUSED_USER = ("etcdserver: user name is empty", "etcdserver: authentication failed", "etcdserver: authentication is")
_BAD_TOKEN = "etcdserver: invalid auth token"  # noqa: S105 - a message, not a secret
_CERTAINLY_NOT_DONE = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class _TryAgain(Exception):  # noqa: N818 - says what to do, never leaves this module
    """Nothing was done, or doing it twice does no harm."""


class _Member:
    """One endpoint: its channel and stubs. `token` is what this member has given us for user and password."""

    def __init__(self, target: str, access: etcd_access.Access) -> None:
        self.target = target
        self.token = ""
        self._user = access.user
        self._password = access.password
        self.channel = _channel(target, access.tls)
        self.auth = etcdrpc.AuthStub(self.channel)
        self.kv = etcdrpc.KVStub(self.channel)
        self.lease = etcdrpc.LeaseStub(self.channel)
        self.maintenance = etcdrpc.MaintenanceStub(self.channel)
        self.watch = etcdrpc.WatchStub(self.channel)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("token", self.token)] if self.token else []

    def log_in(self, timeout: float) -> None:
        if self._user and not self.token:
            request = etcdrpc.AuthenticateRequest(name=self._user, password=self._password)
            self.token = self.auth.Authenticate(request, timeout=timeout).token


class EtcdStore:
    """See `KeyValueStore`.

    Args:
        address: see `etcd_access.parse`.

    Raises:
        AddressError: the address cannot be read, nobody answers there, or we are refused.
    """

    def __init__(self, address: str) -> None:
        access = etcd_access.parse(address)
        self.address = access.address
        self._members = [_Member(target, access) for target in access.targets]
        self._current = 0
        self._watches: set[EtcdWatch] = set()
        try:
            self._range(_PROBE, b"", deadline=OPEN_DEADLINE)
        except (AddressError, UnavailableError) as error:
            self.close()
            if isinstance(error, AddressError):
                raise
            raise AddressError(str(error), _unanswered(str(error), access)) from error

    def get(self, key: str) -> KeyValue | None:
        """See `KeyValueStore.get`."""
        found = self._range(key, b"")
        return found[0] if found else None

    def range(self, prefix: str) -> list[KeyValue]:
        """See `KeyValueStore.range`."""
        return self._range(prefix or "\0", _end_of(prefix))

    def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """See `KeyValueStore.txn`."""
        check_operations(operations)
        request = etcdrpc.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_operation(operation) for operation in operations],
        )
        try:
            answer = self._call(
                lambda member, timeout: member.kv.Txn(request, timeout=timeout, metadata=member.metadata),
                repeatable=not operations,
            )
        except _NoLeaseError as error:
            leases = sorted({operation.lease for operation in operations if isinstance(operation, Put)} - {0})
            raise LeaseGoneError(f"{self.address}: lease gone, one of {leases}") from error
        return TxnResult(answer.succeeded, answer.header.revision)

    def grant(self, ttl: float) -> int:
        """See `KeyValueStore.grant`. etcd counts whole seconds: rounded up. An answer that is lost leaves a lease
        behind that nobody renews.
        """
        request = etcdrpc.LeaseGrantRequest(TTL=max(1, math.ceil(ttl)))
        answer = self._call(
            lambda member, timeout: member.lease.LeaseGrant(request, timeout=timeout, metadata=member.metadata)
        )
        return int(answer.ID)

    def keep_alive(self, lease: int) -> bool:
        """See `KeyValueStore.keep_alive`."""
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease)

        def renew(member: _Member, timeout: float) -> bool:
            stream = member.lease.LeaseKeepAlive(iter([request]), timeout=timeout, metadata=member.metadata)
            answer = next(stream, None)
            if answer is None:
                raise _TryAgain(f"{member.target}: the stream ended without an answer")
            return bool(answer.TTL > 0)

        return self._call(renew)

    def revoke(self, lease: int) -> None:
        """See `KeyValueStore.revoke`."""
        request = etcdrpc.LeaseRevokeRequest(ID=lease)
        with suppress(_NoLeaseError):
            self._call(
                lambda member, timeout: member.lease.LeaseRevoke(request, timeout=timeout, metadata=member.metadata)
            )

    def watch(self, *prefixes: str) -> EtcdWatch:
        """See `KeyValueStore.watch`. One stream and its thread per watch, until it is closed."""
        watch = EtcdWatch(self, prefixes)
        self._watches.add(watch)
        return watch

    def version(self) -> str:
        """The version of the member that answers. Raises `UnavailableError`."""
        answer = self._call(
            lambda member, timeout: member.maintenance.Status(
                etcdrpc.StatusRequest(), timeout=timeout, metadata=member.metadata
            )
        )
        return str(answer.version)

    def close(self) -> None:
        """See `KeyValueStore.close`."""
        for watch in list(self._watches):
            watch.close()
        for member in self._members:
            member.channel.close()

    def current(self) -> _Member:
        """The member to ask next."""
        return self._members[self._current]

    def avoid(self, member: _Member) -> None:
        """Ask another member next: this one has failed."""
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    def _range(self, key: str, end: bytes, deadline: float = CALL_DEADLINE) -> list[KeyValue]:
        request = etcdrpc.RangeRequest(
            key=key.encode(),
            range_end=end,
            sort_order=etcdrpc.RangeRequest.ASCEND,
            sort_target=etcdrpc.RangeRequest.KEY,
        )
        answer = self._call(
            lambda member, timeout: member.kv.Range(request, timeout=timeout, metadata=member.metadata),
            deadline=deadline,
        )
        return [KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.lease) for kv in answer.kvs]

    def _call(
        self, invoke: Callable[[_Member, float], _T], *, repeatable: bool = True, deadline: float = CALL_DEADLINE
    ) -> _T:
        """Ask members in turn until one answers. What is not repeatable is sent at most once."""
        members = len(self._members)

        def pause(state: RetryCallState) -> float:
            return 0.0 if state.attempt_number < members else _RETRY_PAUSE

        end = time.monotonic() + deadline
        # A member that hangs must leave time to ask the others.
        share = deadline / members if repeatable else deadline
        retrying = Retrying(
            stop=stop_before_delay(deadline), wait=pause, retry=retry_if_exception_type(_TryAgain), reraise=True
        )
        try:
            answer: _T = retrying(self._attempt, invoke, end, share, repeatable)
            return answer
        except _TryAgain as error:
            raise UnavailableError(f"{self.address}: no answer in {deadline:g} s: {error}") from error

    def _attempt(self, invoke: Callable[[_Member, float], _T], end: float, share: float, repeatable: bool) -> _T:
        member = self.current()
        sent = False
        try:
            member.log_in(_within(end, share))
            sent = True
            return invoke(member, _within(end, share))
        except grpc.RpcError as error:
            raise self._outcome(error, member, repeatable=repeatable or not sent) from error

    def _outcome(self, error: Any, member: _Member, *, repeatable: bool) -> Exception:
        """What a failed call means: try another, refused, not done, or unknown."""
        code, details = error.code(), error.details() or ""
        found = f"{member.target}: {details or code}"
        if details.startswith(_BAD_TOKEN):
            member.token = ""  # tokens end with their member's process; a new one is fetched
            return _TryAgain(found)
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED) or details.startswith(
            _REFUSED_USER
        ):
            hint = f"give a user that may read and write /easyscale/: {etcd_access.USER}, {etcd_access.PASSWORD}"
            return AddressError(f"{self.address} refuses us: {details}", hint)
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return ValueError(f"{self.address}: {details}")
        if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
            return _NoLeaseError(found)
        if code in _CERTAINLY_NOT_DONE:
            return UnavailableError(f"{self.address}: {details}")
        self.avoid(member)
        if repeatable or details.startswith(_NEVER_SENT):
            return _TryAgain(found)
        return OutcomeUnknownError(f"{self.address}: a write was sent and not answered: {found}")


class EtcdWatch:
    """See `Watch`. A thread follows one stream and opens it anew, elsewhere, whenever it is lost."""

    def __init__(self, store: EtcdStore, prefixes: tuple[str, ...]) -> None:
        self._store = store
        self._prefixes = prefixes
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="easyscale-etcd-watch", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """See `Watch.wait`."""
        if not self._changed.wait(timeout) or self._closed.is_set():
            return False
        self._changed.clear()
        return True

    def close(self) -> None:
        """See `Watch.close`."""
        self._closed.set()
        self._changed.set()  # whoever waits goes home
        if self._stream is not None:
            self._stream.cancel()
        self._store._watches.discard(self)  # noqa: SLF001 - the watch is a part of its store
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        first, most = _WATCH_PAUSES
        pause = first
        while not self._closed.is_set():
            pause = first if self._follow() else min(2 * pause, most)
            self._closed.wait(pause)

    def _follow(self) -> bool:
        """Follow one stream to its end. Whether it ever worked."""
        worked = False
        ended = threading.Event()
        member = self._store.current()
        try:
            member.log_in(CALL_DEADLINE)
            # A member cut off from its leader would be silent: "hasleader" makes it end the watch instead.
            metadata = [("hasleader", "true"), *member.metadata]
            self._stream = member.watch.Watch(self._requests(ended), metadata=metadata)
            if self._closed.is_set():
                self._stream.cancel()
            for response in self._stream:
                if response.canceled:
                    break
                worked = True
                self._changed.set()  # also for "created": what came before it has not been seen
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel has been closed
            if not self._closed.is_set():
                reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
                _log.info("etcd_watch_lost", endpoint=member.target, error=reason)
                self._store.avoid(member)
        finally:
            ended.set()
            if self._stream is not None:
                self._stream.cancel()
        return worked

    def _requests(self, ended: threading.Event) -> Iterator[Any]:
        for prefix in self._prefixes:
            create = etcdrpc.WatchCreateRequest(key=prefix.encode() or b"\0", range_end=_end_of(prefix))
            yield etcdrpc.WatchRequest(create_request=create)
        ended.wait()  # a stream whose requests have ended is over


def _channel(target: str, tls: etcd_access.Tls | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert), options=_OPTIONS)


def _unanswered(why: str, access: etcd_access.Access) -> str:
    """What to do about a cluster that did not answer when it was opened."""
    if "CERTIFICATE_VERIFY_FAILED" in why or "Hostname Verification" in why:
        return f"name who has signed etcd's certificate ({etcd_access.CA}), and etcd's host as the certificate does"
    if access.tls is not None:
        return (
            "is etcd running there, with TLS, and is a majority of its members? "
            f"does it want a certificate ({etcd_access.CERT}, {etcd_access.KEY})?"
        )
    return "is etcd running there, and is a majority of its members? with TLS: etcds:// (option --kv or EASYSCALE_KV)"


class _NoLeaseError(Exception):
    pass


def _within(end: float, share: float) -> float:
    return max(0.01, min(share, end - time.monotonic()))


def _end_of(prefix: str) -> bytes:
    """The first key after all that start with an ASCII prefix, as etcd's `range_end`."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def _compare(compare: Compare) -> Any:
    equal, key = etcdrpc.Compare.EQUAL, compare.key.encode()
    if compare.field == "create":
        target = etcdrpc.Compare.CREATE
        return etcdrpc.Compare(result=equal, target=target, key=key, create_revision=compare.revision)
    return etcdrpc.Compare(result=equal, target=etcdrpc.Compare.MOD, key=key, mod_revision=compare.revision)


def _operation(operation: Put | Delete) -> Any:
    key = operation.key.encode()
    if isinstance(operation, Put):
        put = etcdrpc.PutRequest(key=key, value=operation.value, lease=operation.lease)
        return etcdrpc.RequestOp(request_put=put)
    end = _end_of(operation.key) if operation.prefix else b""
    delete = etcdrpc.DeleteRangeRequest(key=key or b"\0", range_end=end)
    return etcdrpc.RequestOp(request_delete_range=delete)
