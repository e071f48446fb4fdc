"""Where etcd is and how one gets in: the address, and what does not belong into addresses, from the environment.

An address is shown in logs and process lists, so a password, and the files of TLS, may be given by variables instead.
All that can be wrong with them is found here, before anything is sent.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import AddressError

if TYPE_CHECKING:
    from collections.abc import Mapping

USER, PASSWORD = "EASYSCALE_ETCD_USER", "EASYSCALE_ETCD_PASSWORD"
CA, CERT, KEY = "EASYSCALE_ETCD_CA", "EASYSCALE_ETCD_CERT", "EASYSCALE_ETCD_KEY"
"""Variables. The last three name PEM files: who has signed etcd's certificate, our own certificate, its key."""

_HOW = "use etcd://host:2379 or etcd://user:password@host1:2379,host2:2379; percent-encode special characters"


@dataclass(frozen=True, slots=True)
class Tls:
    """The contents of PEM files.

    Args:
        ca: whom to trust; None: whom gRPC trusts, which are the well-known authorities.
        cert, key: who we are; None: nobody asks.
    """

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Access:
    """An address, taken apart.

    Args:
        targets: `host:port` of each member, IPv6 in brackets.
        user, password: "" if etcd knows no users.
        tls: None: in plain text.
    """

    targets: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None

    @property
    def address(self) -> str:
        """The address without secrets."""
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(self.targets)}"


def parse(address: str, environ: Mapping[str, str] = os.environ) -> Access:
    """Take an address apart, and read what the environment adds to it.

    Args:
        address: `etcd://[user:password@]host[:port][,host[:port]...]`, or `etcds://` and so on for TLS; special
            characters of user and password are percent-encoded.
        environ: may hold `USER` and `PASSWORD`, which count where the address has none, and `CA`, `CERT` and `KEY`
            for TLS.

    Raises:
        AddressError: the address or a file cannot be read, or they do not fit together.
    """
    parts = urlsplit(address)
    secret, _, hosts = parts.netloc.rpartition("@")
    shown = f"{parts.scheme}://{hosts}"
    targets = _targets(shown, hosts)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise AddressError(f"key-value store address {shown!r} is not host:port[,host:port...]", _HOW)
    user, _, password = secret.partition(":")
    user, password = unquote(user), unquote(password)
    if not user:
        user, password = environ.get(USER, ""), environ.get(PASSWORD, "")
        if bool(user) != bool(password):
            missing, there = (PASSWORD, USER) if user else (USER, PASSWORD)
            raise AddressError(f"{there} is set and {missing} is not", "set both of them, or neither")
    return Access(targets, user, password, _tls(parts.scheme == "etcds", environ))


def _targets(shown: str, hosts: str) -> tuple[str, ...]:
    if not hosts:
        raise AddressError(f"key-value store address {shown!r} is not host:port[,host:port...]", _HOW)
    targets = []
    for host in hosts.split(","):
        try:
            one = urlsplit(f"etcd://{host}")
            name, port = one.hostname, one.port or 2379
        except ValueError as error:
            raise AddressError(f"key-value store address {shown!r}: endpoint {host!r}: {error}", _HOW) from None
        if not name:
            raise AddressError(f"key-value store address {shown!r}: endpoint {host!r} has no host", _HOW)
        targets.append(f"[{name}]:{port}" if ":" in name else f"{name}:{port}")
    return tuple(targets)


def _tls(wanted: bool, environ: Mapping[str, str]) -> Tls | None:
    paths = {name: Path(environ[name]) for name in (CA, CERT, KEY) if environ.get(name)}
    if not wanted:
        if paths:  # somebody believes that the connection is encrypted
            raise AddressError(
                f"{' and '.join(paths)} is for TLS, which the address etcd:// does not use", "write etcds://host:2379"
            )
        return None
    if (CERT in paths) != (KEY in paths):
        missing, there = (KEY, CERT) if CERT in paths else (CERT, KEY)
        raise AddressError(f"{there} is set and {missing} is not", "a certificate and its key belong together")
    content = {name: _read(name, path) for name, path in paths.items()}
    context = ssl.create_default_context()  # gRPC would say no more than that something is wrong
    if CA in paths:
        try:
            context.load_verify_locations(cafile=paths[CA])
        except ssl.SSLError:
            raise AddressError(f"{CA}: there is no certificate in {paths[CA]}", "name a file in PEM format") from None
    if CERT in paths:
        try:
            # A password would be asked for on the terminal; gRPC cannot be given one.
            context.load_cert_chain(paths[CERT], paths[KEY], password=lambda: "")
        except (ssl.SSLError, ValueError):
            raise AddressError(
                f"{CERT} and {KEY}: {paths[CERT]} and {paths[KEY]} are no certificate and its key",
                "name two files in PEM format that belong together, the key without a password",
            ) from None
    return Tls(content.get(CA), content.get(CERT), content.get(KEY))


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AddressError(f"{name}: {path} cannot be read: {error.strerror}", "name a file in PEM format") from error
