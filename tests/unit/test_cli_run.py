"""What `easyscale run` shows of a job whose workers it is only just starting, and of one that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from easyscale.pipeline.cli_options import Output
from easyscale.pipeline.cli_run import _finish, starting
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
    return starting(summarize(story.view().jobs["job"]))


def test_nobody_is_missed_who_is_being_started() -> None:
    assert shown().reason == "starting workers"


@pytest.mark.parametrize(
    ("workers", "min_workers", "reason"),
    [((("a", "idle"),), 1, "workers are getting ready (a is idle)"), ((("a", "idle"),), 2, "needs 2 worker(s)")],
)
def test_what_is_really_waited_for_is_said(workers: tuple[tuple[str, str]], min_workers: int, reason: str) -> None:
    assert shown(*workers, min_workers=min_workers).reason.startswith(reason)


def ended(state: str, capsys: pytest.CaptureFixture[str], **status: str) -> tuple[int, str]:
    story = Story()
    story.job()
    story.status(state=state, quarantined={"here cpu (worker local0)": "step 7: w differs"}, **status)
    try:
        _finish(summarize(story.view().jobs["job"]), Output.text)
    except typer.Exit as end:
        return end.exit_code, capsys.readouterr().err
    return 0, capsys.readouterr().out


def test_a_job_that_is_done_says_which_worker_it_has_kept_away_from(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended("done", capsys)
    assert code == 0
    assert "quarantine    here cpu (worker local0): step 7: w differs\n" in text


def test_whose_workers_are_all_in_quarantine_is_told_how_to_let_them_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended("waiting", capsys, waits_for="willing", reason="every worker is in quarantine")
    assert code == 1
    assert "error: job 'job' cannot run here: every worker is in quarantine" in text
    assert "| easyscale retry job lets devices out of quarantine, then run the same command again" in text
