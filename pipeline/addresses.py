"""Opening the two stores by what options, environment and settings files say, without leaving anything half made."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .. import settings as places
from ..coordinator.kv import open_kv
from ..errors import AddressError, EasyScaleError, UserError, shown
from ..storage.files import TEMPORARY
from ..storage.objects import open_store

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..settings import Settings
    from ..storage.objects import ObjectStore


def open_both(
    kv: str | None, store: str | None, folder: str | None = None
) -> tuple[Settings, KeyValueStore, ObjectStore]:
    """Find and open the stores; the local folder is made if one of them lies there.

    Raises:
        UserError: settings, or an address, that cannot be used. Then nothing has been made that was not there before.
    """
    found = _resolved(kv, store, folder)
    root = _folder_of(found.store)
    fresh = _missing(root)
    # What is most likely to fail comes first, what makes something comes last.
    kv_at = None if _folder_of(found.kv) else open_kv(found.kv)
    store_at = open_store(found.store) if root is None else None
    try:
        if root is not None and not root.is_relative_to(found.folder):
            store_at = open_store(found.store)
        if kv_at is None and not _path_of(found.kv).is_relative_to(found.folder):
            kv_at = open_kv(found.kv)
        found.make_folder()
        return found, kv_at or open_kv(found.kv), store_at or open_store(found.store)
    except EasyScaleError:
        _remove_empty([root / TEMPORARY, *fresh] if root else [])
        raise


def _resolved(kv: str | None, store: str | None, folder: str | None) -> Settings:
    found = places.resolve(kv, store, folder)
    for address in (found.kv, found.store):
        if address.startswith("memory:"):
            raise AddressError(
                f"address {shown(address)}: what is kept in memory is gone when this process ends",
                "use file:///path on one machine; etcd://host:2379 and s3://bucket/prefix for several",
            )
    return found


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port` or `[host]:port`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def own_host(kv: str) -> str:
    """Where others reach this machine: the interface that leads to the key-value store.

    With a store in a file, nobody else can have it. Of several members of etcd the first one is looked at.
    """
    first = urlsplit(kv).netloc.partition(",")[0]
    if not first:
        return "127.0.0.1"
    host = urlsplit(f"//{first}").hostname
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]  # any port: nothing is sent
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def require_own(host: str) -> None:
    """Refuse an address that this machine does not have, or that stands for all it has.

    Raises:
        UserError: nothing can listen there, or nobody elsewhere would get here by it.
    """
    hint = "name one of its network interfaces, by name or number, as other workers reach it"
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--address {shown(host)} is no address of this machine: {error}", hint) from error
    if ip_address(str(place[0]).partition("%")[0]).is_unspecified:
        raise UserError(f"--address {shown(host)} stands for all addresses of this machine", hint)


def _path_of(address: str) -> Path:
    return Path(unquote(urlsplit(address).path))


def _folder_of(address: str) -> Path | None:
    return _path_of(address) if address.startswith("file:") else None


def _missing(folder: Path | None) -> list[Path]:
    """This folder and those above that do not exist, the innermost first."""
    return [path for path in (folder, *folder.parents) if not places.is_there(path)] if folder else []


def _remove_empty(folders: list[Path]) -> None:
    """Remove what we have just made. If somebody else has put something there meanwhile, it stays."""
    for folder in folders if len(folders) > 1 else []:
        with suppress(OSError):
            folder.rmdir()


def open_existing(kv: str | None, folder: str | None = None) -> tuple[Settings, KeyValueStore]:
    """Open the key-value store to look at what is there. Raises as `require_existing`."""
    found = require_existing(kv, folder)
    return found, open_kv(found.kv)


def require_existing(kv: str | None, folder: str | None = None) -> Settings:
    """Refuse a key-value store that would only be made.

    Raises:
        UserError: the default store is not there: nothing was ever run here.
    """
    found = _resolved(kv, None, folder)
    default = found.folder / "kv.sqlite"
    if found.kv == places.file_address(default) and not places.is_there(default):
        raise UserError(
            f"there are no jobs: {found.folder} does not exist",
            "change to the folder where you ran them, or name the key-value store with --kv or EASYSCALE_KV",
        )
    if found.kv.startswith("file:") and not places.is_there(_path_of(found.kv)):
        raise UserError(
            f"there is no key-value store at {found.kv}", "name the one that the jobs were submitted to (--kv)"
        )
    return found
