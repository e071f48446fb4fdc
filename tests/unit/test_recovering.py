"""Records made anew from the object store: whole, or with the reason why not; and nothing that is there is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Delete
from easyscale.errors import UserError
from easyscale.pipeline.forking import fork
from easyscale.pipeline.recovering import Recovered, recover
from easyscale.pipeline.submit import keep_submitted
from easyscale.pipeline.summary import read_job
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key
from histories import Place

if TYPE_CHECKING:
    from easyscale.coordinator.views import JobView


@pytest.fixture
def here() -> Place:
    """A job that was submitted with an older EasyScale: nothing but its commits tells of it."""
    return Place()


def lose(place: Place) -> None:
    """The key-value store is empty."""
    place.kv.txn((), (Delete(keys.JOBS, prefix=True),))
    assert place.kv.range("/") == []


def one(found: list[Recovered]) -> Recovered:
    (only,) = found
    return only


def kept(job: JobView) -> tuple[object, ...]:
    assert job.head is not None
    return job.head.value, msgspec.structs.replace(job.record, submitted=0.0)


def test_a_job_is_recovered_from_its_newest_commit_and_paused(here: Place) -> None:
    before = kept(here.job())
    here.store.put("jobs/job/lane/6/31/0", b"partials")
    here.store.put("jobs/job/logs/w-1/00000004", b"text")
    lose(here)
    found = one(recover(here.kv, here.store))
    assert (found.job, found.how, found.step, found.state) == ("job", "recovered", 30, "paused")
    job = here.job()
    assert kept(job) == before
    assert (job.desired, job.state, job.members) == ("paused", "paused", ())
    assert job.generation == 7, "no partials of former generations lie under the next one's number"
    assert job.logs["w-1"].chunks == 5


def test_recovering_again_changes_nothing(here: Place) -> None:
    lose(here)
    recover(here.kv, here.store)
    before = here.kv.range("/")
    assert one(recover(here.kv, here.store)).how == "known"
    assert here.kv.range("/") == before


def test_a_job_that_had_come_to_its_end_is_done(here: Place) -> None:
    here.commit("job", 100, None, here.job().record)
    lose(here)
    found = one(recover(here.kv, here.store))
    assert (found.step, found.state, here.job().state, here.job().desired) == (100, "done", "done", "running")


def test_a_job_is_recovered_as_it_was_last_submitted_also_without_a_commit(here: Place) -> None:
    record = msgspec.structs.replace(here.job().record, priority=7, submitted=123.0, rewound=2)
    keep_submitted(here.store, record)
    lose(here)
    recover(here.kv, here.store)
    assert here.job().record == record
    lose(here)
    for step in (10, 20, 30):
        here.store.delete(commits.marker_key("job", step))
    found = one(recover(here.kv, here.store))
    assert (found.how, found.step, found.state) == ("recovered", 0, "paused")
    assert (here.job().record, here.job().head) == (record, None)


def test_a_fork_is_recovered_as_one_with_and_without_its_submission(here: Place) -> None:
    fork(here.kv, here.store, here.job(), 20, "new", {})
    before = kept(here.job("new"))
    lose(here)
    recover(here.kv, here.store)
    assert kept(here.job("new")) == before
    assert here.job("new").record.forked == "job@20"
    lose(here)
    here.store.delete("jobs/new/submitted")
    recover(here.kv, here.store, ["new"])
    assert kept(here.job("new")) == before
    assert read_job(here.kv, "job") is None, "only the one that was named"


def test_a_submission_that_cannot_be_read_is_passed_over_for_the_newest_commit(here: Place) -> None:
    before = kept(here.job())
    here.store.put("jobs/job/submitted", b"rubbish")
    lose(here)
    assert one(recover(here.kv, here.store)).how == "recovered"
    assert kept(here.job()) == before


def test_a_newest_commit_whose_manifest_is_damaged_is_passed_over(here: Place) -> None:
    marker = commits.read_marker(here.store, "job", 30)
    assert marker is not None
    here.store.put(blob_key(marker.manifest), b"rubbish")
    lose(here)
    assert one(recover(here.kv, here.store)).step == 20
    assert here.head().step == 20


def test_a_job_that_cannot_be_recovered_is_named_and_the_others_are(here: Place) -> None:
    fork(here.kv, here.store, here.job(), 20, "new", {})
    spec = here.head("new").spec
    lose(here)
    here.store.delete(blob_key(spec))
    found = {one.job: one for one in recover(here.kv, here.store)}
    assert (found["job"].how, found["new"].how) == ("recovered", "lost")
    assert spec in found["new"].why
    assert read_job(here.kv, "new") is None


def test_records_older_than_the_newest_commit_are_left_alone_unless_told_otherwise(here: Place) -> None:
    old = commits.read_marker(here.store, "job", 10)
    assert old is not None
    head = records.Head(step=10, manifest=old.manifest, state_digest=old.state_digest, generation=1)
    here.put(keys.head("job"), head)
    here.put(keys.plan("job"), records.Plan(generation=4))
    before = here.kv.range("/")
    found = one(recover(here.kv, here.store))
    assert (found.how, found.step) == ("older", 30)
    assert "--advance" in found.why
    assert here.kv.range("/") == before
    assert one(recover(here.kv, here.store, advance=True)).how == "advanced"
    assert (here.head().step, here.job().generation, here.job().desired) == (30, 5, "paused")
    assert one(recover(here.kv, here.store, advance=True)).how == "known"


def test_a_job_that_is_being_run_is_never_advanced(here: Place) -> None:
    old = commits.read_marker(here.store, "job", 10)
    assert old is not None
    here.put(
        keys.head("job"),
        records.Head(step=10, manifest=old.manifest, state_digest=old.state_digest, generation=1),
    )
    here.put(keys.plan("job"), records.Plan(generation=4, members=(records.Member("w", 0, 2),)))
    here.put(keys.claim("job", 4, 0), records.Claim(worker="w", held=10))
    found = one(recover(here.kv, here.store, advance=True))
    assert (found.how, here.head().step) == ("known", 10)
    assert "being run" in found.why


def test_a_job_that_the_store_does_not_have_is_refused(here: Place) -> None:
    with pytest.raises(UserError, match=r"(?s)nothing of a job 'jab'.*it has: job"):
        recover(here.kv, here.store, ["jab"])
