"""The commands about exact numerics: `build` makes their kernels, `scan` says whether they can run a job."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import Format, Output, print_json
from .cli_run import Chosen, Script, Sets, overrides, stopped_in_order

if TYPE_CHECKING:
    from .scan import Row

PLACES = 3
"""Places of an operator that are shown in the table."""


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(build)
    app.command()(scan)


def build(
    arch: Annotated[
        list[str] | None,
        typer.Option(help="Also for GPUs of this architecture (sm_90), or of `all`. May be repeated."),
    ] = None,
    output: Format = Output.text,
) -> None:
    """Compile the kernels of exact numerics, which would otherwise be done when the first job needs them.

    Kernels for GPUs are compiled, too: for those of this machine, or for architectures that are named.
    """
    from .numerics import build as builder
    from .numerics import cuda

    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        typer.echo(text, err=True)

    with stopped_in_order():
        began = time.monotonic()
        archs = cuda.chosen(arch) if arch else cuda.present()
        path = builder.library(say, cuda=True if archs else None)
        cubins = cuda.cubins(cuda.kernels_in(path), archs, say) if archs else []
    seconds = time.monotonic() - began
    if output is Output.json:
        done = {"library": str(path), "compiler": builder.compiler(), "compiled": len(said), "seconds": seconds}
        print_json(done | {"cubins": [{"file": one.file, "arch": one.arch, "path": str(one.path)} for one in cubins]})
        return
    how = f"built in {seconds:.1f} s with {builder.compiler()}" if said else "is there already"
    typer.echo(f"{path} {how}, for {', '.join(builder.isas())}")
    if cubins:
        typer.echo(f"{cuda.folder()} has machine code for {', '.join(archs)}")
    typer.echo("next: easyscale scan SCRIPT | easyscale run SCRIPT --numerics exact")


def scan(
    script: Script,
    job: Chosen = None,
    sets: Sets = None,
    everything: Annotated[bool, typer.Option("--all", help="Also operators of our own bookkeeping.")] = False,
    output: Format = Output.text,
) -> None:
    """Trace one step of a script's job: can exact numerics run it? Exit code 0 if so, else 1."""
    from .scan import scan_script

    with stopped_in_order():
        rows = scan_script(script, job, overrides(None, None, sets))
    covered = all(row.covered for row in rows)
    if output is Output.json:
        print_json({"covered": covered, "operators": [_plain(row) for row in rows]})
    else:
        _show([row for row in rows if everything or row.part != "engine" or not row.covered])
        lacking = sorted({row.operator for row in rows if not row.covered})
        if covered:
            typer.echo(f"exact numerics cover all {len({row.operator for row in rows})} operators")
            typer.echo(f"next: easyscale run {script} --numerics exact")
        else:
            typer.echo(f"exact numerics do not cover: {', '.join(lacking)}", err=True)
            typer.echo('next: use others there, or run the job with numerics="native"', err=True)
    if not covered:
        raise typer.Exit(1)


def _plain(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width of its own: then nothing is cut.
    console = Console(highlight=False, width=None if os.isatty(1) else 200)
    table = Table(box=None, pad_edge=False)
    for title in ("class", "operator", "part", "calls", "where"):
        table.add_column(title, justify="right" if title == "calls" else "left", overflow="fold")
    for row in rows:
        more = f" and {len(row.places) - PLACES} more" if len(row.places) > PLACES else ""
        where = "; ".join(row.places[:PLACES]) + more
        table.add_row(row.kind, row.operator.removeprefix("aten::"), row.part, str(row.calls), where)
    console.print(table)
