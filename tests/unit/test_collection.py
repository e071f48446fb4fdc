"""What is removed, what is not, and what is said of it, with nobody else at work."""

from __future__ import annotations

import msgspec
import pytest
from collecting import SPEC, Stage, stage
from easyscale.errors import CorruptError, UserError
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key, get_blob, put_blob
from easyscale.storage.collected import note_prefix, read_notes
from easyscale.storage.collection import DEFAULT_AGE, SAFE_AGE
from easyscale.storage.manifests import read_manifest
from easyscale.storage.references import Known
from easyscale.storage.retention import Best, Policy
from easyscale.storage.submitted import submitted_key

__all__ = ["stage"]


def later(stage: Stage) -> Stage:
    stage.now += DEFAULT_AGE
    return stage


def test_a_dry_run_says_what_would_go_and_changes_nothing(stage: Stage) -> None:
    stage.write("a", range(8))
    before = {key: stage.store.get(key) for key in stage.store.list("")}
    would = later(stage).collect(delete=False)
    assert {key: stage.store.get(key) for key in stage.store.list("")} == before
    did = stage.collect()
    assert (would.objects, would.bytes, would.jobs) == (did.objects, did.bytes, did.jobs)
    assert (would.deleted, did.deleted) == (False, True)
    assert did.objects == len(before) + 1 - len(list(stage.store.list("")))
    (part,) = did.jobs
    assert (part.kept, part.collected, part.before) == ([70, 80], [10, 20, 30, 40, 50, 60], 0)
    assert stage.collect().jobs[0].before == 6


def test_a_collected_commit_keeps_its_manifest_its_history_and_its_marker(stage: Stage) -> None:
    stage.write("a", range(6))
    later(stage).collect()
    chain = [*commits.chain(stage.store, stage.heads["a"][1])]
    assert [manifest.step for _, manifest in chain] == [60, 50, 40, 30, 20, 10]
    assert all(commits.read_marker(stage.store, "a", manifest.step) is not None for _, manifest in chain)
    assert [get_blob(stage.store, manifest.history) for _, manifest in chain if manifest.history][-1] == b"10\n"
    assert stage.whole("a") == [60, 50]
    assert read_notes(stage.store, "a") == {digest for digest, manifest in chain if manifest.step < 50}


def test_a_pack_that_a_kept_commit_shares_with_a_collected_one_stays(stage: Stage) -> None:
    stage.write("a", [7, 8, 9, 7, 7])
    later(stage).collect()
    assert stage.whole("a") == [50, 40, 10], "the first commit has the same packs"


def test_what_is_young_stays_whoever_names_it(stage: Stage) -> None:
    stage.write("a", range(5))
    orphan = put_blob(stage.store, b"nobody names me")
    stage.now += SAFE_AGE
    assert stage.collect().objects == 0, "an age is not told to the second"
    assert stage.store.exists(blob_key(orphan))
    stage.now += 3.0
    assert stage.collect().objects > 0
    assert not stage.store.exists(blob_key(orphan))


def test_without_a_rule_only_what_nothing_names_goes(stage: Stage) -> None:
    stage.write("a", range(5))
    put_blob(stage.store, b"nobody names me")
    found = later(stage).collect(Policy())
    assert (found.objects, found.bytes) == (1, len(b"nobody names me"))
    assert stage.whole("a") == [50, 40, 30, 20, 10]
    assert not list(stage.store.list(note_prefix("a")))


def test_specifications_and_code_of_known_jobs_stay_though_they_have_no_commit(stage: Stage) -> None:
    spec = put_blob(stage.store, b"spec")
    later(stage)
    stage.known = lambda: [Known("new", (), (spec,), 0, over=False)]  # type: ignore[method-assign]
    assert stage.collect().objects == 0
    assert get_blob(stage.store, spec) == b"spec"


def test_what_a_stage_of_a_pipeline_starts_from_stays_however_old(stage: Stage) -> None:
    stage.write("a", range(6))
    later(stage)
    alone = stage.known()
    stage.known = lambda: [*alone, Known("p.b", (), (), 0, over=True, inputs=(("a", 20), ("a", 25), ("x", 1)))]  # type: ignore[method-assign]
    (part,) = stage.collect().jobs
    assert part.kept == [20, 50, 60]
    assert stage.whole("a") == [60, 50, 20]
    stage.known = lambda: alone  # type: ignore[method-assign]
    assert stage.collect().jobs[0].collected == [20]
    stage.known = lambda: [*alone, Known("p.b", (), (), 0, over=True, inputs=(("a", 20),))]  # type: ignore[method-assign]
    assert stage.collect().jobs[0].kept == [50, 60], "what went before is not counted as kept"


def test_a_job_that_the_key_value_store_does_not_know_is_kept_whole(stage: Stage) -> None:
    stage.write("a", range(5))
    stage.write("b", range(10, 15))
    del stage.heads["a"]
    later(stage).collect()
    assert commits.read_marker(stage.store, "a", 10) is not None
    stage.heads["a"] = 50, marker_of(stage, "a", 50)
    assert stage.whole("a") == [50, 40, 30, 20, 10]
    assert stage.whole("b") == [50, 40]


def marker_of(stage: Stage, job: str, step: int) -> str:
    marker = commits.read_marker(stage.store, job, step)
    assert marker is not None
    return marker.manifest


def test_only_the_named_jobs_lose_commits(stage: Stage) -> None:
    stage.write("a", range(5))
    stage.write("b", range(10, 15))
    later(stage).collect(only={"b"})
    assert stage.whole("a") == [50, 40, 30, 20, 10]
    assert stage.whole("b") == [50, 40]


def test_a_commit_beyond_the_head_is_kept_since_it_is_about_to_be_published(stage: Stage) -> None:
    stage.write("a", range(6))
    stage.heads["a"] = 20, marker_of(stage, "a", 20)
    later(stage).collect()
    stage.heads["a"] = 60, marker_of(stage, "a", 60)
    assert stage.whole("a") == [60, 50, 40, 30, 20]


def test_the_best_commits_are_kept(stage: Stage) -> None:
    stage.write("a", [3, 9, 1, 4, 5, 6])
    later(stage).collect(Policy(best=(Best("value"), Best("value", "min"))))
    assert stage.whole("a") == [60, 50, 30, 20]
    with pytest.raises(UserError, match="no commit has such a metric"):
        stage.collect(Policy(best=(Best("valeu"),)))


def test_a_damaged_head_goes_back_over_collected_commits_to_one_that_is_whole(stage: Stage) -> None:
    stage.write("a", range(14))
    later(stage).collect(Policy(best=(Best("value", "min"),)))
    assert stage.whole("a") == [140, 130, 10]
    for step in (140, 130):
        manifest = read_manifest(stage.store, marker_of(stage, "a", step))
        stage.store.put(blob_key(manifest.packs[0].digest), b"rubbish")
    manifest, _, damage = commits.read_latest(stage.store, stage.heads["a"][1], at=("a", 140))
    assert manifest.step == 10
    assert len(damage) == 2, f"eleven that were collected are no damage: {damage}"


def test_a_lost_pack_of_a_commit_that_was_not_collected_is_damage_all_the_same(stage: Stage) -> None:
    stage.write("a", range(6))
    later(stage).collect()
    manifest = read_manifest(stage.store, stage.heads["a"][1])
    stage.store.delete(blob_key(manifest.packs[0].digest))
    found, _, damage = commits.read_latest(stage.store, stage.heads["a"][1])
    assert found.step == 50
    assert manifest.packs[0].digest in damage[0]


def test_a_manifest_that_cannot_be_read_stops_the_collection_unless_it_is_given_up(stage: Stage) -> None:
    stage.write("a", range(6))
    digest = marker_of(stage, "a", 30)
    packs = {pack.digest for pack in read_manifest(stage.store, digest).packs}
    stage.store.put(blob_key(digest), b"rubbish")
    later(stage)
    assert stage.collect(delete=False).problems
    with pytest.raises(CorruptError, match=f"(?s){digest}.*--despite-damage"):
        stage.collect()
    assert all(stage.store.exists(blob_key(pack)) for pack in packs)
    assert not list(stage.store.list(note_prefix("a")))
    assert stage.collect(despite=True).objects > 0
    assert stage.store.exists(blob_key(digest)), "a backup may mend what is damaged"


def test_a_head_in_another_store_stops_the_collection(stage: Stage) -> None:
    stage.write("a", range(3))
    stage.heads["elsewhere"] = 5, "e" * 64
    with pytest.raises(CorruptError, match="e" * 64):
        later(stage).collect()


def test_a_manifest_of_a_newer_version_stops_the_collection(stage: Stage) -> None:
    stage.write("a", range(3))
    newer = stage.store.get(blob_key(stage.heads["a"][1])).replace(b'"format":1', b'"format":2')
    stage.heads["a"] = 30, put_blob(stage.store, newer)
    with pytest.raises(CorruptError, match="use the version that wrote it"):
        later(stage).collect()


def test_partials_of_older_generations_go_and_those_of_the_current_one_stay(stage: Stage) -> None:
    stage.write("a", [1])
    for generation in (0, 1):
        stage.store.put(f"jobs/a/lane/{generation}/5/0", b"partials")
    stage.store.put("jobs/unknown/lane/0/5/0", b"partials")
    later(stage).collect()
    assert [*stage.store.list("jobs/a/lane/")] == ["jobs/a/lane/1/5/0"]
    assert [*stage.store.list("jobs/unknown/")] == ["jobs/unknown/lane/0/5/0"]


def test_the_beginning_of_a_fork_is_kept_since_it_cannot_be_computed_from_what_is_before_it(stage: Stage) -> None:
    stage.write("a", range(3))
    stage.heads["fork"] = stage.heads["a"]
    for step, value in enumerate(range(20, 26), 3):
        stage.commit("fork", 10 * step, value)
    later(stage).collect()
    assert stage.whole("fork") == [80, 70, 30]


def test_a_key_that_is_not_ours_is_left_alone(stage: Stage) -> None:
    stage.store.put("blobs/readme.txt", b"hands off")
    stage.store.put("elsewhere/thing", b"hands off")
    later(stage).collect()
    assert [*stage.store.list("")] == ["blobs/readme.txt", "elsewhere/thing"]


def test_the_specification_named_by_a_manifest_stays(stage: Stage) -> None:
    stage.write("a", range(3))
    outline = read_manifest(stage.store, stage.heads["a"][1])
    assert outline.spec == SPEC
    spec = put_blob(stage.store, b"old spec")
    written = commits.write_commit(
        stage.store, commits.Snapshot.take(40, {"step": 40}), job="a", parent=stage.heads["a"][1], spec=spec,
        code=SPEC, ests=1, determinism={}, generation=1, metrics={}, history=None,
    )  # fmt: skip
    stage.heads["a"] = 40, written.manifest_digest
    later(stage).collect()
    assert get_blob(stage.store, spec) == b"old spec"


def test_what_a_job_was_last_submitted_with_stays_though_its_records_are_lost(stage: Stage) -> None:
    spec, code = put_blob(stage.store, b"spec"), put_blob(stage.store, b"code")
    stage.store.put(submitted_key("lost"), msgspec.json.encode({"spec": spec, "code": code, "steps": 5}))
    stage.store.put(submitted_key("broken"), b"rubbish")
    assert later(stage).collect().objects == 0
    assert get_blob(stage.store, spec) == b"spec"
