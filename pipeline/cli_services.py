"""The commands `coordinator`, and `doctor`, which looks whether processes here could serve."""

from __future__ import annotations

import signal
import threading
from enum import StrEnum
from typing import Annotated

import typer

from ..alive import AliveFile
from .cli_options import Alive, Folder, Format, Kv, Output, Store, print_json


class Between(StrEnum):
    """How the coordinator shares workers between jobs. Policies that run jobs rigidly are for simulations only."""

    even = "even"
    paper = "paper"
    easyscale = "easyscale"


def add(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(coordinator)
    app.command()(doctor)


def coordinator(
    kv: Kv = None,
    folder: Folder = None,
    policy: Annotated[
        Between, typer.Option(help="How jobs share workers: evenly, or by what brings them to their ends soonest.")
    ] = Between.easyscale,
    alive_file: Alive = None,
) -> None:
    """Assign workers to jobs until told to stop. Any number may run; one leads, the others take over when it dies."""
    from .. import settings as places
    from ..coordinator.coordinator import Coordinator
    from ..coordinator.kv import open_kv
    from ..coordinator.planner import Planner
    from ..coordinator.scheduling.policies import named

    alive = AliveFile(alive_file)
    found = places.resolve(kv, None, folder)
    if found.kv.startswith("file:"):
        found.make_folder()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    it = open_kv(found.kv)
    planner = Planner(policy=None if policy is Between.even else named(policy.value))
    Coordinator(it, planner).run(stop, alive)
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
