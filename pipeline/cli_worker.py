"""The command `worker`: one device that serves."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path  # noqa: TC003 - typer looks at it when it runs
from typing import Annotated

import typer

from ..errors import UserError
from .addresses import open_both, own_host, require_own
from .cli_options import Address, Folder, Kv, Lane, LaneName, Store
from .owners.rules import LOAD, QUIET_SECONDS
from .sizes import parse_size


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(worker)


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
    only_when_idle: Annotated[
        bool, typer.Option("--only-when-idle", help="Keep away while other processes use the device.")
    ] = False,
    busy: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the processors, or of the GPU, that others may use.")
    ] = LOAD,
    busy_memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the GPU that they may use.")] = "512MiB",
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Only this user's processes count; several with commas.")
    ] = None,
    quiet: Annotated[float, typer.Option(min=0.0, help="Seconds without others until it is back.")] = QUIET_SECONDS,
    hours: Annotated[
        str | None, typer.Option(metavar="HH:MM-HH:MM", help="Serve in these hours only; several with commas.")
    ] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Let others have the processors first.")] = 0,
    notice_file: Annotated[
        Path | None, typer.Option(help="Leave once this file is there: the machine will be taken away.")
    ] = None,
    notice_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Leave once this command, asked every 2 s, exits with 0.")
    ] = None,
    slowdown: Annotated[float, typer.Option(hidden=True, help="Each EST takes so many times as long.")] = 1.0,
    fork_server: Annotated[int | None, typer.Option(hidden=True, help="Descriptor: see ForkServer.share.")] = None,
) -> None:
    """Serve jobs with one device until told to leave (SIGTERM or Ctrl-C: the step is finished first)."""
    from ..storage.selftest import require_fit
    from .devices import check_device
    from .forkserver import ForkServer
    from .owners.notices import Notice
    from .owners.owner import Owner
    from .owners.rules import Hours, user_ids
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
    wishes = Owner(
        only_when_idle=only_when_idle,
        load=busy,
        memory=parse_size(busy_memory, "--busy-memory"),
        users=user_ids(owner) if owner is not None else frozenset(),
        quiet=quiet,
        hours=Hours.parse(hours) if hours is not None else None,
        notice=Notice.of(notice_file, notice_command) if notice_file or notice_command is not None else None,
    )
    os.nice(nice)
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
        owner=wishes,
    )
    with ForkServer(fork_server) as runners:
        it = Worker(records_at, objects_at, options, runners)
        install_signals(it)
        it.run()
    records_at.close()
