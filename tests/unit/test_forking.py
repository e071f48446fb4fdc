"""Forks and rewinds: what they write, what they refuse, and that they are whole or have not happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from collecting import CODE
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from easyscale.coordinator import keys, past, records
from easyscale.errors import CorruptError, NotFoundError, UserError
from easyscale.pipeline.collecting import known_jobs
from easyscale.pipeline.commit_checks import markers
from easyscale.pipeline.forking import fork, rewind
from easyscale.pipeline.spec import Input, JobSpec
from easyscale.pipeline.submit import record_of
from easyscale.pipeline.summary import read_job
from easyscale.storage import blobs, commits
from easyscale.storage.blobs import blob_key
from easyscale.storage.collected import write_note
from easyscale.storage.manifests import read_manifest
from easyscale.storage.signatures import SIGNING_KEY, TRUSTED_KEYS, Signer, Trusted
from histories import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here() -> Place:
    return Place()


def test_the_generation_that_a_rewind_ends_is_kept_for_those_who_look(here: Place) -> None:
    members = (records.Member("a", 0, 2),)
    here.put(keys.plan("job"), records.Plan(generation=3, members=members, cause="a joins"))
    here.put(keys.progress("job"), records.Progress(step=33, started=12, generation=3))
    rewind(here.kv, here.store, "job", 10)
    (kept,) = past.read(here.kv, "job")
    assert (kept.generation, kept.first, kept.last, kept.members) == (3, 12, 33, members)


# ---- fork


def test_a_fork_begins_with_the_commit_and_shares_all_its_packs(here: Place) -> None:
    made = here.fork(20)
    assert (made.job, made.step, made.steps) == ("new", 20, 100)
    manifest, state = commits.read_commit(here.store, made.manifest)
    source = commits.read_marker(here.store, "job", 20)
    assert source is not None
    assert (manifest.job, manifest.step, manifest.parent) == ("new", 20, source.manifest)
    assert manifest.packs == read_manifest(here.store, source.manifest).packs
    assert manifest.state_digest == source.state_digest
    assert state["model"]["parameters"]["w"].tolist() == [20.0] * 3
    job = here.job("new")
    assert job.record.forked == "job@20"
    assert JobSpec.decode(here.store.get(blob_key(job.record.spec))).name == "new"
    assert job.head is not None
    assert (job.head.value.step, job.head.value.manifest, job.desired) == (20, made.manifest, "running")
    assert markers(here.store, "new") == [20]
    assert here.head().step == 30, "the other one goes on undisturbed"


def test_a_fork_of_a_stage_is_no_stage_and_a_pipelines_name_is_taken(here: Place) -> None:
    spec = JobSpec.decode(here.store.get(blob_key(here.job().record.spec)))
    given = {"x": Input(job="p.x", step=1, state_digest="a" * 64)}
    spec = msgspec.structs.replace(spec, pipeline="job", name="job.a", inputs=given)
    record = record_of(spec, blobs.put_blob(here.store, spec.encode()), here.job().record.code)
    here.put(keys.spec("job"), record)
    made = here.fork(20)
    assert here.job("new").record.pipeline == ""
    forked = JobSpec.decode(here.store.get(blob_key(here.job("new").record.spec)))
    assert (forked.pipeline, forked.inputs) == ("", given)
    assert made.step == 20
    (stage,) = [one for one in known_jobs(here.kv, here.store) if one.job == "job"]
    assert stage.inputs == (("p.x", 1),)
    (fork,) = [one for one in known_jobs(here.kv, here.store) if one.job == "new"]
    assert fork.inputs == (("p.x", 1),)
    here.put(keys.pipeline("q"), records.PipelineRecord(name="q", stages=()))
    with pytest.raises(UserError, match="there is a pipeline 'q' already"):
        here.fork(20, "q")


def test_the_call_of_a_function_is_not_forked(here: Place) -> None:
    spec = JobSpec.decode(here.store.get(blob_key(here.job().record.spec)))
    spec = msgspec.structs.replace(spec, kind="function")
    here.put(keys.spec("job"), record_of(spec, blobs.put_blob(here.store, spec.encode()), here.job().record.code))
    with pytest.raises(UserError, match="is one call of a function: there is nothing to go on with"):
        here.fork(20)


def test_the_history_of_a_fork_ends_with_its_own_first_commit(here: Place) -> None:
    made = here.fork(None)
    later = here.commit("new", 40, made.manifest, here.job("new").record)
    assert [manifest.step for _, manifest in commits.chain(here.store, later)] == [40, 30]
    for digest in (later, made.manifest):
        here.store.delete(blob_key(read_manifest(here.store, digest).packs[0].digest))
    with pytest.raises(CorruptError, match="no undamaged commit"):
        commits.read_latest(here.store, later, at=("new", 40))


def test_a_fork_is_signed_if_its_job_was(here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "key"))
    monkeypatch.delenv(TRUSTED_KEYS, raising=False)
    keys = Trusted((key.public_key(),))
    with pytest.raises(UserError, match="is not signed"):
        here.fork(20)
    assert read_job(here.kv, "new") is None
    old = here.job("job").record
    Signer(key).sign(here.store, old.spec)
    here.fork(20)
    assert keys.signed(here.store, here.job("new").record.spec)
    assert not keys.signed(here.store, old.code), "a fork vouches for no code"


def test_a_fork_may_have_other_settings_and_hyper_parameters(here: Place) -> None:
    made = here.fork(10, steps="50", lr="0.025", commit_every="5")
    spec = JobSpec.decode(here.store.get(blob_key(here.job("new").record.spec)))
    assert (spec.steps, spec.epochs, spec.commit_every) == (50, None, 5)
    assert here.job("new").record.steps == made.steps == 50
    manifest, state = commits.read_commit(here.store, made.manifest)
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.025
    source = read_manifest(here.store, manifest.parent or "")
    assert (manifest.packs == source.packs, manifest.state_digest == source.state_digest) == (True, False)


@pytest.mark.parametrize(
    ("step", "name", "changes", "words"),
    [
        (15, "new", {}, "no commit of step 15\n.*30, 20, 10"),
        (40, "new", {}, "no commit of step 40"),
        (10, "job", {}, "there is a job 'job' already"),
        (10, "a/b", {}, "cannot be used"),
        (10, "new", {"seed": "5"}, "seed defines what a step is"),
        (10, "new", {"steps": "10"}, "--set steps=20"),
        (10, "new", {"steps": "many"}, "is not a value for steps"),
        (10, "new", {"clip_norm": "-1"}, "must be positive"),
        (10, "new", {"lrr": "1"}, "no such hyper-parameter"),
    ],
)
def test_what_cannot_be_forked_is_refused_and_leaves_nothing(
    here: Place, step: int, name: str, changes: dict[str, str], words: str
) -> None:
    before = [here.kv.range(""), sorted(here.store.list(""))]
    with pytest.raises(UserError, match=f"(?s){words}"):
        here.fork(step, name, **changes)
    assert [here.kv.range(""), sorted(here.store.list(""))] == before


def test_a_commit_that_was_collected_cannot_be_forked_or_gone_back_to(here: Place) -> None:
    marker = commits.read_marker(here.store, "job", 10)
    assert marker is not None
    write_note(here.store, "job", [marker.manifest])
    here.store.delete(blob_key(read_manifest(here.store, marker.manifest).packs[0].digest))
    for act in (lambda: here.fork(10), lambda: rewind(here.kv, here.store, "job", 10)):
        with pytest.raises(UserError, match=r"(?s)step 10 was collected.*30, 20$"):
            act()


def test_a_damaged_commit_is_not_forked(here: Place) -> None:
    here.store.put(blob_key(here.head().packs[0].digest), b"rubbish")
    with pytest.raises(CorruptError, match="is damaged"):
        here.fork(None)
    assert read_job(here.kv, "new") is None


def test_what_a_fork_relies_on_is_made_young_so_that_no_collection_takes_it(here: Place) -> None:
    here.now += blobs.FRESH_SECONDS
    made = here.fork(10)
    manifest = read_manifest(here.store, made.manifest)
    for digest in [pack.digest for pack in manifest.packs] + [manifest.spec, manifest.code, made.manifest]:
        seen = here.store.look(blob_key(digest))
        assert seen is not None
        assert seen.age == 0.0


class KilledError(Exception):
    """Stands for the death of the process."""


@pytest.mark.parametrize("writes", range(1, 8))
def test_a_fork_that_dies_at_any_write_is_made_whole_by_the_next(
    here: Place, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [writes]

    def dying(call: Any) -> Any:
        def write(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError
            return call(*arguments, **more)

        return write

    here.now += blobs.FRESH_SECONDS
    with monkeypatch.context() as patch:
        for name in ("put", "create"):
            patch.setattr(here.store, name, dying(getattr(here.store, name)))
        patch.setattr(here.kv, "txn", dying(here.kv.txn))
        try:
            here.fork(10, lr="0.05")
        except KilledError:
            assert read_job(here.kv, "new") is None
            died = True
        else:
            died = False
    if died:
        made = here.fork(10, lr="0.01")
        assert commits.read_commit(here.store, made.manifest)[1]["optimizer"]["param_groups"][0]["lr"] == 0.01
    marker = commits.read_marker(here.store, "new", 10)
    head = here.job("new").head
    assert marker is not None
    assert head is not None
    assert marker.manifest == head.value.manifest


def test_another_history_of_that_name_in_the_store_is_refused(here: Place) -> None:
    here.commit("other", 10, None, here.job().record)
    with pytest.raises(UserError, match="that this key-value store does not know"):
        fork(here.kv, here.store, here.job(), 10, "other", {})


# ---- rewind


def test_a_rewound_job_goes_on_from_an_earlier_commit_and_is_paused(here: Place) -> None:
    here.put(keys.plan("job"), records.Plan(generation=7, members=(records.Member("w", 0, 2),)))
    here.put(keys.status("job"), records.Status(state="running", attempts={"died": 2}, streak={"died": 1}))
    here.put(keys.damage("job"), records.Damage(manifest="m", usable_step=0, usable_manifest=None))
    before = rewind(here.kv, here.store, "job", 10)
    assert before.head is not None
    assert before.head.value.step == 30
    job = here.job()
    assert here.head().step == 10
    assert (job.desired, job.state, job.damage, job.record.rewound) == ("paused", "paused", None, 1)
    assert (job.generation, job.members) == (8, ()), "whatever runs is fenced off"
    assert job.status is not None
    assert (job.status.value.attempts, job.status.value.streak) == ({"died": 2}, {})
    assert markers(here.store, "job") == [10], "other code may come to other states there"
    assert here.commit("job", 20, job.head.value.manifest if job.head else None, job.record, value=0.5)


def test_rewinding_again_is_harmless_and_finishes_what_was_left(here: Place) -> None:
    rewind(here.kv, here.store, "job", 10)
    stale = commits.marker_key("job", 20)
    here.store.put(stale, b"left by one that died")
    rewind(here.kv, here.store, "job", 10)
    assert not here.store.exists(stale)
    assert here.head().step == 10


def test_a_job_goes_back_to_its_beginning_and_a_fork_to_its_own(here: Place) -> None:
    made = here.fork(20)
    here.commit("new", 40, made.manifest, here.job("new").record)
    with pytest.raises(UserError, match=r"began with commit job@20.*\n.*--to 20"):
        rewind(here.kv, here.store, "new", 0)
    rewind(here.kv, here.store, "new", 20)
    assert here.head("new").step == 20
    rewind(here.kv, here.store, "job", 0)
    assert (here.job().head, markers(here.store, "job")) == (None, [])


def test_a_step_without_a_commit_is_refused_and_nothing_changes(here: Place) -> None:
    before = here.kv.range("")
    with pytest.raises(UserError, match=r"(?s)no commit of step 12.*30, 20, 10"):
        rewind(here.kv, here.store, "job", 12)
    assert here.kv.range("") == before


def test_what_is_submitted_again_stays_a_fork_and_keeps_count_of_rewinds(here: Place) -> None:
    from easyscale.pipeline import submit

    here.fork(20)
    rewind(here.kv, here.store, "new", 20)
    view = here.job("new")
    assert view.spec is not None
    fresh = record_of(JobSpec.decode(here.store.get(blob_key(view.record.spec))), view.record.spec, CODE)
    submit._write(here.kv, view, fresh, redefined=True)
    assert (here.job("new").record.forked, here.job("new").record.rewound) == ("job@20", 1)


def test_a_history_that_cannot_be_read_is_no_point_to_begin_with(here: Place) -> None:
    head = here.job().head
    assert head is not None
    here.store.delete(blob_key(head.value.manifest))
    with pytest.raises(NotFoundError):
        here.fork(10)
