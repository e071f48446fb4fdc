"""What `run`, `submit`, `show` and the commands that steer do with a pipeline."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ..coordinator import records
from ..errors import UserError
from . import stages
from .cli_options import Output, print_json
from .driver import Driver, describing, stage_error
from .interrupts import EXIT_CODE
from .submit import desire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..coordinator.kv import KeyValueStore
    from ..storage.objects import ObjectStore
    from .forkserver import ForkServer
    from .inspect import Outline
    from .interrupts import Interrupts
    from .local import LocalCluster
    from .submit import How, Wish
    from .summary import Summary

DIGITS = 12
"""Of a state's digest, where there is little room."""


class Teller:
    """Says what becomes of stages, once, on standard output.

    Args:
        said: by how a stage was submitted, the words for it. quiet: say nothing.
    """

    def __init__(self, said: Mapping[How, str], *, quiet: bool) -> None:
        self._said, self._quiet = said, quiet
        self._over: dict[str, str] = {}

    def submitted(self, stage: str, how: How, job: Summary) -> None:
        """A stage was submitted, or found."""
        if job.state != "done":
            self._say(f"stage {stage!r} {self._said[how]}")
            return
        self._over[stage] = "done"
        self._say(f"stage {stage!r} is done already{_results(job)}")
        if how == "changed":
            self._say(
                f"  it keeps what it came to before the changes; to have it computed anew: easyscale rewind {job.job} "
                "--to 0, then the same command"
            )

    def look(self, jobs: Mapping[str, Summary]) -> None:
        """The stages as they are now."""
        for stage, job in jobs.items():
            if job.state == "done" and self._over.get(stage) != "done":
                self._say(f"stage {stage!r} is done{_results(job)}")
            self._over[stage] = job.state

    def _say(self, text: str) -> None:
        if not self._quiet:
            typer.echo(text)


def run(
    driver: Driver,
    cluster: Callable[[], LocalCluster],
    interrupts: Interrupts,
    teller: Teller,
    stopping: str,
    output: Output,
) -> None:
    """Run all stages on workers of this machine to the end; ends with the command's exit code.

    Args:
        cluster: makes the workers, which are only started when there is something to do.
        stopping: what is said at the first Ctrl-C.
    """
    from .cli_run import REFUSED_SECONDS, starting
    from .progress import ProgressView

    refused = time.monotonic()
    workers: LocalCluster | None = None
    with (
        contextlib.suppress(KeyboardInterrupt),
        interrupts.gracefully(stopping),
        contextlib.ExitStack() as started,
        ProgressView() as view,
    ):
        for _ in driver.follow():
            jobs = driver.summaries
            teller.look(jobs)
            going = [job for job in jobs.values() if job.state not in records.TERMINAL]
            for job in jobs.values():
                if job in going:
                    view.show(starting(job))
                else:
                    view.forget(job.job)
            if going and workers is None:
                workers = started.enter_context(cluster())
            if not going or any(job.waits_for != "willing" for job in going):
                refused = time.monotonic()
            if interrupts.stopping or time.monotonic() - refused > REFUSED_SECONDS:
                break
            if workers is not None:
                workers.watch_over()
    driver.look()
    teller.look(driver.summaries)
    _finish(driver, output)


def submit(driver: Driver, teller: Teller, output: Output) -> None:
    """Submit one stage after another; workers elsewhere run them."""
    name = driver.record.name
    if output is Output.text and len(driver.record.stages) > 1:
        typer.echo(
            f"pipeline {name!r}: each stage is submitted when those that it builds on are done, on workers elsewhere\n"
            "  (easyscale worker, easyscale coordinator). Ctrl-C leaves what is submitted; the same command goes on"
        )
    for moves in driver.follow():
        teller.look(driver.summaries)
        if not moves.submit and not moves.waiting:
            break
    if output is Output.json:
        print_json(_as_dict(driver))
    elif not (driver.errors or driver.moves.blocked):
        typer.echo(f"all stages of pipeline {name!r} are submitted\nnext: easyscale show {name} | watch {name}.STAGE")
    if driver.errors or driver.moves.blocked:
        _fail(driver, output)


def begin(
    outline: Outline,
    script: Path,
    settings: Mapping[str, str],
    stores: tuple[KeyValueStore, ObjectStore],
    fork_server: ForkServer,
    submitted: Callable[[str, How, Summary], None],
    *,
    accept_changes: bool,
) -> Driver:
    """The driver of a script's pipeline.

    Raises:
        UserError, UnavailableError: see `Driver`.
    """
    describe = describing(script, outline, settings, stores[1], fork_server)
    return Driver(outline.record, *stores, describe, accept_changes=accept_changes, submitted=submitted)


def show(picture: stages.Picture, output: Output) -> None:
    """All stages of a pipeline."""
    found = picture.summaries()
    if output is Output.json:
        print_json({"pipeline": picture.name, "state": picture.state, "stages": msgspec.to_builtins(found)})
        return
    typer.echo(f"pipeline {picture.name}: {picture.state}")
    table = Table("stage", "kind", "builds on", "state", "step", "result", "", box=None, pad_edge=False)
    for stage in found:
        metrics = ", ".join(f"{name} {value:.6g}" for name, value in sorted(stage.metrics.items()))
        table.add_row(
            stage.stage,
            stage.kind,
            ", ".join(stage.inputs),
            stage.state,
            f"{stage.step}/{stage.steps}" if stage.steps else "",
            stage.state_digest[:DIGITS] if stage.state_digest else "",
            (stage.reason.splitlines() or [metrics])[0],
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo(f"next: easyscale show {picture.name}.STAGE | logs {picture.name}.STAGE")


def steer(kv: KeyValueStore, picture: stages.Picture, what: Wish, output: Output, *, forgive: bool) -> None:
    """Say what is wanted of all stages that were submitted and are not over; to resume or retry, also of the failed.

    Raises:
        UserError: there is none.
    """
    ended = {"done"} if what == "running" else records.TERMINAL
    able = [job.name for job in picture.jobs.values() if job.state not in ended]
    if not able:
        raise UserError(
            f"pipeline {picture.name!r} is {picture.state}: it has no stage of which that can be wanted",
            f"look at its stages: easyscale show {picture.name}",
        )
    before = {name: desire(kv, name, what, forgive=forgive) for name in able}
    if output is Output.json:
        print_json({"pipeline": picture.name, "desired": what, "stages": {n: job.state for n, job in before.items()}})
        return
    for name, job in before.items():
        typer.echo(f"job {name!r}: {job.state} at step {job.step} of {job.steps}, wanted {what}")
    typer.echo(f"next: easyscale show {picture.name}")


def _finish(driver: Driver, output: Output) -> None:
    """Say how it ended and what to do next; the exit code tells it too."""
    if output is Output.json:
        print_json(_as_dict(driver))
    if driver.done:
        if output is Output.text:
            typer.echo(f"next: easyscale show {driver.record.name} | verify {driver.record.name}.STAGE")
        return
    _fail(driver, output)
    if output is Output.text:
        typer.echo(f"pipeline {driver.record.name!r} stopped; run the same command again to go on", err=True)
    raise typer.Exit(EXIT_CODE)


def _fail(driver: Driver, output: Output) -> None:
    """End with an error if stages came to nothing."""
    failed = {stage: job for stage, job in driver.summaries.items() if _came_to_nothing(job)}
    if not failed and not driver.errors:
        return
    if output is Output.text or driver.errors:
        for stage, error in driver.errors.items():
            typer.echo(f"error: {stage_error(stage, error)}", err=True)
    if output is Output.text:
        for stage, job in failed.items():
            how = job.state if job.state in ("failed", "cancelled") else "cannot run here"
            typer.echo(f"error: stage {stage!r} {how}: {job.reason}\n{job.traceback}".rstrip(), err=True)
        for stage, causes in driver.moves.blocked.items():
            typer.echo(f"stage {stage!r} was not begun: it builds on {', '.join(map(repr, causes))}", err=True)
        logs = " | ".join(f"easyscale logs {job.job}" for job in failed.values())
        typer.echo(f"next: {logs + ' | ' if logs else ''}mend it, then run the same command again", err=True)
    codes = [error.exit_code for error in driver.errors.values()]
    codes += [UserError.exit_code if job.cause == "inexact" else 1 for job in failed.values()]
    raise typer.Exit(max(codes))


def _came_to_nothing(job: Summary) -> bool:
    return job.state in ("failed", "cancelled") or job.waits_for == "willing"


def _as_dict(driver: Driver) -> dict[str, Any]:
    jobs = stages.Picture(driver.record, driver.jobs)
    found: dict[str, Any] = {"pipeline": jobs.name, "state": jobs.state}
    return {**found, "stages": msgspec.to_builtins(jobs.summaries())}


def _results(job: Summary) -> str:
    metrics = "".join(f", {name} {value:.6g}" for name, value in sorted(job.metrics.items()))
    return f"{metrics}, state digest {(job.state_digest or '')[:DIGITS]}"
