"""A proxy in front of an S3 server, in this process, that is in trouble on demand: 500, 503, and answers that get lost.

A request passes unchanged, its `Host` header too, so signatures hold. Out of trouble it only adds a millisecond.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from http_server import LocalServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
ERRORS = {500: "InternalError", 503: "SlowDown"}


class FaultyProxy(LocalServer):
    """Listens on a free port of 127.0.0.1.

    Args:
        target: URL of the server behind.
        seed: decides which requests are unlucky.
    """

    def __init__(self, target: str, seed: int) -> None:
        super().__init__(_Handler)
        self.target = urlsplit(target).netloc
        self.chance = random.Random(seed)
        self.trouble = 0.0
        self.told: dict[str, int] = {}
        self._lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed has nothing to be told."""

    def fate(self) -> str:
        """What becomes of a request: `ok`, `500`, `503`, or `lost` (applied, and the answer is lost)."""
        with self._lock:
            fate = self.chance.choice(["500", "503", "lost"]) if self.chance.random() < self.trouble else "ok"
            if fate != "ok":
                self.told[fate] = self.told.get(fate, 0) + 1
            return fate


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fate = self.server.fate()
        if fate in ("500", "503"):
            self._answer(int(fate), {}, b"<Error><Code>%s</Code></Error>" % ERRORS[int(fate)].encode())
            return
        try:
            status, headers, content = self._pass_on(body)
        except (OSError, http.client.HTTPException):
            fate = "lost"  # the server is away
        if fate == "lost":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(status, headers, content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=10)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
            if self.command == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""
