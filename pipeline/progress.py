"""A running job on the terminal: a bar with step, loss, samples/s, workers and last commit; elsewhere, lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import TaskID

    from .summary import Summary

log = structlog.get_logger()

LINE_SECONDS = 5.0
"""Without a terminal: how often a line says how far the job is."""


class ProgressView:
    """Shows jobs: a bar for each that was shown, and is not over.

    Args:
        console: where to; default: standard error, so that standard output stays for results.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=False,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, tuple[str, str]] = {}
        self._line_at: dict[str, float] = {}

    def __enter__(self) -> ProgressView:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._bar.stop()

    def forget(self, job: str) -> None:
        """Take a job's bar away."""
        if job in self._tasks:
            self._bar.remove_task(self._tasks.pop(job))

    def show(self, job: Summary) -> None:
        """Show the job as it is now."""
        if job.job not in self._tasks:
            self._tasks[job.job] = self._bar.add_task(job.job, total=None, text="")
        self._bar.update(self._tasks[job.job], completed=job.step, total=job.steps, text=describe(job), refresh=True)
        if self._console.is_terminal:
            return
        said = job.state, job.reason
        if said != self._said.get(job.job) or time.monotonic() - self._line_at[job.job] >= LINE_SECONDS:
            self._said[job.job], self._line_at[job.job] = said, time.monotonic()
            log.info("job.progress", job=job.job, state=job.state, what=describe(job), step=job.step, steps=job.steps)


def describe(job: Summary) -> str:
    """One line about a job's progress."""
    if job.state != "running":
        return f"{job.state}: {job.reason}" if job.reason else job.state
    loss = f"loss {job.loss:.4f}  " if job.loss is not None else ""
    reason = f"  ({job.reason})" if job.reason else ""
    return (
        f"step {job.step}/{job.steps}  {loss}{job.samples_per_second:.0f} samples/s  "
        f"{len(job.workers)} worker(s)  commit {job.committed}{reason}"
    )
