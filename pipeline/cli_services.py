"""The commands that serve: `worker` and `coordinator`; and `doctor`, which looks whether they could."""

from __future__ import annotations

import re
import signal
import socket
import threading
from enum import StrEnum
from typing import Annotated

import typer

from ..errors import UserError
from .addresses import open_both, own_host, require_own
from .cli_options import Address, Folder, Format, Kv, Lane, LaneName, Output, Store, print_json


class Between(StrEnum):
    """How the coordinator shares workers between jobs. Policies that run jobs rigidly are for simulations only."""

    even = "even"
    paper = "paper"
    easyscale = "easyscale"


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(worker)
    app.command()(coordinator)
    app.command()(doctor)


def worker(
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    name: Annotated[str | None, typer.Option(help="Name for people; the host's name by default.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    ttl: Annotated[float, typer.Option(min=1.0, help="Seconds that its lease lives without renewal.")] = 10.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds it may take to leave after SIGTERM.")] = 25.0,
    hang: Annotated[float, typer.Option(min=0.1, help="No step is called hanging before this many seconds.")] = 120.0,
    lane: Lane = LaneName.auto,
    address: Address = None,
    only: Annotated[str | None, typer.Option(metavar="JOB", help="Serve only this job.")] = None,
    slowdown: Annotated[float, typer.Option(hidden=True, help="Each EST takes so many times as long.")] = 1.0,
    fork_server: Annotated[int | None, typer.Option(hidden=True, help="Descriptor: see ForkServer.share.")] = None,
) -> None:
    """Serve jobs with one device until told to leave (SIGTERM or Ctrl-C: the step is finished first)."""
    from ..storage.selftest import require_fit
    from .devices import check_device
    from .forkserver import ForkServer
    from .slowdown import check
    from .worker import Worker, WorkerOptions, install_signals

    device, slowdown = check_device(device), check(slowdown)
    label = name or socket.gethostname().partition(".")[0] or "worker"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", label):
        raise UserError(
            f"worker name {label!r} cannot be used", "use up to 60 letters, digits, dots and hyphens (--name)"
        )
    if address is not None:
        require_own(address)
    found, records_at, objects_at = open_both(kv, store, folder)
    require_fit(objects_at)
    host = address or own_host(found.kv)
    options = WorkerOptions(
        name=label,
        device=device,
        folder=found.folder,
        only=only,
        lane=lane.value,
        host=host,
        ttl=ttl,
        grace=grace,
        hang_floor=hang,
        slowdown=slowdown,
    )
    with ForkServer(fork_server) as runners:
        it = Worker(records_at, objects_at, options, runners)
        install_signals(it)
        it.run()
    records_at.close()


def coordinator(
    kv: Kv = None,
    folder: Folder = None,
    policy: Annotated[
        Between, typer.Option(help="How jobs share workers: evenly, or by what brings them to their ends soonest.")
    ] = Between.easyscale,
) -> None:
    """Assign workers to jobs until told to stop. Any number may run; one leads, the others take over when it dies."""
    from .. import settings as places
    from ..coordinator.coordinator import Coordinator
    from ..coordinator.kv import open_kv
    from ..coordinator.planner import Planner
    from ..coordinator.scheduling.policies import named

    found = places.resolve(kv, None, folder)
    if found.kv.startswith("file:"):
        found.make_folder()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    it = open_kv(found.kv)
    planner = Planner(policy=None if policy is Between.even else named(policy.value))
    Coordinator(it, planner).run(stop)
    it.close()


def doctor(kv: Kv = None, store: Store = None, folder: Folder = None, output: Format = Output.text) -> None:
    """Look whether the stores, torch and the clocks are fit; exit code 1 if something is not."""
    from .doctor import examine

    findings = []
    for finding in examine(kv, store, folder):
        findings.append(finding)
        if output is Output.text:
            typer.echo(finding.line())
    if output is Output.json:
        print_json([finding.as_dict() for finding in findings])
    if any(finding.fatal for finding in findings):
        raise typer.Exit(1)
