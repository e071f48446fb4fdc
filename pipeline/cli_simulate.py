"""The command that tries schedulers on a cluster that is only computed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UserError
from .cli_options import Format, Output, print_json

if TYPE_CHECKING:
    from ..coordinator.simulator.engine import Outcome
    from ..coordinator.simulator.figures import Figures
    from ..coordinator.simulator.submissions import Reclaim, Submission

MADE_UP_EVERY = 300.0
"""Seconds between arrivals of made-up jobs, in the mean."""


def add(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(simulate)


def simulate(
    cluster: Annotated[str, typer.Option(help="v100:32,p100:16,k80:16, or a file of nodes (Alibaba's).")],
    throughputs: Annotated[Path, typer.Option(help="How fast models are, as Gavel's JSON has it.")],
    trace: Annotated[Path | None, typer.Option(help="Jobs: Gavel's, Philly's or Alibaba's pods; else made up.")] = None,
    policy: Annotated[str, typer.Option(help="One of fifo, backfill, srtf, paper, easyscale.")] = "easyscale",
    compare: Annotated[str | None, typer.Option(help="Several of them, with commas.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Only the first so many; 200 if they are made up.")] = None,
    faster: Annotated[float, typer.Option(help="Jobs arrive so many times as fast as in the trace.")] = 1.0,
    reclaim: Annotated[Path | None, typer.Option(help="Alibaba's pods: latency-sensitive ones take devices.")] = None,
    hours: Annotated[float | None, typer.Option(help="End after so many, whatever still runs.")] = None,
    one_kind: Annotated[bool, typer.Option("--one-kind", help="A job's devices are of one kind (native).")] = False,
    charge: Annotated[float, typer.Option(help="Starts and changes take so many times as long as measured.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Draws models, and made-up jobs.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out lines that cannot be read.")] = False,
    output: Format = Output.text,
) -> None:
    """Try policies on a trace: the scheduler's own code, on a clock that is only computed."""
    from ..coordinator.scheduling.policies import named
    from ..coordinator.scheduling.policy import Costs
    from ..coordinator.simulator import clusters, traces
    from ..coordinator.simulator.engine import Simulation
    from ..coordinator.simulator.figures import figures
    from ..coordinator.simulator.throughputs import Throughputs

    names = list(dict.fromkeys(name.strip() for name in (policy if compare is None else compare).split(",")))
    policies = [named(name) for name in names]
    _check_above_zero({"--faster": faster, "--charge": charge, "--hours": hours})
    _check_folder(plot)
    devices = clusters.cluster(cluster)
    rates = Throughputs.read(throughputs).on(devices)
    if trace is None:
        there = traces.made_up(jobs or 200, rates, seed=seed, every=MADE_UP_EVERY, mixes=not one_kind)
    else:
        there = traces.jobs(trace, rates, seed=seed, mixes=not one_kind, skip=skip_broken)[:jobs]
    fit, left_out = _fit(there, devices, faster, rigid=any(one.rigid for one in policies))
    taken: list[Reclaim] = traces.reclaims(reclaim, devices, skip=skip_broken) if reclaim is not None else []
    costs = Costs().times(charge)
    until = hours * 3600 if hours is not None else float("inf")
    outcomes = {one.name: Simulation(devices, fit, one, costs, reclaims=taken, until=until).run() for one in policies}
    results = [figures(name, outcome, devices) for name, outcome in outcomes.items()]
    if output is Output.json:
        print_json({"cluster": devices, "left_out": left_out, "policies": [one.as_dict() for one in results]})
    else:
        _print(results, len(fit), left_out, devices)
    if plot is not None:
        what = f"jobs of {trace.name}" if trace is not None else f"made-up jobs (seed {seed})"
        _draw(outcomes, plot, f"{len(fit)} {what} on {_words(devices)}", output)


def _check_above_zero(given: dict[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} is {value}", "it must be above 0")


def _check_folder(plot: Path | None) -> None:
    """Before hours of trace are computed in vain."""
    if plot is not None and not plot.absolute().parent.is_dir():
        raise UserError(f"{plot} cannot be written: there is no folder {plot.absolute().parent}")


def _fit(
    jobs: list[Submission], devices: dict[str, int], faster: float, *, rigid: bool
) -> tuple[list[Submission], int]:
    """Jobs that this cluster can run, and how many it cannot. Rigid policies need all of a job's devices at once."""
    from ..coordinator.simulator.submissions import fits

    fit = [replace(job, at=job.at / faster) for job in jobs if fits(job.shape, devices, rigid=rigid)]
    if not fit:
        raise UserError(
            f"none of the {len(jobs)} job(s) can run on {_words(devices)}", "give it more devices, or other kinds"
        )
    return fit, len(jobs) - len(fit)


def _words(devices: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(devices.items()))


def _draw(outcomes: dict[str, Outcome], plot: Path, title: str, output: Output) -> None:
    from ..coordinator.simulator.plot import draw

    draw(outcomes, plot, title)
    if output is Output.text:
        typer.echo(f"plot: {plot}")


def _print(results: list[Figures], jobs: int, left_out: int, devices: dict[str, int]) -> None:
    typer.echo(f"{jobs} jobs on {_words(devices)}; times in hours")
    if left_out:
        typer.echo(f"left out: {left_out} job(s) that need more devices of one kind than there are")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_times(results))
    if any(one.freed for one in results):
        console.print(_reclaims(results))
    best = results[-1]
    for one in results[:-1]:
        ratios = f"mean JCT {one.jct / best.jct:.2f}, p99 {one.jct_p99 / best.jct_p99:.2f}"
        typer.echo(f"{one.policy} / {best.policy}: {ratios}, makespan {one.makespan / best.makespan:.2f}")


def _times(results: list[Figures]) -> Table:
    """How long jobs took and what devices did, a line for each policy."""
    table = Table("policy", box=None, pad_edge=False)
    columns = ("mean JCT", "median", "p99", "makespan", "queueing", "used", "waste", "changes/job", "unfair", "done")
    for name in columns:
        table.add_column(name, justify="right")
    for one in results:
        hours = [f"{x / 3600:.2f}" for x in (one.jct, one.jct_median, one.jct_p99, one.makespan, one.queueing)]
        rest = [f"{one.used:.1%}", f"{one.waste:.1%}", f"{one.changes:.1f}", f"{one.unfair:.2f}", str(one.jobs)]
        table.add_row(one.policy, *hours, *rest)
    return table


def _reclaims(results: list[Figures]) -> Table:
    """How soon owners had their devices back, a line for each policy."""
    table = Table("policy", "devices taken from jobs", "longest until free, s", "beyond the step, s", box=None)
    for one in results:
        beyond = max(0.0, one.freed_beyond_step)
        table.add_row(one.policy, str(one.freed), f"{one.freed_longest:.2f}", f"{beyond:.2f}")
    return table
