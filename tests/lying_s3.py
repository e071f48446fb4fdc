"""A small S3 server in this process that lies on demand. Its LIST has never heard of any object: a lag without end."""

from __future__ import annotations

import socket
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from http_server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Callable

    Lie = Callable[["Handler"], None]


class LyingS3(LocalServer):
    """A bucket in memory. `lies` holds, per method, what to do instead of answering honestly, one lie per request."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, bytes] = {}
        self.lies: dict[str, list[Lie]] = {}
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.store_body: Callable[[bytes], bytes] = bytes
        self.ignores_conditions = False
        self.date = ""


class Handler(BaseHTTPRequestHandler):
    """One request: GET, PUT, HEAD, DELETE of objects, LIST, and multipart uploads (one at a time)."""

    protocol_version = "HTTP/1.1"
    server: LyingS3

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query, keep_blank_values=True)
        self.key = unquote(url.path).removeprefix("/bucket").removeprefix("/")
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.key:
            self.answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
            return
        self.server.requests.append(self.command)
        self.server.headers = dict(self.headers)
        lies = self.server.lies.get(self.command)
        (lies.pop(0) if lies else Handler.honest)(self)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815

    def honest(self) -> None:
        getattr(self, f"honest_{self.command.lower()}")()

    def honest_get(self) -> None:
        if self.key in self.server.objects:
            self.answer(200, self.server.objects[self.key])
        else:
            self.refuse(404, "NoSuchKey")

    honest_head = honest_get

    def apply_put(self) -> bool:
        taken = self.key in self.server.objects and not self.server.ignores_conditions
        if self.headers.get("If-None-Match") == "*" and taken:
            return False
        if "partNumber" in self.query:
            self.server.parts[self.query["partNumber"][0].zfill(5)] = self.body
        else:
            self.server.objects[self.key] = self.server.store_body(self.body)
        return True

    def honest_put(self) -> None:
        if self.apply_put():
            self.answer(200)
        else:
            self.refuse(412, "PreconditionFailed")

    def apply_complete(self) -> None:
        self.server.objects[self.key] = b"".join(body for _, body in sorted(self.server.parts.items()))
        self.server.parts.clear()

    def honest_post(self) -> None:
        if "uploads" in self.query:
            self.answer(200, b"<R><UploadId>1</UploadId></R>")
        elif not self.server.parts:
            self.refuse(404, "NoSuchUpload")
        else:
            self.apply_complete()
            self.answer(200, b"<R><ETag>x</ETag></R>")

    def honest_delete(self) -> None:
        if "uploadId" in self.query:
            self.server.parts.clear()
        else:
            self.server.objects.pop(self.key, None)
        self.answer(204)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response_only(status, HTTPStatus(status).phrase)
        for name, value in {"Date": self.server.date or formatdate(usegmt=True), "ETag": '"x"', **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        self.answer(status, b"<Error><Code>%s</Code><Message>no</Message></Error>" % code.encode(), **headers)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def refusing(status: int, code: str, **headers: str) -> Lie:
    return lambda handler: handler.refuse(status, code, **headers)


def apply_and_hang_up(handler: Handler) -> None:
    handler.apply_put()
    handler.hang_up()
