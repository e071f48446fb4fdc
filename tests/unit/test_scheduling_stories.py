"""What our policy does in plain stories: the transcripts in `stories`, line by line. See `scheduling_stories.py`."""

from __future__ import annotations

import difflib

import pytest
from easyscale.coordinator.scheduling.policies import named
from unit.scheduling_stories import FOLDER, STORIES, kept, transcript


def difference(name: str, told: str) -> str:
    """Of what is told now from what is kept."""
    lines = difflib.unified_diff(
        kept(name).read_text().splitlines(), told.splitlines(), f"stories/{name}.txt", "now", n=99, lineterm=""
    )
    return "\n".join(lines)


@pytest.mark.parametrize("name", STORIES)
def test_a_story_goes_as_it_is_kept(name: str) -> None:
    if found := difference(name, transcript(STORIES[name])):
        pytest.fail(f"{found}\n\nif this is meant: make stories", pytrace=False)


def test_every_transcript_is_of_a_story() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == STORIES.keys()


def test_what_another_policy_does_can_be_read_in_the_difference() -> None:
    name = "a_short_job_arrives_beside_a_long_one"
    lines = difference(name, transcript(STORIES[name], named("fifo"))).splitlines()
    assert " " + "   0  long arrives   4     ." in lines
    assert "-" + " 300  short arrives  -     4" in lines
    assert "+" + " 300  short arrives  4     -" in lines
