"""The commands that start a job: `run` does everything on this machine, `submit` leaves it to workers elsewhere."""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import structlog
import typer

from ..errors import UserError, shown
from .addresses import open_both, require_own
from .cli_options import Address, Folder, Format, Kv, Lane, LaneName, Output, Store, print_json
from .interrupts import EXIT_CODE, Interrupts
from .laps import Laps
from .local import LocalCluster
from .submit import Handle, How, out_of_reach, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .summary import Summary

log = structlog.get_logger()

Script = Annotated[
    Path, typer.Argument(metavar="SCRIPT", help="Python file that defines an easyscale.Job or Pipeline.")
]
Chosen = Annotated[str | None, typer.Option("--job", help="Which job or pipeline, if the script has several.")]
Name = Annotated[str | None, typer.Option("--name", help="Run it under this name.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value for a setting (of a pipeline: STAGE.KEY)."),
]
Numerics = Annotated[str | None, typer.Option("--numerics", help="native, or exact: the same bits on every device.")]
Accept = Annotated[bool, typer.Option("--accept-changes", help="Go on although code, data or settings have changed.")]

STOPPING = "finishing the step and committing; once more to stop at once"

SAID: dict[How, str] = {
    "created": "is new",
    "found": "is there already: going on with it",
    "resumed": "was paused: going on with it",
    "restarted": "had ended early: trying again from its newest commit",
    "changed": "goes on with the changes from its newest commit",
}


REFUSED_SECONDS = 5.0
"""How long all workers must have refused the job before `run` ends: the others may still be starting."""


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(run)
    app.command()(submit)


def overrides(name: str | None, numerics: str | None, sets: list[str] | None) -> dict[str, str]:
    """Settings given on the command line, as text."""
    given: dict[str, str] = {}
    for item in sets or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--set {shown(item)} is not KEY=VALUE", "for example: --set batch_size=64")
        if key in given and given[key] != value:
            raise UserError(f"--set {key} is given twice, with different values", "give it once")
        given[key] = value
    if name is not None:
        given["name"] = name
    if numerics is not None:
        given["numerics"] = numerics
    return given


def submit(
    script: Script,
    job: Chosen = None,
    name: Name = None,
    numerics: Numerics = None,
    sets: Sets = None,
    accept_changes: Accept = False,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Submit a script's job and return at once; workers elsewhere run it.

    Of a pipeline one stage after another is submitted, as soon as those are done that it builds on.
    """
    from .forkserver import ForkServer
    from .inspect import Outline, inspect_any

    settings = overrides(name, numerics, sets)
    with stopped_in_order(), ForkServer() as fork_server:
        what = inspect_any(script, job, settings, fork_server=fork_server)
        _, records_at, objects_at = open_both(kv, store, folder)
        if isinstance(what, Outline):
            from . import cli_pipelines

            stores = records_at, objects_at
            teller = cli_pipelines.Teller(SAID, quiet=output is Output.json)
            driver = cli_pipelines.begin(
                what, script, settings, stores, fork_server, teller.submitted, accept_changes=accept_changes
            )
            cli_pipelines.submit(driver, teller, output)
            return
        spec, bundle = what
        how = place(records_at, objects_at, spec, bundle, accept_changes=accept_changes)
        lacking = out_of_reach(records_at, spec.name)
    if lacking:
        note = f"note: job {spec.name!r} cannot run on the workers at {records_at.address}: {lacking}"
        hint = "it waits for others: start them, or change what it asks for and submit it again"
        typer.echo(f"{note}\n  {hint}", err=True)
    if output is Output.json:
        print_json({**Handle(spec.name, records_at, how).status().as_dict(), "how": how})
        return
    typer.echo(f"job {spec.name!r} {SAID[how]} ({spec.total_steps} steps, {spec.ests} ESTs)")
    typer.echo(
        f"next: easyscale watch {spec.name} | logs {spec.name} -f | pause {spec.name} | cancel {spec.name}\n"
        "      easyscale worker and easyscale coordinator run it, wherever they are started"
    )


def run(
    script: Script,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=256, help="Worker processes to start.")] = 1,
    device: Annotated[str, typer.Option(help="Device of the workers; `cuda` gives worker i the GPU i.")] = "cpu",
    lane: Lane = LaneName.auto,
    address: Address = None,
    job: Chosen = None,
    name: Name = None,
    numerics: Numerics = None,
    sets: Sets = None,
    accept_changes: Accept = False,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Run a script's job, or pipeline, on this machine to its end. Running it again resumes.

    Ctrl-C once: finish the step, commit, stop. Twice: stop at once.
    """
    from .devices import check_device
    from .forkserver import ForkServer
    from .inspect import Outline, inspect_any

    devices = [check_device(f"cuda:{i}" if device == "cuda" else device) for i in range(workers)]
    settings = overrides(name, numerics, sets)
    if address is not None:
        require_own(address)
    with stopped_in_order() as interrupts, ForkServer() as fork_server:
        laps = Laps()
        what = inspect_any(script, job, settings, fork_server=fork_server)
        laps.end("inspect")
        log.debug("run.inspected", name=what.record.name if isinstance(what, Outline) else what[0].name)
        found, records_at, objects_at = open_both(kv, store, folder)
        laps.end("open")
        if isinstance(what, Outline):
            from . import cli_pipelines

            pipeline, stores = what.record, (records_at, objects_at)
            teller = cli_pipelines.Teller(SAID, quiet=output is Output.json)
            driver = cli_pipelines.begin(
                what, script, settings, stores, fork_server, teller.submitted, accept_changes=accept_changes
            )
            if output is Output.text:
                typer.echo(f"pipeline {pipeline.name!r}: {len(pipeline.stages)} stages, {workers} worker(s)")

            def cluster() -> LocalCluster:
                return LocalCluster(found, devices, pipeline.name, fork_server, lane=lane.value, address=address)

            cli_pipelines.run(driver, cluster, interrupts, teller, STOPPING, output)
            return
        spec, bundle = what
        how = place(records_at, objects_at, spec, bundle, accept_changes=accept_changes)
        laps.end("place")
        log.debug("run.submitted", job=spec.name, how=how, **laps.seconds)
        handle = Handle(spec.name, records_at, how)
        last = handle.status()
        if last.state != "done":
            if output is Output.text:
                size = f"{spec.total_steps} steps, {spec.ests} ESTs, {workers} worker(s)"
                typer.echo(f"job {spec.name!r} {SAID[how]} ({size})")
            last = _follow(
                handle,
                LocalCluster(found, devices, spec.name, fork_server, lane=lane.value, address=address),
                interrupts,
            )
        elif output is Output.text:
            typer.echo(f"job {spec.name!r} is done already")
    _finish(last, output)


@contextmanager
def stopped_in_order() -> Iterator[Interrupts]:
    """Ctrl-C in here ends the command with its exit code and without a traceback."""
    try:
        with Interrupts() as interrupts:
            yield interrupts
    except KeyboardInterrupt:
        typer.echo("\nstopped; run the same command again to go on", err=True)
        raise typer.Exit(EXIT_CODE) from None


def _follow(handle: Handle, cluster: LocalCluster, interrupts: Interrupts) -> Summary:
    """Run workers until the job is over or the user stops it; what it was like at the end."""
    from .progress import ProgressView

    last = handle.status()
    refused = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), interrupts.gracefully(STOPPING), cluster, ProgressView() as view:
        for last in handle.watch(every=0.5):
            view.show(starting(last))
            if last.waits_for != "willing":
                refused = time.monotonic()
            if interrupts.stopping or time.monotonic() - refused > REFUSED_SECONDS:
                break
            cluster.watch_over()
    return handle.status() if interrupts.stopping else last


def starting(job: Summary) -> Summary:
    """The job as `run` shows it.

    Before the first generation nothing is missing: what it waits for is being started here.
    """
    if job.state == "waiting" and job.waits_for in ("", "workers"):
        return msgspec.structs.replace(job, reason="starting workers")
    return job


def _finish(last: Summary, output: Output) -> None:
    """Say how it ended and what to do next; the exit code tells it too."""
    if output is Output.json:
        print_json(last.as_dict())
    elif last.state == "done":
        for name, value in sorted(last.metrics.items()):
            typer.echo(f"{name:<13} {value:.6g}")
        typer.echo(f"{'state digest':<13} {last.state_digest}")
        for kept, why in last.quarantined.items():
            typer.echo(f"{'quarantine':<13} {kept}: {why}")
        typer.echo(f"next: easyscale show {last.job} | easyscale logs {last.job}")
    elif last.state == "failed" or last.waits_for == "willing":
        how = "failed" if last.state == "failed" else "cannot run here"
        typer.echo(f"error: job {last.job!r} {how}: {last.reason}\n{last.traceback}".rstrip(), err=True)
        mend = f"easyscale retry {last.job} lets devices out of quarantine" if last.quarantined else "mend it"
        typer.echo(f"next: easyscale logs {last.job} | {mend}, then run the same command again", err=True)
    elif last.state == "cancelled":
        typer.echo(f"job {last.job!r} was cancelled at step {last.step}", err=True)
    else:
        typer.echo(
            f"job {last.job!r} stopped with commit {last.committed} of {last.steps} steps; "
            "run the same command again to go on",
            err=True,
        )
    if last.state != "done":
        if last.cause == "inexact":
            raise typer.Exit(UserError.exit_code)
        ended = last.state in ("failed", "cancelled") or last.waits_for == "willing"
        raise typer.Exit(1 if ended else EXIT_CODE)
