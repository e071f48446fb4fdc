"""Options that several commands share, and how their output is chosen."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import settings as places
from ..coordinator.kv import open_kv
from ..errors import UserError
from ..storage.objects import open_store

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..settings import Settings
    from ..storage.objects import ObjectStore


class Output(enum.StrEnum):
    """How a command prints what it found."""

    text = "text"
    json = "json"


Kv = Annotated[
    str | None, typer.Option("--kv", help="Key-value store: etcd://host:2379 or file:///path. [EASYSCALE_KV]")
]
Store = Annotated[
    str | None, typer.Option("--store", help="Object store: s3://bucket/prefix or file:///path. [EASYSCALE_STORE]")
]
Folder = Annotated[
    str | None, typer.Option("--folder", help="Local folder for caches and logs. [EASYSCALE_FOLDER; .easyscale]")
]
Format = Annotated[Output, typer.Option("-o", "--output", help="text or json.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]


def open_both(kv: str | None, store: str | None, folder: str | None) -> tuple[Settings, KeyValueStore, ObjectStore]:
    """Find and open the stores; the local folder is made if one of them lies there."""
    found = places.resolve(kv, store, folder)
    found.make_folder()
    return found, open_kv(found.kv), open_store(found.store)


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
    return found, open_kv(found.kv)


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))
