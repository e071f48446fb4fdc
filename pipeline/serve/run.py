"""Starts the web server, and ends it in order: what is listened on, which token counts, what is warned of."""

from __future__ import annotations

import gc
import os
import signal
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn

from ...errors import UserError, shown
from ...storage.cache import CachedBlobs
from .app import Served
from .archive import Archive
from .picture import Picture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...coordinator.kv import KeyValueStore
    from ...settings import Settings
    from ...storage.objects import ObjectStore

log = structlog.get_logger()

TOKEN_FILE = "EASYSCALE_TOKEN_FILE"  # noqa: S105 - a name
"""Names the file where no option does."""

SHORTEST_TOKEN, LONGEST_TOKEN = 16, 4096
"""Characters."""

LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]", "::1"]


def token(file: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The token in a file that the option or the environment names, without the space around it; None: none is named.

    It is in a file, since options and environments are seen by others and land in logs.

    Raises:
        UserError: the file cannot be read, or what is in it is no token that keeps anybody out.
    """
    name, path = ("--token-file", file) if file is not None else (TOKEN_FILE, environ.get(TOKEN_FILE, ""))
    if file is None and not path:
        return None
    hint = f"put {SHORTEST_TOKEN} or more letters and digits into it: (umask 077; openssl rand -hex 32 > FILE)"
    try:
        with Path(path).open(encoding="ascii") as opened:
            found = opened.read(LONGEST_TOKEN + 1).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds something else than ASCII"
        raise UserError(f"{name} {shown(path)} cannot be used: {reason}", hint) from error
    if not SHORTEST_TOKEN <= len(found) <= LONGEST_TOKEN or not found.isprintable() or " " in found:
        raise UserError(f"{name} {shown(path)} holds no token: it is empty, short, or of several words", hint)
    return found


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        UserError: it cannot.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen on {shown(host)}, port {port}: {reason}",
            "name an address of this machine (--host) and a port that is free (--port; 0 finds one)",
        ) from error
    return listening


def is_loopback(listening: socket.socket) -> bool:
    """Whether only processes of this machine reach it."""
    return ip_address(str(listening.getsockname()[0]).partition("%")[0]).is_loopback


def serve(
    settings: Settings, kv: KeyValueStore, store: ObjectStore, listening: socket.socket, token: str | None
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    local = is_loopback(listening)
    host, port = listening.getsockname()[:2]
    if not local:
        who = "everybody who reaches this address sees all jobs"
        more = ", and the token travels as it is" if token else ", and no token was given: nobody can steer them here"
        log.warning("serve.open_to_others", host=host, what=who + more, hint="put a proxy with TLS and login before it")
    remote = settings.store.startswith("s3:")
    archive = Archive(CachedBlobs(store, settings.folder / "blobs") if remote else store)
    served = Served(kv, Picture(kv), archive, store, token=token, hosts=LOOPBACK_NAMES if local else None).application()
    server = uvicorn.Server(
        uvicorn.Config(
            served, log_config=None, access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=2
        )
    )

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn hands its signals on to these when it is done
        signal.signal(number, stop)
    url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    # Each picture is thousands of objects, so garbage is collected in the middle of answers. What was imported is never
    # garbage, and much more than a picture: to look through it took half of the slowest answers' time.
    gc.collect()
    gc.freeze()
    log.info("serve.listening", url=url, steering=token is not None)
    try:
        server.run(sockets=[listening])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # a second one ends it at once
            signal.signal(number, signal.SIG_DFL)
        archive.close()
