"""A job in a notebook: `handle.watch()` as the last line of a cell shows a bar until the job is over.

A bar of our own, in HTML without scripts: rich's needs widgets that not every notebook has.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from .progress import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .summary import Summary

COLOURS = {"done": "#2e7d32", "failed": "#c62828", "cancelled": "#757575"}
STOPPED = "no longer watched; the job goes on"


def bar(job: Summary, note: str = "") -> str:
    """One job as HTML.

    Args:
        note: for people, besides what the job says itself.
    """
    share = 100 * min(1.0, job.step / job.steps) if job.steps else 0
    said = escape(describe(job)) + (f" ({escape(note)})" if note else "")
    metrics = "".join(f", {escape(name)} {value:.6g}" for name, value in sorted(job.metrics.items()))
    colour = COLOURS.get(job.state, "#1565c0")
    return (
        f"<div><b>{escape(job.job)}</b> "
        '<span style="display:inline-block;width:16em;height:.8em;border:1px solid #888;vertical-align:middle">'
        f'<span style="display:block;height:100%;width:{share:.1f}%;background:{colour}"></span></span> '
        f"{share:.0f} % {said}{metrics if job.state == 'done' else ''}</div>"
    )


def show(jobs: Iterable[Summary]) -> None:
    """Show a job as it goes on, in the cell that runs. Interrupting the cell only ends the watching."""
    import IPython.display

    tools: Any = IPython.display  # it has no types
    cell = tools.display(tools.HTML(""), display_id=True)
    last = None
    try:
        for last in jobs:
            cell.update(tools.HTML(bar(last)))
    except KeyboardInterrupt:
        if last is not None:
            cell.update(tools.HTML(bar(last, STOPPED)))
