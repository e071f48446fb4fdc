from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from easyscale.errors import CorruptError, NotFoundError, OutcomeUnknownError, UnavailableError
from easyscale.storage import commits, manifests, packs
from easyscale.storage.blobs import blob_key, get_blob, put_blob
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.storage.objects import Data

ZERO = "0" * 64


def tree(step: int = 3, value: float = 1.0) -> dict[str, Any]:
    return {
        "step": step,
        "model": {
            "parameters": {"w": torch.full((4, 3), value), "half": torch.ones(2, dtype=torch.bfloat16)},
            "buffers": {"mean": torch.zeros(3)},
        },
        "optimizer": {"state": {0: {"exp_avg": torch.full((4, 3), float(step))}}, "betas": (0.9, 0.999)},
        "best": float("inf"),
    }


def write(
    store: MemoryStore, state: dict[str, Any] | None = None, parent: str | None = None, **changes: Any
) -> commits.Commit:
    state = tree() if state is None else state
    settings: dict[str, Any] = {
        "job": "digits",
        "parent": parent,
        "spec": ZERO,
        "code": ZERO,
        "ests": 4,
        "determinism": {"torch": "2", "cpu": "x"},
        "generation": 1,
        "metrics": {"loss": 0.5},
        "history": b'{"step": 3}\n',
    }
    return commits.write_commit(store, commits.Snapshot.take(state["step"], state), **(settings | changes))


def write_chain(store: MemoryStore, steps: list[int]) -> list[commits.Commit]:
    chain: list[commits.Commit] = []
    for step in steps:
        chain.append(write(store, tree(step, step), chain[-1].manifest_digest if chain else None))
    return chain


def damage(store: MemoryStore, key: str, byte: int = -1) -> None:
    data = bytearray(store.get(key))
    data[byte] ^= 1
    store.put(key, data)


class KilledError(Exception):
    """Stands for the death of the process: nothing of ours catches it."""


class FailingStore(MemoryStore):
    """Raises `fault` at the write number `fail_at`, before or after having done it."""

    def __init__(self, fail_at: int, fault: type[Exception], *, applied: bool) -> None:
        super().__init__()
        self.fail_at, self.fault, self.applied, self.writes = fail_at, fault, applied, 0
        self._count_lock = threading.Lock()

    def _write(self, action: Callable[[], bool]) -> bool:
        with self._count_lock:
            self.writes += 1
            fails = self.writes == self.fail_at
        if not fails:
            return action()
        if self.applied:
            action()
        raise self.fault("no answer")

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        self._write(lambda: MemoryStore.put(self, key, data) is None)

    def create(self, key: str, data: Data) -> bool:
        return self._write(lambda: MemoryStore.create(self, key, data))


WRITES = 6  # three packs (buffers, parameters, optimizer), history, manifest, marker


def test_a_commit_comes_back_whole() -> None:
    store = MemoryStore()
    commit = write(store, metrics={"loss": float("nan"), "best": float("-inf"), "accuracy": 0.5})
    manifest, state = commits.read_commit(store, commit.manifest_digest)
    assert state["optimizer"]["betas"] == (0.9, 0.999)
    assert list(state) == list(tree())
    assert torch.equal(state["model"]["parameters"]["w"], tree()["model"]["parameters"]["w"])
    assert state["model"]["parameters"]["half"].dtype == torch.bfloat16
    assert (manifest.job, manifest.step, manifest.ests, manifest.parent) == ("digits", 3, 4, None)
    assert manifest.state_digest == commit.state_digest
    assert manifest.metrics == {"loss": "nan", "best": "-inf", "accuracy": 0.5}
    assert manifest.history is not None
    assert get_blob(store, manifest.history) == b'{"step": 3}\n'
    marker = commits.read_marker(store, "digits", 3)
    assert marker is not None
    assert (marker.manifest, marker.state_digest) == (commit.manifest_digest, commit.state_digest)


def test_an_empty_state_and_a_state_without_tensors_come_back() -> None:
    store = MemoryStore()
    for step, state in enumerate(({"step": 0}, {"step": 1, "none": {}})):
        commit = write(store, state)
        assert commits.read_commit(store, commit.manifest_digest)[1] == state
        assert commits.read_marker(store, "digits", step) is not None


def test_ten_thousand_small_tensors_make_few_objects() -> None:
    store = MemoryStore()
    parameters = {f"layer{i}": torch.full((3,), i) for i in range(10_000)}
    commit = write(store, {"step": 1, "model": {"parameters": parameters}})
    _, state = commits.read_commit(store, commit.manifest_digest)
    assert len(list(store.list(""))) == 4  # pack, history, manifest, marker
    assert all(torch.equal(state["model"]["parameters"][name], parameters[name]) for name in parameters)


def test_packs_that_did_not_change_are_stored_once() -> None:
    store = MemoryStore()
    first = write(store, tree(3))
    second = write(store, tree(4), first.manifest_digest)
    one, two = (manifests.read_manifest(store, commit.manifest_digest) for commit in (first, second))
    shared = {pack.digest for pack in one.packs} & {pack.digest for pack in two.packs}
    assert len(shared) == 2  # parameters and buffers; the optimizer's moved


def test_a_commit_is_six_writes_and_the_marker_is_the_last() -> None:
    class Recording(FailingStore):
        def create(self, key: str, data: Data) -> bool:
            commits.read_commit(self, json.loads(bytes(data))["manifest"])  # complete before it is visible
            assert self.writes == WRITES - 1
            return super().create(key, data)

    store = Recording(0, KilledError, applied=False)
    write(store)
    assert store.writes == WRITES


@pytest.mark.parametrize("fail_at", range(1, WRITES + 1))
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fault", [KilledError, OutcomeUnknownError])
def test_a_fault_at_any_write_leaves_no_half_commit(fail_at: int, fault: type[Exception], *, applied: bool) -> None:
    store = FailingStore(fail_at, fault, applied=applied)
    failed = False
    try:
        write(store)
    except fault:
        failed = True
    assert failed == (fault is KilledError or not applied)  # a lost answer is resolved by reading
    marker = commits.read_marker(store, "digits", 3)
    assert (marker is not None) == (not failed or (applied and fail_at == WRITES))
    commit = write(store)
    marker = commits.read_marker(store, "digits", 3)
    assert marker is not None
    assert marker.state_digest == commit.state_digest
    for digest in (marker.manifest, commit.manifest_digest):
        assert commits.read_commit(store, digest)[0].state_digest == commit.state_digest


def test_workers_that_commit_the_same_step_at_once_all_succeed() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda generation: write(store, generation=generation), range(8)))
    assert len({commit.state_digest for commit in written}) == 1
    assert len({commit.manifest_digest for commit in written}) == 8
    marker = commits.read_marker(store, "digits", 3)
    assert marker is not None
    assert marker.manifest in {commit.manifest_digest for commit in written}


def test_a_second_worker_with_the_same_state_agrees_and_keeps_its_own_manifest() -> None:
    store = MemoryStore()
    first = write(store, generation=1)
    second = write(store, generation=2)
    assert first.state_digest == second.state_digest
    assert first.manifest_digest != second.manifest_digest
    marker = commits.read_marker(store, "digits", 3)
    assert marker is not None
    assert marker.manifest == first.manifest_digest
    assert manifests.read_manifest(store, second.manifest_digest).generation == 2


def test_two_states_of_one_step_are_a_conflict_that_names_what_differs_and_keeps_both() -> None:
    store = MemoryStore()
    first = write(store)
    other = tree()
    other["model"]["parameters"]["w"][1, 1] += 1e-6
    other["best"] = 1.0
    with pytest.raises(commits.CommitConflictError, match="model/parameters/w") as conflict:
        write(store, other)
    assert conflict.value.differing == ["best", "model/parameters/w"]
    assert conflict.value.theirs == first.manifest_digest
    for digest in (conflict.value.ours, conflict.value.theirs):
        assert digest in str(conflict.value)
        commits.read_commit(store, digest)


def test_replicas_share_the_upload() -> None:
    class Counting(MemoryStore):
        sent: list[str] = []  # noqa: RUF012

        def put(self, key: str, data: Data, *, durable: bool = True) -> None:
            self.sent.append(key)
            super().put(key, data)

    store = Counting()
    snapshot = commits.Snapshot.take(3, tree())
    theirs = commits.upload_share(store, snapshot, 1, 2)
    assert store.sent == [blob_key(digest) for digest in theirs]
    commit = write(store, share=(0, 2), patience=60.0)
    assert len(store.sent) == len(set(store.sent)) == 5  # three packs, history, manifest
    commits.read_commit(store, commit.manifest_digest)


class Time:
    def __init__(self, on_sleep: Callable[[float], None] = lambda now: None) -> None:
        self.now, self.on_sleep = 100.0, on_sleep

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep(self.now)


def test_packs_of_a_replica_that_never_uploads_are_adopted_when_patience_ends() -> None:
    store, time = MemoryStore(), Time()
    commit = write(store, share=(1, 2), patience=5.0, clock=time.clock, sleep=time.sleep)
    assert time.now == pytest.approx(105.0)
    commits.read_commit(store, commit.manifest_digest)


def test_a_replica_that_is_late_is_waited_for() -> None:
    store = MemoryStore()
    snapshot = commits.Snapshot.take(3, tree())

    def upload_late(now: float) -> None:
        if now > 102:
            commits.upload_share(store, snapshot, 0, 2)

    time = Time(upload_late)
    commit = write(store, share=(1, 2), patience=60.0, clock=time.clock, sleep=time.sleep)
    assert time.now < 104
    commits.read_commit(store, commit.manifest_digest)


@pytest.mark.parametrize("fault", ["flip", "truncate", "missing"])
@pytest.mark.parametrize("kind", ["model/parameters", "model/buffers", "optimizer", "manifest"])
def test_damage_to_any_blob_is_found_named_and_answered_by_the_parent(kind: str, fault: str) -> None:
    store = MemoryStore()
    state = tree(2)
    state["model"]["buffers"]["mean"] += 1
    first = write(store, state)
    second = write(store, tree(3, 2.0), first.manifest_digest)
    manifest = manifests.read_manifest(store, second.manifest_digest)
    number = {packs.group(entry.name): entry.pack for entry in manifest.tensors}
    digest = second.manifest_digest if kind == "manifest" else manifest.packs[number[kind]].digest
    if fault == "missing":
        store.delete(blob_key(digest))
    elif fault == "truncate":
        store.put(blob_key(digest), store.get(blob_key(digest))[:-5])
    else:
        damage(store, blob_key(digest))
    with pytest.raises((CorruptError, NotFoundError), match=blob_key(digest)):
        commits.read_commit(store, second.manifest_digest)
    found, back, report = commits.read_latest(store, second.manifest_digest, at=("digits", 3))
    assert (found.step, back["step"], len(report)) == (2, 2, 1)
    assert blob_key(digest) in report[0]


def test_a_damaged_history_is_found_by_name() -> None:
    store = MemoryStore()
    manifest = manifests.read_manifest(store, write(store).manifest_digest)
    assert manifest.history is not None
    damage(store, blob_key(manifest.history))
    with pytest.raises(CorruptError, match=manifest.history):
        get_blob(store, manifest.history)


def test_an_undamaged_commit_is_read_without_a_word() -> None:
    store = MemoryStore()
    chain = write_chain(store, [1, 2])
    manifest, _, report = commits.read_latest(store, chain[-1].manifest_digest)
    assert (manifest.step, report) == (2, [])


def test_a_damaged_manifest_gives_way_to_another_workers_manifest_of_the_same_step() -> None:
    store = MemoryStore()
    first = write(store, generation=1)
    second = write(store, generation=2)
    damage(store, blob_key(second.manifest_digest))
    manifest, _, report = commits.read_latest(store, second.manifest_digest, at=("digits", 3))
    assert (manifest.generation, len(report)) == (1, 1)
    assert commits.read_commit(store, first.manifest_digest)[0] == manifest


def test_falling_back_is_bounded_and_lists_all_the_damage() -> None:
    store = MemoryStore()
    chain = write_chain(store, list(range(6)))
    for commit in chain[1:]:
        damage(store, blob_key(manifests.read_manifest(store, commit.manifest_digest).packs[-1].digest))
    newest = chain[-1].manifest_digest
    manifest, _, report = commits.read_latest(store, newest, max_back=5)
    assert (manifest.step, len(report)) == (0, 5)
    with pytest.raises(CorruptError, match="among the newest 4") as error:
        commits.read_latest(store, newest, max_back=3)
    assert all(f"step {step}:" in str(error.value) for step in (5, 4, 3, 2))


@pytest.mark.parametrize("at", [None, ("digits", 3), ("other", 3)])
def test_a_lone_commit_that_is_damaged_ends_in_an_error_and_not_in_a_loop(at: tuple[str, int] | None) -> None:
    store = MemoryStore()
    commit = write(store)
    damage(store, blob_key(commit.manifest_digest))
    with pytest.raises(CorruptError, match="no undamaged commit"):
        commits.read_latest(store, commit.manifest_digest, at=at)


def test_a_store_that_does_not_answer_is_no_reason_to_go_back() -> None:
    class Silent(MemoryStore):
        silent = ""

        def get(self, key: str) -> bytes:
            if key == self.silent:
                raise UnavailableError("no answer")
            return super().get(key)

    store = Silent()
    chain = write_chain(store, [1, 2])
    store.silent = blob_key(manifests.read_manifest(store, chain[-1].manifest_digest).packs[0].digest)
    with pytest.raises(UnavailableError):
        commits.read_latest(store, chain[-1].manifest_digest)


def test_committing_again_with_overwrite_heals_damaged_blobs() -> None:
    store = MemoryStore()
    commit = write(store)
    for key in list(store.list("blobs/")):
        damage(store, key)
    healed = write(store, overwrite=True)
    assert healed.state_digest == commit.state_digest
    commits.read_commit(store, healed.manifest_digest)


@pytest.mark.parametrize("nan", [0x7FC00001, 0x7F800001, 0xFFC00000, 0xFFFFFFFF], ids=hex)
def test_which_nan_it_is_comes_back_and_a_flip_among_nans_is_found_though_the_state_means_the_same(nan: int) -> None:
    def state(bits: int) -> dict[str, Any]:
        return {
            "step": 1,
            "x": torch.tensor([bits - (1 << 32) if bits >> 31 else bits], dtype=torch.int32).view(torch.float32),
        }

    store = MemoryStore()
    commit = write(store, state(nan))
    manifest, back = commits.read_commit(store, commit.manifest_digest)
    assert back["x"].view(torch.int32).item() & 0xFFFFFFFF == nan
    assert commit.state_digest == write(MemoryStore(), state(nan ^ 2)).state_digest
    key = blob_key(manifest.packs[0].digest)
    data = bytearray(store.get(key))
    data[-4] ^= 2
    store.put(key, data)
    with pytest.raises(CorruptError, match=f"{key} is damaged"):
        commits.read_commit(store, commit.manifest_digest)


@pytest.mark.parametrize("left", [0, 1, -1])
def test_a_torn_blob_that_no_commit_names_yet_is_sent_again_by_the_next_commit(left: int) -> None:
    store, lost = MemoryStore(), MemoryStore()
    write(lost)
    for key in lost.list("blobs/"):  # a power cut: the names are there, the bytes are not
        store.put(key, lost.get(key)[:left])
    commit = write(store)
    assert commits.read_commit(store, commit.manifest_digest)[0].state_digest == commit.state_digest


@pytest.mark.parametrize("share", [(0, 2), (1, 2), (2, 3)])
def test_whoever_heals_sends_the_packs_of_the_others_too(share: tuple[int, int]) -> None:
    for heal in (
        lambda store: write(store, overwrite=True, share=share),
        lambda store: commits.upload_share(store, commits.Snapshot.take(3, tree()), *share, overwrite=True),
    ):
        store = MemoryStore()
        commit = write(store)
        for pack in manifests.read_manifest(store, commit.manifest_digest).packs:
            damage(store, blob_key(pack.digest))
        heal(store)
        commits.read_commit(store, commit.manifest_digest)


def test_a_snapshot_of_another_step_than_it_is_taken_for_is_a_bug_and_not_a_commit() -> None:
    with pytest.raises(AssertionError, match="4"):
        commits.Snapshot.take(3, tree(4))


def test_a_parent_of_the_same_or_a_later_step_is_corrupt() -> None:
    store = MemoryStore()
    first = write(store, tree(5))
    second = write(store, tree(4), first.manifest_digest)
    with pytest.raises(CorruptError, match="of step 5 and parent of 4"):
        list(commits.chain(store, second.manifest_digest))


def test_a_pack_of_another_length_than_its_manifest_says_is_corrupt() -> None:
    store = MemoryStore()
    commit = write(store)
    pack = manifests.read_manifest(store, commit.manifest_digest).packs[0]
    store.put(blob_key(pack.digest), store.get(blob_key(pack.digest)) + b"tail")
    with pytest.raises(CorruptError, match=f"{pack.length + 4} bytes instead of {pack.length}"):
        commits.read_commit(store, commit.manifest_digest)


def test_a_damaged_marker_is_not_taken_for_divergence() -> None:
    store = MemoryStore()
    commit = write(store)
    key = commits.marker_key("digits", 3)
    good = store.get(key)
    other = hashlib.sha256(b"other").hexdigest()
    store.put(key, good.replace(commit.state_digest.encode(), other.encode()))
    with pytest.raises(CorruptError, match=key):
        write(store)
    for bad in (b"", b"{}", good[:-1], good.replace(b"3", b"4", 1), b'{"step":3,"manifest":"../../x"}', b"\xff"):
        store.put(key, bad)
        with pytest.raises(CorruptError, match=key):
            commits.read_marker(store, "digits", 3)


def test_a_commit_that_could_not_be_read_again_is_not_written() -> None:
    store = MemoryStore()
    with pytest.raises(CorruptError, match="code"):
        write(store, code="not a digest")
    assert commits.read_marker(store, "digits", 3) is None


def test_markers_sort_as_their_steps() -> None:
    store = MemoryStore()
    steps = [9000, 10000, 99999, 1, 999_999_999_999]
    for step in steps:
        write(store, tree(step))
    keys = sorted(store.list("jobs/digits/commits/"))
    assert keys == [commits.marker_key("digits", step) for step in sorted(steps)]
    assert commits.read_marker(store, "digits", 900) is None


def test_the_chain_leads_from_the_newest_to_the_first() -> None:
    store = MemoryStore()
    written = write_chain(store, [1, 2, 5])
    walked = list(commits.chain(store, written[-1].manifest_digest))
    assert [digest for digest, _ in walked] == [commit.manifest_digest for commit in reversed(written)]
    assert [manifest.step for _, manifest in walked] == [5, 2, 1]
    store.delete(blob_key(written[0].manifest_digest))
    with pytest.raises(NotFoundError):
        list(commits.chain(store, written[-1].manifest_digest))


def test_nonfinite_parameters_and_buffers_of_nan_are_named_and_the_optimizer_is_left_alone() -> None:
    state = tree()
    state["model"]["buffers"]["mean"][0] = float("-inf")
    assert commits.nonfinite(commits.Snapshot.take(3, state)) == [], "an attention mask"
    state["model"]["parameters"]["w"][0, 0] = float("inf")
    state["model"]["buffers"]["mean"][1] = float("nan")
    state["optimizer"]["state"][0]["exp_avg"][0] = float("inf")
    names = commits.nonfinite(commits.Snapshot.take(3, state))
    assert sorted(names) == ["model/buffers/mean", "model/parameters/w"]
    assert commits.nonfinite(commits.Snapshot.take(3, tree())) == []


def test_a_snapshot_taken_into_the_buffers_of_another_has_the_new_values() -> None:
    first = commits.Snapshot.take(1, tree(1, 1.0))
    again = commits.Snapshot.take(2, tree(2, 2.0), first)
    store = MemoryStore()
    assert again.tensors["model/parameters/w"].data_ptr() == first.tensors["model/parameters/w"].data_ptr()
    commit = commits.write_commit(
        *(store, again),
        job="j",
        parent=None,
        spec=ZERO,
        code=ZERO,
        ests=1,
        determinism={},
        generation=0,
        metrics={},
        history=None,
    )
    assert commit.state_digest == write(MemoryStore(), tree(2, 2.0)).state_digest


def manifest_with(**changes: Any) -> bytes:
    store = MemoryStore()
    good = json.loads(get_blob(store, write(store).manifest_digest))
    first = good["tensors"][0]
    for name, value in changes.items():
        if name.startswith("tensor_"):
            first[name.removeprefix("tensor_")] = value
        else:
            good[name] = value
    return json.dumps(good).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a valid manifest"),
        (b"[]", "not a valid manifest"),
        (b"\xff\xfe", "not a valid manifest"),
        (b'{"format": 1, "skeleton": ' + b"[" * 100_000, "not a valid manifest"),
        (manifest_with()[:-1], "not a valid manifest"),
        (manifest_with(format=2), "format 2; this EasyScale reads format 1"),
        (manifest_with(surprise=1), "surprise"),
        (manifest_with(parent="../../etc/passwd"), "parent"),
        (manifest_with(spec="A" * 64), "spec"),
        (manifest_with(state_digest="0" * 64 + "\n"), "state_digest"),
        (manifest_with(tensor_surprise=1), "surprise"),
        (manifest_with(tensor_digest="x"), "digest"),
        (manifest_with(tensor_codec="pickle"), "codec"),
        (manifest_with(tensor_pack=9), "tensor"),
        (manifest_with(tensor_pack=-1), "tensor"),
        (manifest_with(tensor_dtype="float31"), "float31"),
        (manifest_with(tensor_name="model/parameters/w"), "listed twice"),
        (manifest_with(metrics={"loss": "high"}), "metrics"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_manifests_are_corrupt_and_nothing_worse(data: bytes, says: str) -> None:
    with pytest.raises(CorruptError, match=says):
        manifests.decode_manifest(data)


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_dtype": "float64"},
        {"tensor_dtype": "float8_e5m2"},
        {"tensor_dtype": "complex64"},
        {"tensor_shape": [1, 3]},
        {"tensor_digest": ZERO},
        {"tensor_name": "model/buffers/other"},
        {"tensor_pack": 1},
        {"skeleton": {"dict": []}},
        {"skeleton": {"tensor": "nothing"}},
        {"skeleton": None},
        {"state_digest": ZERO},
        {"packs": [{"digest": ZERO, "length": 1}] * 3},
    ],
    ids=str,
)
def test_a_manifest_that_lies_about_its_state_is_found_out(change: dict[str, Any]) -> None:
    store = MemoryStore()
    write(store)
    digest = put_blob(store, manifest_with(**change))
    with pytest.raises((CorruptError, NotFoundError)):
        commits.read_commit(store, digest)


def test_equal_manifests_have_equal_bytes_whatever_the_order_of_their_dicts() -> None:
    store = MemoryStore()
    manifest = manifests.read_manifest(store, write(store, metrics={"a": 1.0, "b": 2.0}).manifest_digest)
    other = msgspec.structs.replace(
        manifest, metrics={"b": 2.0, "a": 1.0}, determinism=dict(reversed(manifest.determinism.items()))
    )
    assert list(other.metrics) != list(manifest.metrics)
    assert manifests.encode_manifest(other) == manifests.encode_manifest(manifest)
    assert manifests.decode_manifest(manifests.encode_manifest(other)) == manifest
