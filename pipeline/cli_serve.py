"""The commands that show what happened to others than the terminal: `serve` and `scalars`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated

import typer

from .addresses import open_both, require_existing
from .cli_options import Folder, Format, JobName, Kv, Output, Store, print_json
from .summary import no_such_job, read_job


class Files(StrEnum):
    """What scalars are written as."""

    csv = "csv"
    tensorboard = "tensorboard"


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(serve)
    app.command()(scalars)


def serve(
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8765,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Lets whoever has the token in it steer and fork jobs. [EASYSCALE_TOKEN_FILE]"
        ),
    ] = None,
) -> None:
    """Show jobs and workers in a browser, and to programs and Prometheus, until told to stop. Read-only by itself."""
    from .serve import run

    token = run.token(token_file)
    require_existing(kv, folder)
    listening = run.listen(host, port)
    found, records_at, objects_at = open_both(kv, store, folder)
    run.serve(found, records_at, objects_at, listening, token)
    records_at.close()


def scalars(
    job: JobName,
    to: Annotated[Path, typer.Option(metavar="PATH", help="A file for csv, a folder for tensorboard.")],
    form: Annotated[Files, typer.Option("--format", help="csv, or tensorboard (if that is installed).")] = Files.csv,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Write loss, learning rate and metrics of all committed steps to a file."""
    from . import scalars as writing

    require_existing(kv, folder)
    _, records_at, objects_at = open_both(kv, store, folder)
    view = read_job(records_at, job)
    if view is None:
        raise no_such_job(records_at, job)
    write = writing.write_csv if form is Files.csv else writing.write_tensorboard
    count = write(objects_at, view, to)
    records_at.close()
    if output is Output.json:
        print_json({"job": job, "format": form.value, "to": str(to), "steps": count})
        return
    typer.echo(f"{count} steps of job {job!r} written to {to}")
