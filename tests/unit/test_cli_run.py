"""What `easyscale run` shows of a job whose workers it is only just starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.pipeline.cli_run import _starting
from easyscale.pipeline.summary import summarize
from pictures import Story

if TYPE_CHECKING:
    from easyscale.pipeline.summary import Summary


def shown(*workers: tuple[str, str], min_workers: int = 1, refusals: dict[str, str] | None = None) -> Summary:
    story = Story()
    story.job(min_workers=min_workers)
    for name, state in workers:
        story.worker(name, state, None, refusals=refusals or {})
    story.decide()
    return _starting(summarize(story.view().jobs["job"]))


def test_nobody_is_missed_who_is_being_started() -> None:
    assert shown().reason == "starting workers"


@pytest.mark.parametrize(
    ("workers", "min_workers", "reason"),
    [((("a", "idle"),), 1, "workers are getting ready (a is idle)"), ((("a", "idle"),), 2, "needs 2 free worker(s)")],
)
def test_what_is_really_waited_for_is_said(workers: tuple[tuple[str, str]], min_workers: int, reason: str) -> None:
    assert shown(*workers, min_workers=min_workers).reason.startswith(reason)
