"""What S3 servers do wrong, and what they rightly refuse: a small server that lies on demand, and real refusals."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import botocore.auth
import pytest
from easyscale.errors import AddressError, NotFoundError, OutcomeUnknownError, UnavailableError
from easyscale.storage import s3 as s3_module
from easyscale.storage import s3_errors
from easyscale.storage.objects import open_store
from easyscale.storage.s3 import MULTIPART_ABOVE, S3Store
from easyscale.storage.selftest import require_fit, self_test
from http_server import serving
from lying_s3 import Handler, LyingS3, apply_and_hang_up, refusing
from services import ENVIRONMENT, S3Server, free_ports
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import tzinfo


def set_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[LyingS3]:
    with serving(LyingS3()) as server:
        set_environment(monkeypatch, server.endpoint)
        yield server


@pytest.fixture
def store(liar: LyingS3) -> S3Store:
    return S3Store("bucket", deadline=5)


def test_a_create_whose_answer_was_lost_counts_as_ours(store: S3Store, liar: LyingS3) -> None:
    liar.lies["PUT"] = [apply_and_hang_up]
    assert store.create("marker", b"mine")
    assert liar.requests == ["PUT", "PUT", "GET"]
    assert not store.create("marker", b"mine"), "the same bytes by a later call are somebody else's"
    assert liar.requests == ["PUT", "PUT", "GET", "PUT"]


def test_a_create_that_timed_out_and_finds_other_bytes_has_lost(store: S3Store, liar: LyingS3) -> None:
    def another_wins(handler: Handler) -> None:
        liar.objects["marker"] = b"theirs"
        handler.hang_up()

    liar.lies["PUT"] = [another_wins]
    assert not store.create("marker", b"mine")
    assert liar.objects["marker"] == b"theirs"


def test_a_lost_create_whose_object_is_gone_again_has_an_unknown_outcome(store: S3Store, liar: LyingS3) -> None:
    liar.lies = {"PUT": [apply_and_hang_up], "GET": [refusing(404, "NoSuchKey")]}
    with pytest.raises(OutcomeUnknownError, match="marker"):
        store.create("marker", b"mine")


def test_a_conflict_is_retried_and_is_not_mistaken_for_an_existing_object(store: S3Store, liar: LyingS3) -> None:
    conflict = refusing(409, "ConditionalRequestConflict")
    liar.lies["PUT"] = [conflict, conflict]
    assert store.create("marker", b"mine")
    assert liar.requests == ["PUT"] * 3


def test_the_loser_of_a_conflict_does_not_claim_the_same_bytes_as_its_own(store: S3Store, liar: LyingS3) -> None:
    def another_wins(handler: Handler) -> None:
        liar.objects["marker"] = b"same"
        handler.refuse(409, "ConditionalRequestConflict")

    liar.lies["PUT"] = [another_wins]
    assert not store.create("marker", b"same")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (500, "InternalError"),
        (502, "BadGateway"),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
        (400, "BadDigest"),
    ],
)
def test_a_server_in_trouble_is_asked_again(store: S3Store, liar: LyingS3, status: int, code: str) -> None:
    liar.lies = {method: [refusing(status, code)] for method in ["PUT", "GET", "DELETE"]}
    with capture_logs() as logs:
        store.put("a", b"1")
        assert store.get("a") == b"1"
        store.delete("a")
    assert liar.requests == ["PUT"] * 2 + ["GET"] * 2 + ["DELETE"] * 2
    retries = [entry for entry in logs if entry["event"] == "s3_retry"]
    assert len(retries) == 3
    assert code in retries[0]["reason"]


def test_an_answer_that_is_not_s3_at_all_is_asked_for_again(store: S3Store, liar: LyingS3) -> None:
    liar.lies["GET"] = [lambda handler: handler.answer(503, b"<html>down for <b>repairs</html>")]
    liar.objects["a"] = b"1"
    assert store.get("a") == b"1"


def test_a_body_cut_short_is_read_again(store: S3Store, liar: LyingS3) -> None:
    def cut(handler: Handler) -> None:
        handler.send_response_only(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"x" * 500)
        handler.hang_up()

    liar.objects["a"] = b"y" * 1000
    liar.lies["GET"] = [cut]
    assert store.get("a") == b"y" * 1000


def test_no_success_by_the_deadline_is_said_for_reads_and_left_open_for_writes(liar: LyingS3) -> None:
    store = S3Store("bucket", deadline=0.3)
    liar.lies = {method: [refusing(503, "SlowDown")] * 20 for method in ["PUT", "GET", "HEAD", "DELETE"]}
    with pytest.raises(UnavailableError, match=r"get 'a': no success within 0.3 s: 503 SlowDown") as caught:
        store.get("a")
    assert not isinstance(caught.value, OutcomeUnknownError)
    with pytest.raises(UnavailableError):
        store.exists("a")
    writes: list[Callable[[], Any]] = [
        lambda: store.put("a", b""),
        lambda: store.create("a", b""),
        lambda: store.delete("a"),
    ]
    for write in writes:
        with pytest.raises(OutcomeUnknownError, match=f"http://127.0.0.1:{liar.server_port}"):
            write()


def test_requests_carry_a_checksum_in_a_header_and_never_as_a_trailer(store: S3Store, liar: LyingS3) -> None:
    store.put("a", b"hello")
    assert liar.headers["Content-MD5"] == "XUFAKrxLKna5cZ2REBfFkg=="
    assert liar.objects["a"] == b"hello"
    assert not {"x-amz-trailer", "transfer-encoding"} & {name.lower() for name in liar.headers}


# --- multipart ------------------------------------------------------------------------------------------------------


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An object that goes in three parts."""
    monkeypatch.setattr(s3_module, "MULTIPART_ABOVE", 1000)
    monkeypatch.setattr(s3_module, "PART_SIZE", 500)
    return bytes(range(250)) * 5


def test_what_goes_in_parts_by_default_is_larger_than_a_pack() -> None:
    assert MULTIPART_ABOVE > 64 << 20


def test_a_completion_that_says_200_with_an_error_inside_is_no_success(
    store: S3Store, liar: LyingS3, big: bytes
) -> None:
    liar.lies["POST"] = [Handler.honest, refusing(200, "InternalError"), refusing(200, "InternalError")]
    store.put("big", big)
    assert store.get("big") == big
    assert liar.requests.count("POST") == 4


def test_a_completion_that_never_succeeds_is_given_up_and_its_parts_removed(liar: LyingS3, big: bytes) -> None:
    liar.lies["POST"] = [Handler.honest, *[refusing(200, "InternalError")] * 20]
    with pytest.raises(OutcomeUnknownError, match="complete upload"):
        S3Store("bucket", deadline=0.3).put("big", big)
    assert "big" not in liar.objects
    assert liar.parts == {}


def test_a_completion_reported_as_success_without_an_object_is_found_out(
    store: S3Store, liar: LyingS3, big: bytes
) -> None:
    def lie(handler: Handler) -> None:
        handler.answer(200, b"<R><ETag>x</ETag></R>")

    liar.lies["POST"] = [Handler.honest, lie]
    store.put("big", big)
    assert store.get("big") == big
    liar.objects["big"] = b"shorter, from before"
    liar.lies["POST"] = [Handler.honest, lie] * 3
    with pytest.raises(OutcomeUnknownError, match="no object of 1250 bytes"):
        store.put("big", big)


def test_a_completion_whose_answer_was_lost_is_made_good(store: S3Store, liar: LyingS3, big: bytes) -> None:
    def complete_and_hang_up(handler: Handler) -> None:
        handler.apply_complete()
        handler.hang_up()

    liar.lies["POST"] = [Handler.honest, complete_and_hang_up]
    store.put("big", big)
    assert store.get("big") == big


def test_parts_are_on_their_way_at_the_same_time(store: S3Store, liar: LyingS3, big: bytes) -> None:
    together = threading.Barrier(3)

    def wait_for_the_others(handler: Handler) -> None:
        together.wait(timeout=30)  # it breaks, and the part fails, if they come one by one
        handler.honest()

    liar.lies["PUT"] = [wait_for_the_others] * 3
    store.put("big", big)
    assert store.get("big") == big
    assert liar.requests.count("PUT") == 3


def test_a_part_that_is_refused_ends_the_upload_and_removes_the_other_parts(
    store: S3Store, liar: LyingS3, big: bytes
) -> None:
    liar.lies["PUT"] = [refusing(403, "AccessDenied")]
    with pytest.raises(AddressError, match="upload part"):
        store.put("big", big)
    assert "big" not in liar.objects
    assert liar.parts == {}


def test_an_upload_that_the_server_has_forgotten_is_begun_again(store: S3Store, liar: LyingS3, big: bytes) -> None:
    liar.lies["PUT"] = [Handler.honest, refusing(404, "NoSuchUpload")]
    store.put("big", big)
    assert store.get("big") == big


# --- unfit servers --------------------------------------------------------------------------------------------------


def test_a_server_that_ignores_conditions_is_unfit(store: S3Store, liar: LyingS3) -> None:
    liar.ignores_conditions = True
    with pytest.raises(AddressError, match="two workers would both own one commit") as caught:
        require_fit(store)
    assert "If-None-Match" in caught.value.hint
    assert liar.objects == {}


def test_a_server_that_stores_checksum_trailers_in_the_object_is_unfit(store: S3Store, liar: LyingS3) -> None:
    liar.store_body = lambda body: body + b"\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    with pytest.raises(AddressError, match=r"round trip: .* changed"):
        require_fit(store)
    assert liar.objects == {}


def test_a_server_that_lacks_conditional_writes_says_so(store: S3Store, liar: LyingS3) -> None:
    liar.lies["PUT"] = [refusing(501, "NotImplemented")]
    with pytest.raises(AddressError, match="lacks a part of S3"):
        require_fit(store)


def test_the_self_test_makes_five_requests_and_a_missing_checksum_check_is_a_warning(
    store: S3Store, liar: LyingS3
) -> None:
    with capture_logs() as logs:
        require_fit(store)
    assert liar.requests == ["PUT", "PUT", "GET", "PUT", "DELETE"]
    assert [(entry["log_level"], entry["check"]) for entry in logs] == [("warning", "checksums")]


@pytest.mark.parametrize(
    ("server", "checks"), [("moto_s3", False), pytest.param("seaweedfs", True, marks=pytest.mark.seaweedfs)]
)
def test_the_self_test_tells_who_looks_at_checksums(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str, checks: bool
) -> None:
    running: S3Server = request.getfixturevalue(server)
    set_environment(monkeypatch, running.endpoint)
    findings = self_test(S3Store(running.new_bucket()))
    assert {finding.check: finding.ok for finding in findings} == {
        "conditional create": True,
        "round trip": True,
        "checksums": checks,
    }


def test_a_server_that_lets_us_remove_nothing_is_not_unfit_and_it_is_logged(store: S3Store, liar: LyingS3) -> None:
    liar.lies["DELETE"] = [refusing(403, "AccessDenied")]
    with capture_logs() as logs:
        require_fit(store)
    left = [entry for entry in logs if entry["event"] == "selftest.left"]
    assert [entry["key"] for entry in left] == list(liar.objects)
    assert "AccessDenied" in left[0]["error"]


# --- refusals: what, where, what to do ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (404, "NoSuchBucket", "create the bucket"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (403, "AccessDenied", "s3:PutObject"),
        (400, "ExpiredToken", "renew"),
        (400, "SomethingNew", "refuses the request"),
    ],
)
def test_a_refusal_is_not_retried_and_says_what_to_do(
    store: S3Store, liar: LyingS3, status: int, code: str, hint: str
) -> None:
    liar.lies = {"GET": [refusing(status, code)], "PUT": [refusing(status, code)]}
    with pytest.raises(AddressError, match=f"s3://bucket at http.*: get 'a': {status} {code}: no") as caught:
        store.get("a")
    assert hint in caught.value.hint
    with pytest.raises(AddressError, match=code):
        store.create("a", b"")
    assert liar.requests == ["GET", "PUT"]


def test_a_wrong_clock_is_named_with_its_error(store: S3Store, liar: LyingS3) -> None:
    an_hour_on = formatdate(time.time() + 3600, usegmt=True)
    liar.lies["GET"] = [refusing(403, "RequestTimeTooSkewed", Date=an_hour_on)]
    with pytest.raises(AddressError, match=r"clock \(.* UTC\) is 60 minutes behind the server's \(.* UTC\)") as caught:
        store.get("a")
    assert "NTP" in caught.value.hint


@pytest.mark.parametrize(("hours", "said"), [(-3, "is 180 minutes ahead of"), (2, "is 120 minutes behind"), (0, None)])
def test_a_clock_that_is_far_off_and_not_refused_is_said_once_at_opening(
    liar: LyingS3, hours: int, said: str | None
) -> None:
    liar.date = formatdate(time.time() + 3600 * hours, usegmt=True)
    with capture_logs() as logs:
        store = S3Store("bucket")
        store.put("a", b"")
    assert [entry["event"] for entry in logs] == (["s3_clock_skew"] if said else [])
    assert said is None or said in logs[0]["found"]
    assert abs(store.clock_skew() + 3600 * hours) < 60


def test_a_missing_object_is_not_a_refusal(store: S3Store) -> None:
    with pytest.raises(NotFoundError, match="get 'a'"):
        store.get("a")
    assert not store.exists("a")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


def test_an_endpoint_where_nobody_listens_is_reported_at_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, f"http://127.0.0.1:{free_ports(1)[0]}")
    with within(12), pytest.raises(AddressError, match="Could not connect") as caught:
        open_store("s3://bucket/prefix")
    assert "AWS_ENDPOINT_URL" in caught.value.hint


def test_an_endpoint_that_never_answers_is_reported_at_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        set_environment(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}")
        with within(12), pytest.raises(AddressError, match="Read timeout"):
            open_store("s3://bucket/prefix")


def test_absent_credentials_are_reported_at_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AddressError, match="Unable to locate credentials") as caught:
        open_store("s3://bucket")
    assert "AWS_PROFILE" in caught.value.hint


@pytest.mark.parametrize("address", ["s3://", "s3:///prefix", "s3://bucket/a prefix", "s3://bucket/../x", "s3://B u"])
def test_an_address_that_cannot_be_right_is_refused(liar: LyingS3, address: str) -> None:
    with pytest.raises(AddressError, match="s3://"):
        open_store(address)


def test_an_endpoint_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "localhost:9000")
    with pytest.raises(AddressError, match="localhost:9000"):
        open_store("s3://bucket")


def test_a_profile_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(AddressError, match="no-such-profile"):
        open_store("s3://bucket")


@pytest.mark.seaweedfs
@pytest.mark.parametrize(
    ("variable", "hint"), [("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"), ("AWS_SECRET_ACCESS_KEY", "does not belong")]
)
def test_a_real_server_that_refuses_our_credentials_is_understood(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, variable: str, hint: str
) -> None:
    set_environment(monkeypatch, seaweedfs.endpoint)
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(AddressError, match="s3://ready at http") as caught:
        open_store("s3://ready")
    assert hint in caught.value.hint


@pytest.mark.seaweedfs
def test_a_real_server_without_the_bucket_is_understood(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, seaweedfs.endpoint)
    with pytest.raises(AddressError, match="NoSuchBucket"):
        open_store("s3://no-such-bucket/prefix")


@pytest.mark.seaweedfs
@pytest.mark.parametrize(("hours", "side"), [(-2, "behind"), (3, "ahead of")])
def test_a_real_server_refuses_a_wrong_clock_and_the_error_names_both_clocks(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, hours: int, side: str
) -> None:
    set_environment(monkeypatch, seaweedfs.endpoint)
    wrong = datetime.now(UTC) + timedelta(hours=hours)

    class WrongClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return wrong.astimezone(tz)

    monkeypatch.setattr(s3_errors, "datetime", WrongClock)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: wrong.replace(tzinfo=None))
    with pytest.raises(AddressError, match=f"{60 * abs(hours)} minutes {side} the server's") as caught:
        open_store("s3://ready")
    (line,) = caught.value.what.splitlines()
    assert f"this machine's clock ({wrong:%Y-%m-%d %H:%M}" in line
    assert f"the server's ({datetime.now(UTC):%Y-%m-%d %H:}" in line
    assert "RequestTimeTooSkewed" in line
    assert "NTP" in caught.value.hint
