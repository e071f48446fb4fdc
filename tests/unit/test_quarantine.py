"""Devices with wrong bits: which job keeps away from them, until when, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import quarantine, records
from easyscale.pipeline.submit import desire
from pictures import SOON, Story, status_of, worker_record

if TYPE_CHECKING:
    from typing import Any

GPU: dict[str, Any] = {"device": "cuda:0"}


def caught(story: Story, worker: str, **where: Any) -> None:
    """A worker's runner has ended for its wrong bits."""
    device = quarantine.device_of(worker_record(worker, **where))
    story.report(worker, "corrupt", 7, message="step 7: w differs", device=device)
    story.worker(worker, "idle", None, **where)
    story.decide(SOON)


def running(story: Story, **where: Any) -> None:
    story.job()
    for worker in "ab":
        story.worker(worker, **{"host": worker, **where})
    story.decide(SOON)
    story.claims(7, 7)


def assigned(story: Story) -> dict[str, str]:
    return {worker: entry.value for worker, entry in story.view().assigned.items()}


def test_the_job_goes_on_without_it_and_remembers_the_evidence(story: Story) -> None:
    running(story, **GPU)
    caught(story, "a", host="a", **GPU)
    assert status_of(story).quarantined == {"a cuda:0": "step 7: w differs"}
    assert status_of(story).attempts == {"corrupt": 1}
    assert status_of(story).streak == {}, "the job is not to blame"
    assert [member.worker for member in story.look().members] == ["b"]
    assert assigned(story) == {"b": "job"}
    story.claims(7)
    story.decide(SOON)
    assert status_of(story).state == "running"
    assert status_of(story).reason == "a is in quarantine: step 7: w differs", "while its worker is there, and idle"


def test_the_same_device_is_kept_away_under_another_name_too_and_people_are_told_why(story: Story) -> None:
    running(story, **GPU)
    caught(story, "a", host="a", **GPU)
    story.gone("a")
    story.gone("b")
    story.worker("again", "idle", None, host="a", **GPU)
    story.decide(SOON)
    story.decide(SOON)
    assert (status_of(story).state, status_of(story).waits_for) == ("waiting", "willing")
    assert status_of(story).reason == "every worker refused this job or is in quarantine: again: step 7: w differs"
    assert assigned(story) == {}


def test_another_job_may_use_it(story: Story) -> None:
    running(story, **GPU)
    caught(story, "a", host="a", **GPU)
    story.job("other")
    story.decide(SOON)
    assert assigned(story) == {"a": "other", "b": "job"}


def test_cpu_workers_of_one_machine_do_not_answer_for_each_other(story: Story) -> None:
    running(story, host="here")
    caught(story, "a", host="here")
    assert list(status_of(story).quarantined) == ["here cpu (worker a)"]
    assert [member.worker for member in story.look().members] == ["b"]


@pytest.mark.parametrize("state", ["running", "failed"])
def test_retry_lets_it_out_and_resume_does_not(story: Story, state: str) -> None:
    story.job()
    story.status(state=state, quarantined={"here cuda:0": "w differs"})
    desire(story.kv, "job", "running")
    assert status_of(story).quarantined == {"here cuda:0": "w differs"}
    desire(story.kv, "job", "running", forgive=True)
    assert status_of(story).quarantined == {}


def test_what_is_remembered_stays_small(story: Story) -> None:
    story.job()
    story.status(quarantined={f"host{i} cuda:0": "x" * quarantine.MAX_EVIDENCE for i in range(quarantine.KEPT)})
    story.report("a", "corrupt", message="\x00" * 10_000, device="new cuda:0")
    story.decide(SOON)
    found = status_of(story)
    assert [*found.quarantined][-1] == "new cuda:0"
    assert len(found.quarantined) == quarantine.KEPT
    assert len(records.encode(found)) < 50_000
