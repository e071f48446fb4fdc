"""Options that several commands share, and how their output is chosen."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


class LaneName(enum.StrEnum):
    """How a worker exchanges partials with others."""

    auto = "auto"
    peer = "peer"
    store = "store"


class Output(enum.StrEnum):
    """How a command prints what it found."""

    text = "text"
    json = "json"


Kv = Annotated[
    str | None, typer.Option("--kv", help="Key-value store: etcd[s]://host:2379 or file:///path. [EASYSCALE_KV]")
]
Store = Annotated[
    str | None, typer.Option("--store", help="Object store: s3://bucket/prefix or file:///path. [EASYSCALE_STORE]")
]
Folder = Annotated[
    str | None, typer.Option("--folder", help="Local folder for caches and logs. [EASYSCALE_FOLDER; .easyscale]")
]
Lane = Annotated[
    LaneName,
    typer.Option(
        help="How workers exchange: directly (peer), by the object store, or directly wherever they can (auto)."
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST", help="Where other workers reach this machine; found out by default.")
]
Alive = Annotated[Path | None, typer.Option(help="Touch this file about once a second, for probes.")]
Format = Annotated[Output, typer.Option("-o", "--output", help="text or json.")]


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs, for the shell's completion: which must not fail, nor make anything, whatever is there."""
    from ..coordinator import keys
    from ..errors import EasyScaleError
    from .addresses import open_existing

    try:
        _, kv = open_existing(context.params.get("kv"), context.params.get("folder"))
        names = {found.key.removeprefix(keys.JOBS).partition("/")[0] for found in kv.range(keys.JOBS)}
    except (EasyScaleError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=_names)]


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output, in ASCII where the terminal's encoding knows no more."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    typer.echo(json.dumps(value, ensure_ascii=not unicode))
