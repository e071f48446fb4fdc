"""The command `worker`: a device that serves, or several."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path  # noqa: TC003 - typer looks at it when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from ..alive import AliveFile
from ..errors import UserError
from .addresses import open_both, own_host, require_own
from .cli_options import Address, Alive, Folder, Kv, Lane, LaneName, Store
from .owners.rules import LOAD, QUIET_SECONDS
from .sizes import parse_size

if TYPE_CHECKING:
    from ..settings import Settings

POLL_SECONDS = 0.25


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(worker)


def worker(
    context: typer.Context,
    kv: Kv = None,
    store: Store = None,
    folder: Folder = None,
    name: Annotated[str | None, typer.Option(help="Name for people; the host's name by default.")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:N, several with commas, or all: a worker for each.")
    ] = "cpu",
    ttl: Annotated[float, typer.Option(min=1.0, help="Seconds that its lease lives without renewal.")] = 10.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds it may take to leave after SIGTERM.")] = 25.0,
    hang: Annotated[float, typer.Option(min=0.1, help="No step is called hanging before this many seconds.")] = 120.0,
    lane: Lane = LaneName.auto,
    address: Address = None,
    only: Annotated[str | None, typer.Option(metavar="JOB", help="Serve only this job, or this pipeline.")] = None,
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
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of the device that jobs may count on, e.g. 6GiB; all by default."),
    ] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Let others have the processors first.")] = 0,
    notice_file: Annotated[
        Path | None, typer.Option(help="Leave once this file is there: the machine will be taken away.")
    ] = None,
    notice_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Leave once this command, asked every 2 s, exits with 0.")
    ] = None,
    alive_file: Alive = None,
    slowdown: Annotated[float, typer.Option(hidden=True, help="Each EST takes so many times as long.")] = 1.0,
    fork_server: Annotated[int | None, typer.Option(hidden=True, help="Descriptor: see ForkServer.share.")] = None,
) -> None:
    """Serve jobs with a device until told to leave (SIGTERM or Ctrl-C: the step is finished first)."""
    from ..storage.selftest import require_fit
    from ..storage.signatures import trusted
    from .devices import check_devices
    from .forkserver import ForkServer
    from .owners.notices import Notice
    from .owners.owner import Owner
    from .owners.rules import Hours, user_ids
    from .slowdown import check
    from .worker import Worker, WorkerOptions, install_signals

    devices, slowdown = check_devices(device), check(slowdown)
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
    alive = AliveFile(alive_file)
    found, records_at, objects_at = open_both(kv, store, folder)
    require_fit(objects_at)
    trusted()  # a key that cannot be used is told now, not job by job
    if len(devices) > 1:
        records_at.close()
        _crew(found, label, devices, _told(context), grace, alive)
        return
    host = address or own_host(found.kv)
    os.nice(nice)
    options = WorkerOptions(
        name=label,
        device=devices[0],
        folder=found.folder,
        only=only,
        lane=lane.value,
        host=host,
        ttl=ttl,
        grace=grace,
        hang_floor=hang,
        max_memory=parse_size(max_memory, "--max-memory") if max_memory is not None else None,
        slowdown=slowdown,
        owner=wishes,
        alive=alive,
    )
    with ForkServer(fork_server) as runners:
        it = Worker(records_at, objects_at, options, runners)
        install_signals(it)
        it.run()
    records_at.close()


def _told(context: typer.Context) -> list[str]:
    """The options of the command line, but for those that each worker of a crew has its own of."""
    own = {"name", "device", "grace", "alive_file", "fork_server", "kv", "store", "folder"}
    found = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in own or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        found += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return found


def _crew(found: Settings, label: str, devices: list[str], options: list[str], grace: float, alive: AliveFile) -> None:
    """A worker for each device, until told to leave or all have left."""
    from ..coordinator.kv import open_kv
    from .crew import Crew
    from .forkserver import ForkServer
    from .interrupts import Interrupts

    places = ["--kv", found.kv, "--store", found.store, "--folder", str(found.folder)]
    workers = [["--name", f"{label}-{i}", "--device", one, *places, *options] for i, one in enumerate(devices)]
    kv, said = open_kv(found.kv), "leaving: workers finish their step (again: at once)"
    with contextlib.suppress(KeyboardInterrupt), Interrupts() as interrupts, ForkServer() as runners:
        crew = Crew(kv, runners, workers, found.folder / "logs", grace=grace, replace_left=False)
        with interrupts.gracefully(said), crew:
            while not interrupts.stopping and crew.running:
                crew.watch_over()
                alive.beat(time.monotonic())
                time.sleep(POLL_SECONDS)
    kv.close()
