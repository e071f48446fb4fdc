"""A picture of several policies on one trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from .engine import Outcome

HOUR = 3600.0

COLOURS = {"fifo": "#999999", "backfill": "#555555", "srtf": "#c77c11", "paper": "#3b7dd8", "easyscale": "#c2185b"}


def draw(outcomes: Mapping[str, Outcome], path: Path, title: str) -> None:
    """Write a PNG: how soon jobs were done, and what was going on meanwhile.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a plot needs matplotlib, which is not installed", "pip install matplotlib") from error
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    times, jobs, devices = figure.subplots(1, 3)
    longest = max(outcomes.values(), key=lambda outcome: len(outcome.used))
    if len({there for _, _, there in longest.used}) > 1:  # some were taken away for a while
        at, there = [at / HOUR for at, _, _ in longest.used], [there for _, _, there in longest.used]
        devices.fill_between(at, there, step="post", color="#e4e4e4", label="there for jobs")
        devices.legend(loc="lower right", frameon=False)
    for name, outcome in outcomes.items():
        colour = COLOURS.get(name, "#000000")
        _times(times, outcome, name, colour)
        _steps(jobs, [at for at, _ in outcome.active], [number for _, number in outcome.active], name, colour)
        _steps(devices, [at for at, _, _ in outcome.used], [used for _, used, _ in outcome.used], name, colour)
    times.set(xscale="log", xlabel="hours from arrival to end (log)", ylabel="share of the jobs", ylim=(0, 1))
    jobs.set(xlabel="hours", ylabel="jobs that are not done", ylim=(0, None))
    devices.set(xlabel="hours", ylabel="devices that jobs have", ylim=(0, None))
    times.legend(loc="upper left", frameon=False)
    for axes in (times, jobs, devices):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(title)
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def _times(axes: Axes, outcome: Outcome, name: str, colour: str) -> None:
    took = sorted(outcome.ended[job.job.name] - job.job.at for job in outcome.jobs if job.job.name in outcome.ended)
    shares = [(place + 1) / len(took) for place in range(len(took))]
    axes.plot([max(seconds, 1.0) / HOUR for seconds in took], shares, label=name, color=colour)


def _steps(axes: Axes, at: list[float], values: list[int], name: str, colour: str) -> None:
    axes.step([seconds / HOUR for seconds in at], values, where="post", label=name, color=colour, linewidth=1.0)
