"""The commands by which a job proves its bits: `verify` computes it anew, `diff` finds where two jobs part."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import NotFoundError, UnavailableError, UserError
from . import verified
from .addresses import open_both, require_existing
from .cli_options import Folder, Format, JobName, Kv, Output, Store, print_json
from .cli_run import stopped_in_order
from .summary import no_such_job, read_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..coordinator.kv import KeyValueStore
    from ..coordinator.records import Head
    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore
    from .departures import Departure
    from .diff import Comparison
    from .forkserver import ForkServer
    from .verify import Verdict

Device = Annotated[str, typer.Option(help="What to compute on: cpu, cuda or cuda:N.")]


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(verify)
    app.command()(diff)


def verify(
    job: JobName,
    first: Annotated[int | None, typer.Option("--from", min=0, metavar="STEP", help="Begin here; default: 0.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="End here; default: the end.")] = None,
    traced: Annotated[
        int | None, typer.Option("--trace", min=0, metavar="STEP", help="Store this step's operators for others.")
    ] = None,
    device: Device = "cpu",
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Compute a job anew from its commits and compare every bit; exit code 1 if something differs.

    Spans begin and end at commits: `--from` and `--to` mean the nearest ones around these steps. A device of another
    kind than the job's may be used: that its bits differ is then what one wants to know.
    """
    with looking_at([job], device, kv, store, folder) as here:
        from . import verify as verifying  # imports torch, while the fork server does
        from .messages import Base

        head = here.heads[0]
        request = verifying.Request(
            job=job,
            head=Base(step=head.step, manifest=head.manifest),
            first=first, last=last, trace=traced, device=here.device, folder=here.folder, show=here.show, warn=warn,
        )  # fmt: skip
        verdict = verifying.Verifier(here.store, request, here.fork_server).run()
    keep(here.kv, verdict, here.device)
    if output is Output.json:
        print_json(msgspec.to_builtins(verdict))
    else:
        for line in verdict_lines(verdict):
            typer.echo(line)
    if verdict.verdict != "verified":
        raise typer.Exit(1)


def diff(
    job1: Annotated[str, typer.Argument(metavar="JOB1", help="Name of a job.")],
    job2: Annotated[str, typer.Argument(metavar="JOB2", help="Name of another.")],
    device: Device = "cpu",
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    output: Format = Output.text,
) -> None:
    """Find where two jobs part: settings, code, data, step, tensor, operator; exit code 1 if they do.

    Both are computed anew here for that, from the last commit that they have in common to where they differ.
    """
    if job1 == job2:
        raise UserError(f"{job1!r} is compared with itself", "name two jobs; `easyscale verify` checks one")
    with looking_at([job1, job2], device, kv, store, folder) as here:
        from . import diff as comparing  # imports torch, while the fork server does
        from .messages import Base

        sides = [
            comparing.Side(
                view.name,
                Base(step=head.step, manifest=head.manifest),
                head.state_digest,
                view.record.spec,
                view.record.code,
            )
            for view, head in zip(here.jobs, here.heads, strict=True)
        ]
        place = comparing.Place(here.device, here.folder, here.fork_server, here.show)
        comparison = comparing.compare(here.store, sides[0], sides[1], place)
    if output is Output.json:
        print_json(msgspec.to_builtins(comparison))
    else:
        show_comparison(comparison)
    if comparison.verdict != "identical":
        raise typer.Exit(1)


class Here(NamedTuple):
    """What the commands of this module work with: jobs that have commits, and where to compute them anew."""

    jobs: list[JobView]
    heads: list[Head]
    kv: KeyValueStore
    store: ObjectStore
    device: str
    folder: Path
    fork_server: ForkServer
    show: Callable[[int, int, str], None]


@contextmanager
def looking_at(jobs: list[str], device: str, kv: str | None, store: str | None, folder: str | None) -> Iterator[Here]:
    """Open what is needed to compute some jobs anew; ends in order when it is interrupted.

    Raises:
        UserError: see `committed`; or there is no such device or place.
    """
    with stopped_in_order():
        from .devices import check_device
        from .forkserver import ForkServer

        device = check_device(device)
        require_existing(kv, folder)
        found, records_at, objects_at = open_both(kv, store, folder)
        views = [committed(records_at, objects_at, job) for job in jobs]
        heads = [view.head.value for view in views if view.head is not None]
        with ForkServer() as fork_server, progress() as show:
            yield Here(views, heads, records_at, objects_at, device, found.folder, fork_server, show)


def committed(kv: KeyValueStore, store: ObjectStore, job: str) -> JobView:
    """A job that has something to be looked at.

    Raises:
        UserError: there is no such job, it has no commit, or its objects are in another store.
    """
    view = read_job(kv, job)
    if view is None:
        raise no_such_job(kv, job)
    if view.head is None:
        raise UserError(f"job {job!r} has no commit yet", f"wait for its first: easyscale watch {job}")
    assert view.spec is not None
    from ..storage.blobs import blob_key

    if not any(store.exists(blob_key(digest)) for digest in (view.spec.value.spec, view.head.value.manifest)):
        raise UserError(
            f"job {job!r} is known at the key-value store, but not in the object store {store.address}",
            "name the object store that it was submitted with (--store)",
        ) from NotFoundError(job)
    return view


def keep(kv: KeyValueStore, verdict: Verdict, device: str) -> None:
    """Let the page show what `verify` came to; that it cannot be written down there is no reason to fail."""
    found = [*map(str, verdict.findings), *(line for d in verdict.departures for line in departure_lines(d))]
    result = verified.Verified(
        verdict=verdict.verdict, start=verdict.start, end=verdict.end, steps=verdict.steps, at=time.time(),
        host=socket.gethostname(), device=device, found="\n".join([*found, *filter(None, [verdict.trouble])]),
    )  # fmt: skip
    try:
        verified.keep(kv, verdict.job, result)
    except UnavailableError as error:
        warn(f"this is not noted for others: {error}")


def warn(text: str) -> None:
    """A warning for people, beside the result."""
    typer.echo(f"warning: {text}", err=True)


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on the terminal, if standard error is one: called with how much is done, of how much, and what it is."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("", total=None)
    with bar:
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def verdict_lines(verdict: Verdict) -> list[str]:
    """What `verify` says."""
    lines = [f"{finding}" for finding in verdict.findings]
    for departure in verdict.departures:
        lines += departure_lines(departure)
    lines += [verdict.trouble] if verdict.trouble else []
    span = f"steps {verdict.start} to {verdict.end}"
    if verdict.verdict == "verified":
        lines.append(f"verified: job {verdict.job!r}, {span}: {verdict.commits} commit(s), each bit as it should be")
    else:
        done = verdict.end - verdict.start
        part = f"{verdict.steps} of {done} steps were computed anew" if verdict.steps < done else f"all {done} steps"
        lines.append(f"differs: job {verdict.job!r}, {span} ({part})")
    lines += [f"stored: the operators of step {step}" for step in verdict.traced]
    lines.append(f"next: easyscale show {verdict.job} | diff {verdict.job} OTHER | verify {verdict.job} --trace STEP")
    return lines


def departure_lines(departure: Departure) -> list[str]:
    """What is said of a span that differs: step, tensors, operator, and what follows."""
    span = f"span {departure.start} to {departure.end}"
    lines = []
    if departure.step is not None:
        lines.append(f"{span}: step {departure.step} is the first whose record differs")
        lines += [f"  {name}: recorded {told(a)}, computed {told(b)}" for name, (a, b) in departure.numbers.items()]
    elif departure.state:
        lines.append(f"{span}: each step's record comes out, the state of commit {departure.end} does not")
    if departure.state and departure.differing:
        lines.append(f"  {departure.differing} tensor(s) and value(s) of commit {departure.end} differ:")
        lines += [f"    {tensor.name}: {tensor.what}" for tensor in departure.tensors[:8]]
    if departure.operator is not None:
        lines.append(f"  {departure.operator}")
    return [*lines, *([f"  {departure.why}"] if departure.why else [])]


def show_comparison(found: Comparison) -> None:
    """Print what `diff` says: what was given to the two jobs, then where they part."""
    rows = [(name, told(a), told(b)) for name, (a, b) in found.settings.items()]
    rows += [("data", "another dataset", "than that")] if found.data else []
    if rows:
        table = Table("setting", found.job1, found.job2, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    for line in [*found.code, *comparison_lines(found)]:
        typer.echo(line)


def comparison_lines(found: Comparison) -> list[str]:
    """Where two jobs part, and what to do next."""
    if found.verdict == "identical":
        same = f"identical: jobs {found.job1!r} and {found.job2!r}, up to step {found.upto}"
        return [same, f"next: easyscale verify {found.job1} | verify {found.job2}"]
    lines = [f"classes: {found.classes}"] if found.classes else []
    lines.append(f"commit {found.common} is the last in common" if found.common else "no commit is in common")
    if found.step is not None:
        lines.append(f"step {found.step} is the first whose record differs")
        lines += [f"  {name}: {told(a)} and {told(b)}" for name, (a, b) in found.numbers.items()]
    if found.differing:
        lines.append(f"{found.differing} tensor(s) and value(s) of commit {found.apart} differ:")
        lines += [f"  {tensor.name}: {tensor.what}" for tensor in found.tensors[:8]]
    if found.parted is not None:
        lines.append(f"step {found.parted} is the first that gives another state, computed anew here")
    if found.operator is not None:
        lines.append(f"  {found.operator.told(f'in {found.job1}', f'in {found.job2}')}")
    lines += [found.why] if found.why else []
    lines.append(f"differs: jobs {found.job1!r} and {found.job2!r}")
    return [*lines, f"next: easyscale verify {found.job1} | verify {found.job2} | show {found.job1}"]


def told(value: Any) -> str:
    """A recorded number, all digits of it."""
    return repr(value) if isinstance(value, float) else str(value)
