"""A clock that S3 does not accept: whoever is refused is told which clock is wrong, and by how much."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from services import ENVIRONMENT
from user import TRAINING, User, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFUSAL = b"""<?xml version="1.0" encoding="UTF-8"?><Error><Code>RequestTimeTooSkewed</Code>
<Message>The difference between the request time and the current time is too large.</Message></Error>"""
LISTING = b"""<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name><Prefix></Prefix>
<KeyCount>0</KeyCount><MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"""


class Skewed(BaseHTTPRequestHandler):
    """An S3 whose clock differs from ours by `ahead`, and which refuses us for it or not."""

    ahead = timedelta(0)
    refuses = True

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = REFUSAL if self.refuses else LISTING
        self.send_response(403 if self.refuses else 200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815 - names of the base class

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def skewed() -> Iterator[tuple[type[Skewed], str]]:
    """The server's behaviour, to be set, and where it listens."""

    class Behaviour(Skewed):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Behaviour)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Behaviour, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def user_of(folder: Path, endpoint: str) -> User:
    return User(folder, **{**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "EASYSCALE_STORE": "s3://bucket/prefix"})


def test_a_submit_that_s3_refuses_for_its_clock_names_the_clock_and_leaves_nothing(
    tmp_path: Path, skewed: tuple[type[Skewed], str]
) -> None:
    behaviour, endpoint = skewed
    behaviour.ahead = timedelta(hours=1)
    user = user_of(tmp_path, endpoint)
    user.write(TRAINING)
    refused(
        user.run("submit", "train.py"),
        f"s3://bucket/prefix at {endpoint}",
        "RequestTimeTooSkewed",
        "this machine's clock (",
        "is 60 minutes behind the server's (",
        "set this machine's clock",
    )
    assert user.left() == {}


def test_the_doctor_names_the_clock_whether_s3_refuses_it_or_not_yet(
    tmp_path: Path, skewed: tuple[type[Skewed], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from easyscale.pipeline.doctor import examine

    behaviour, endpoint = skewed
    behaviour.ahead = timedelta(hours=1)
    for name, value in user_of(tmp_path, endpoint).env.items():
        if name.startswith(("AWS_", "EASYSCALE_")):
            monkeypatch.setenv(name, value)
    (store,) = [found for found in examine(None, None, str(tmp_path / "a")) if found.what == "object store"]
    assert store.fatal
    assert "is 60 minutes behind the server's (" in store.detail
    assert "set this machine's clock" in store.hint
    behaviour.ahead = timedelta(hours=-2)
    (store,) = [found for found in examine(None, None, str(tmp_path / "a")) if found.what == "object store"]
    assert "is 120 minutes ahead of the server's (" in store.detail
    behaviour.ahead, behaviour.refuses = timedelta(minutes=10), False
    clocks = [found for found in examine(None, None, str(tmp_path / "a")) if found.what == "clocks"]
    assert [found.ok for found in clocks] == [False], "before S3 refuses it at 15 minutes"
    assert re.search(r"clock is -(600|59\d) s from that of s3://bucket/prefix", clocks[0].detail)
