"""The commands about a job's history: what is kept, what goes on from one of its commits, and files for others."""

from __future__ import annotations

import enum
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ..errors import UserError
from .addresses import open_both, require_existing
from .cli_options import Folder, Format, JobName, Kv, Output, Store, print_json
from .cli_run import stopped_in_order

if TYPE_CHECKING:
    from ..storage.collection import Collected

SHOWN_STEPS = 12
"""Steps of a job's kept commits that are printed."""


def add(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (gc, fork, rewind, export, recover):
        app.command()(command)


def gc(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Only commits of these jobs.")] = None,
    keep_last: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the N newest commits.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Keep the first commit in each stretch of STEPS steps.")
    ] = None,
    keep_best: Annotated[
        list[str] | None, typer.Option(metavar="METRIC[:max|min]", help="Keep the best commit; max unless told.")
    ] = None,
    min_age: Annotated[str, typer.Option(metavar="AGE", help="Leave what is younger: 30m, 6h, 2d.")] = "6h",
    delete: Annotated[bool, typer.Option("--delete", help="Remove; otherwise only say what would go.")] = False,
    despite_damage: Annotated[
        bool, typer.Option("--despite-damage", help="Go on although a manifest cannot be read: what it names is lost.")
    ] = False,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Find what the object store need not keep, and remove it with --delete.

    A commit is kept if any of the --keep options keeps it; without one, all are. The two newest of a job, and what a
    fork began with, always are. A commit that goes keeps its manifest and its record of steps.
    """
    with stopped_in_order():
        from ..storage.collection import collect
        from ..storage.retention import Policy, parse_best
        from .cli_proof import progress
        from .collecting import known_jobs, require_age, require_jobs, require_same_store, seconds_of

        policy = Policy(keep_last, keep_every, tuple(parse_best(text) for text in keep_best or []))
        age = seconds_of(min_age, "--min-age")
        if jobs and policy.keeps_all:
            raise UserError(
                "jobs are named, but not what to keep of them",
                "add --keep-last N, --keep-every STEPS or --keep-best METRIC",
            )
        require_existing(kv, folder)
        _, records_at, objects_at = open_both(kv, store, folder)
        known = known_jobs(records_at, objects_at)
        require_jobs(records_at, known, jobs or [])
        require_same_store(objects_at, known)
        require_age(records_at, age)
        with progress() as show:
            found = collect(
                objects_at, lambda: known_jobs(records_at, objects_at), policy, only=jobs or None, min_age=age,
                delete=delete, despite=despite_damage, show=lambda done, what: show(done, 0, what),
            )  # fmt: skip
    if output is Output.json:
        plain: dict[str, Any] = msgspec.to_builtins(found)
        print_json(plain)
        return
    _show_collected(found)


def fork(
    point: Annotated[
        str, typer.Argument(metavar="JOB[@STEP]", help="The commit to begin with; the newest unless told.")
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the new job.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another setting of the job, or of its optimizer (lr=0.01)."),
    ] = None,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Begin another job with a commit of this one. They share everything that is stored; this one goes on undisturbed.

    A base learning rate is scaled with all that its schedule has made of it.
    """
    with stopped_in_order():
        from . import forking
        from .cli_proof import committed
        from .inspect import pairs_of

        job, step = _point(point)
        changes = pairs_of(settings or [])
        require_existing(kv, folder)
        _, records_at, objects_at = open_both(kv, store, folder)
        view = committed(records_at, objects_at, job)
        made = forking.fork(records_at, objects_at, view, step, name, changes)
    if output is Output.json:
        print_json({**made._asdict(), "forked": f"{job}@{made.step}"})
        return
    typer.echo(f"job {made.job!r}: begins with commit {made.step} of {job!r}, will be done at step {made.steps}")
    typer.echo(f"next: easyscale watch {made.job} | diff {job} {made.job}")


def rewind(
    job: JobName,
    to: Annotated[int, typer.Option("--to", min=0, metavar="STEP", help="Step of the commit; 0: the beginning.")],
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Let a job go back to one of its commits and pause it there; what came after is given up."""
    with stopped_in_order():
        from . import forking
        from .cli_proof import committed

        require_existing(kv, folder)
        _, records_at, objects_at = open_both(kv, store, folder)
        committed(records_at, objects_at, job)
        before = forking.rewind(records_at, objects_at, job, to)
    was = before.head.value.step if before.head else 0
    if output is Output.json:
        print_json({"job": job, "was": was, "step": to})
        return
    typer.echo(f"job {job!r}: went back from commit {was} to {to}, and is paused")
    typer.echo(f"next: easyscale resume {job}, or submit its script again | show {job}")


class What(enum.StrEnum):
    """What of a state is exported."""

    model = "model"
    ema = "ema"
    optimizer = "optimizer"
    all = "all"


class FileFormat(enum.StrEnum):
    """What kind of file is written."""

    safetensors = "safetensors"
    torch = "torch"


def export(
    job: JobName,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write; it must not be there.")],
    step: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="Of this commit; default: the newest.")
    ] = None,
    form: Annotated[
        FileFormat | None, typer.Option("--format", help="Default: safetensors if FILE ends so, else torch.")
    ] = None,
    what: Annotated[
        What, typer.Option(help="The model, with averaged parameters (ema), the optimizer, or everything.")
    ] = What.model,
    plain_names: Annotated[
        bool, typer.Option("--plain-names", help="Do not run the job's code to learn the names of its state_dict().")
    ] = False,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Write the state of a commit into a file that plain PyTorch loads."""
    from .cli_proof import looking_at, warn

    form = form or (FileFormat.safetensors if to.suffix == ".safetensors" else FileFormat.torch)
    with looking_at([job], "cpu", kv, store, folder) as here:
        from ..storage import commits
        from . import exporting, points, replay_messages
        from .replayer import Replayer

        (view,) = here.jobs
        point = points.find(here.store, view, step)
        state = commits.read_commit(here.store, point.digest)[1]
        returned = "result" in state
        places = {} if returned else exporting.plain_names(state)
        if not returned and not plain_names and what is not What.optimizer:
            begin = replay_messages.Begin(
                job=job, spec=point.manifest.spec, code=point.manifest.code, store=here.store.address,
                folder=str(here.folder), device="cpu", loaders=False,
            )  # fmt: skip
            here.show(0, 1, "building the model")
            with Replayer(here.fork_server, begin, lambda _: None) as replayer:
                named = replayer.named()
            places = named.places
            for name in named.others:
                warn(f"state_dict() has {name!r}, which is neither a parameter nor a buffer: it is left out")
        tree = exporting.returned(state, what.value) if returned else exporting.chosen(state, what.value, places)
        about = {"format": "pt", "easyscale.job": job, "easyscale.step": str(point.manifest.step),
                 "easyscale.state_digest": point.manifest.state_digest}  # fmt: skip
        size = exporting.write(tree, form.value, to, about)
    found = {"job": job, "step": point.manifest.step, "state_digest": point.manifest.state_digest}
    if output is Output.json:
        print_json({**found, "what": what.value, "format": form.value, "file": str(to), "bytes": size})
        return
    typer.echo(
        f"{to}: {'result' if returned else what.value} of job {job!r} at step {point.manifest.step}, {size:,} bytes"
    )
    loads = "safetensors.torch.load_file" if form is FileFormat.safetensors else "torch.load"
    typer.echo(f"next: {loads}({str(to)!r}{'' if form is FileFormat.safetensors else ', weights_only=True'})")


def recover(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these; default: all.")] = None,
    advance: Annotated[
        bool, typer.Option("--advance", help="Also where records are older than the newest commit (from a backup).")
    ] = False,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Make the records of jobs anew from the object store, when the key-value store was lost.

    Records that are there are left alone. A job that is not done is paused. Exit code 1 if one cannot be recovered.
    """
    with stopped_in_order():
        from .recovering import recover as make

        _, records_at, objects_at = open_both(kv, store, folder)
        found = make(records_at, objects_at, jobs or [], advance=advance)
    if output is Output.json:
        print_json(msgspec.to_builtins(found))
    elif not found:
        typer.echo(f"no jobs in the object store {objects_at.address}; name another one with --store")
    else:
        table = Table("job", "", "commit", "state", "why", box=None, pad_edge=False)
        for one in found:
            table.add_row(one.job, one.how, str(one.step), one.state, one.why.splitlines()[0] if one.why else "")
        Console(width=None if sys.stdout.isatty() else 200).print(table)
        typer.echo("next: easyscale jobs | resume JOB")
    if any(one.how == "lost" for one in found):
        raise typer.Exit(1)


def _point(text: str) -> tuple[str, int | None]:
    """`JOB@STEP`, or `JOB`."""
    job, at, step = text.partition("@")
    if at and not (step.isascii() and step.isdigit()):
        raise UserError(f"{text!r} names no commit", "write JOB@STEP, with the step of a commit, or JOB for its newest")
    return job, int(step) if at else None


def _show_collected(found: Collected) -> None:
    for problem in found.problems:
        typer.echo(f"warning: {problem}", err=True)
    if found.jobs:
        table = Table("job", "commits", "kept", "go" if not found.deleted else "gone", "gone before", "kept at steps",
                      box=None, pad_edge=False)  # fmt: skip
        for part in found.jobs:
            steps = ", ".join(map(str, part.kept[-SHOWN_STEPS:]))
            more = "..., " if len(part.kept) > SHOWN_STEPS else ""
            total = len(part.kept) + len(part.collected) + part.before
            table.add_row(part.job, str(total), str(len(part.kept)), str(len(part.collected)), str(part.before),
                          more + steps)  # fmt: skip
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    what = f"{found.objects:,} object(s), {found.bytes:,} bytes"
    young = f"; {found.young:,} more are not old enough (--min-age)" if found.young else ""
    if found.deleted:
        typer.echo(f"removed: {what}{young}")
        typer.echo("next: easyscale jobs | verify JOB")
        return
    typer.echo(f"can go: {what}{young}")
    typer.echo("next: the same command with --delete" if found.objects else "next: easyscale jobs")
