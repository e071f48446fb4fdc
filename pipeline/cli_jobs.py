"""The commands that look at jobs and steer them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..coordinator import keys, views
from ..errors import UserError
from . import stages
from .addresses import open_both, open_existing, require_existing
from .cli_options import Folder, Format, JobName, Kv, Output, Store, print_json
from .speeds import lines, read_workers, rows
from .submit import Handle, desire
from .summary import Summary, no_such_job, read_job, read_jobs, summarize

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..coordinator.views import JobView
    from .submit import Wish

FOLLOW_SECONDS = 0.5


def add(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (jobs, workers, show, watch, logs, pause, resume, cancel, retry):
        app.command()(command)


def jobs(kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """List all jobs, by precedence; stages of pipelines are jobs, and those that wait for others come last."""
    _, records_at = open_existing(kv, folder)
    known = read_jobs(records_at)
    found = [summarize(view) for view in known]
    if output is Output.json:
        print_json([job.as_dict() for job in found])
        return
    pipelines = stages.read_all(records_at, {view.name: view for view in known})
    later = [stage for one in pipelines for stage in one.summaries() if not stage.submitted]
    if not found and not later:
        typer.echo("no jobs; next: easyscale run SCRIPT | submit SCRIPT")
        return
    table = Table("job", "state", "step", "workers", "samples/s", "commit", "why", box=None, pad_edge=False)
    for job in found:
        table.add_row(
            job.job,
            job.state,
            f"{job.step}/{job.steps}",
            str(len(job.workers)),
            f"{job.samples_per_second:.0f}" if job.samples_per_second else "",
            str(job.committed),
            job.reason.splitlines()[0] if job.reason else "",
        )
    for stage in later:
        table.add_row(stage.job, stage.state, "", "", "", "", stage.reason)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo("next: easyscale show JOB | watch JOB | logs JOB")


def workers(kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """List all workers: what each does, and how fast."""
    _, records_at = open_existing(kv, folder)
    found = rows(views.parse(records_at.range(keys.PREFIX)))
    if output is Output.json:
        print_json([worker.as_dict() for worker in found])
        return
    if not found:
        typer.echo("no workers; next: easyscale worker")
        return
    columns = ("worker", "host", "device", "kind", "state", "job", "ESTs", "ESTs/s", "samples/s", "remark")
    table = Table(*columns, box=None, pad_edge=False)
    for worker in found:
        table.add_row(
            worker.name,
            worker.host,
            worker.device,
            worker.kind,
            worker.state,
            worker.job or "",
            f"{worker.first}..{worker.last - 1}" if worker.last else "",
            f"{worker.ests_per_second:.4g}" if worker.ests_per_second else "",
            f"{worker.samples_per_second:.4g}" if worker.samples_per_second else "",
            worker.remark,
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo("next: easyscale jobs | show JOB")


def show(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Everything about one job; of a pipeline, its stages."""
    _, records_at = open_existing(kv, folder)
    picture = stages.read(records_at, job)
    if picture is not None:
        from . import cli_pipelines

        cli_pipelines.show(picture, output)
        return
    view = _job(records_at, job)
    found = summarize(view)
    if output is Output.json:
        print_json(found.as_dict())
        return
    for name, value in _lines(found) + lines(view, read_workers(records_at)):
        typer.echo(f"{name:<13} {value}")
    if found.traceback:
        typer.echo(found.traceback)
    typer.echo(f"next: easyscale {_next(found)}")


def watch(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Follow a job to its end. With -o json, one object per change and line."""
    from .progress import ProgressView

    _, records_at = open_existing(kv, folder)
    handle = Handle(job, records_at)
    handle.status()
    last: Summary | None = None
    if output is Output.json:
        for last in handle.watch():
            print_json(last.as_dict())
    else:
        with ProgressView() as view:
            for last in handle.watch():
                view.show(last)
    if last is not None and last.state != "done":
        raise typer.Exit(1)


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job is over.")] = False,
    worker: Annotated[str | None, typer.Option(help="Only this worker's.")] = None,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
) -> None:
    """Print what the job's runners printed, worker by worker."""
    from .joblogs import read

    require_existing(kv, folder)
    _, records_at, objects_at = open_both(kv, store, folder)
    printed: dict[str, int] = {}
    headline = ""
    while True:
        view = _job(records_at, job)
        if worker is not None and worker not in view.logs:
            raise UserError(
                f"job {job!r} has no log of a worker {worker!r}", f"there are: {', '.join(view.logs) or '-'}"
            )
        for name, record in sorted(view.logs.items()):
            if worker not in (None, name):
                continue
            for chunk in read(objects_at, job, name, record, printed.get(name, 0)):
                if headline != name:
                    headline = name
                    typer.echo(f"==> {name} <==")
                typer.echo(chunk.decode(errors="replace"), nl=False)
            printed[name] = record.chunks
        if not follow or view.over:
            return
        time.sleep(FOLLOW_SECONDS)


def pause(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Stop a job, or a pipeline's stages, after the current step, with a commit; workers are free for others."""
    _steer(job, "paused", kv, folder, output)


def resume(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Go on with a paused job, or pipeline."""
    _steer(job, "running", kv, folder, output)


def cancel(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """End a job, or a pipeline's stages, at once; commits stay, `retry` goes on from the newest."""
    _steer(job, "cancelled", kv, folder, output)


def retry(job: JobName, kv: Kv = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Go on with a failed or cancelled job from its newest commit; lets devices out of its quarantine."""
    _steer(job, "running", kv, folder, output, forgive=True)


def _steer(job: str, what: Wish, kv: str | None, folder: str | None, output: Output, *, forgive: bool = False) -> None:
    _, records_at = open_existing(kv, folder)
    picture = stages.read(records_at, job)
    if picture is not None:
        from . import cli_pipelines

        cli_pipelines.steer(records_at, picture, what, output, forgive=forgive)
        return
    before = desire(records_at, job, what, forgive=forgive)
    if output is Output.json:
        print_json({"job": job, "desired": what, "state": before.state, "step": before.step, "steps": before.steps})
        return
    typer.echo(f"job {job!r}: {before.state} at step {before.step} of {before.steps}, wanted {what}")
    typer.echo(f"next: easyscale watch {job}")


def _job(kv: KeyValueStore, name: str) -> JobView:
    view = read_job(kv, name)
    if view is None:
        raise no_such_job(kv, name)
    return view


def _lines(job: Summary) -> list[tuple[str, str]]:
    lines = [
        ("job", job.job),
        ("state", f"{job.state}: {job.reason}" if job.reason else job.state),
        *([("wanted", job.desired)] if job.desired != "running" and job.desired != job.state else []),
        ("step", f"{job.step} of {job.steps}, committed {job.committed}"),
        *([("pipeline", job.pipeline)] if job.pipeline else []),
        *([("forked from", job.forked)] if job.forked else []),
        ("ESTs", str(job.ests)),
        ("generation", str(job.generation)),
        ("workers", ", ".join(job.workers) or "none"),
    ]
    if job.lane:
        sent = f": {job.sent_per_step:,} bytes sent per step" if job.sent_per_step else ""
        lines.append(("lane", f"{job.lane}{sent}"))
    if job.loss is not None:
        lines.append(("loss", f"{job.loss:.6g}, lr {job.lr:.6g}" if job.lr is not None else f"{job.loss:.6g}"))
    lines += [(name, f"{value:.6g}") for name, value in sorted(job.metrics.items())]
    if job.state_digest:
        lines.append(("state digest", job.state_digest))
    if job.attempts:
        lines.append(("attempts", ", ".join(f"{n} {cause}" for cause, n in sorted(job.attempts.items()))))
    lines += [
        ("recovery", f"{r.cause}: {r.seconds:.1f} s, {r.steps_recomputed} step(s) recomputed") for r in job.recoveries
    ]
    lines += [("damage", what) for what in job.damage]
    lines += [("quarantine", f"{device}: {why}") for device, why in job.quarantined.items()]
    return lines


def _next(job: Summary) -> str:
    name = job.job
    if job.state in ("failed", "cancelled"):
        return f"logs {name} | retry {name}"
    if job.state == "paused":
        return f"resume {name} | logs {name}"
    if job.state == "done":
        return f"logs {name} | verify {name}"
    if job.state == "waiting" and not job.workers:
        return f"worker (and coordinator) | watch {name} | cancel {name}, or run its script again"
    return f"watch {name} | logs {name} -f | pause {name} | cancel {name}"
