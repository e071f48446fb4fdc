"""Opening the two stores by what options, environment and settings files say, without leaving anything half made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .. import settings as places
from ..coordinator.kv import open_kv
from ..errors import UserError
from ..storage.objects import open_store

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..settings import Settings
    from ..storage.objects import ObjectStore


def open_both(
    kv: str | None, store: str | None, folder: str | None = None
) -> tuple[Settings, KeyValueStore, ObjectStore]:
    """Find and open the stores; the local folder is made if one of them lies there."""
    found = places.resolve(kv, store, folder)
    # Those elsewhere first: if one of them cannot be used, nothing has been made here.
    kv_at = None if found.kv.startswith("file:") else open_kv(found.kv)
    store_at = None if found.store.startswith("file:") else open_store(found.store)
    found.make_folder()
    return found, kv_at or open_kv(found.kv), store_at or open_store(found.store)


def open_existing(kv: str | None, folder: str | None = None) -> tuple[Settings, KeyValueStore]:
    """Open the key-value store to look at what is there.

    Raises:
        UserError: the default store is not there: nothing was ever run here.
    """
    found = places.resolve(kv, None, folder)
    if found.kv == places.file_address(found.folder / "kv.sqlite") and not (found.folder / "kv.sqlite").exists():
        raise UserError(
            f"there are no jobs: {found.folder} does not exist",
            "change to the folder where you ran them, or name the key-value store with --kv or EASYSCALE_KV",
        )
    if found.kv.startswith("file:") and not Path(unquote(urlsplit(found.kv).path)).exists():
        raise UserError(
            f"there is no key-value store at {found.kv}", "name the one that the jobs were submitted to (--kv)"
        )
    return found, open_kv(found.kv)
