"""Commits under the faults of real stores: killed at any write, no room, torn files. Numbers are those of faults.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import CorruptError, UnavailableError
from easyscale.storage import commits
from easyscale.storage.files import FileStore
from easyscale.storage.objects import open_store
from user import no_file_above

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import S3Server

ZERO = "0" * 64


def state(step: int) -> dict[str, Any]:
    """Of a few packs, different at every step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "model": {
            "parameters": {"w": torch.randn(300, 400, generator=generator)},
            "buffers": {"n": torch.tensor(step)},
        },
        "optimizer": {"state": {0: {"m": torch.randn(300, 400, generator=generator)}}},
    }


def commit(store: Any, step: int, parent: str | None = None, **options: Any) -> commits.Commit:
    return commits.write_commit(
        store, commits.Snapshot.take(step, state(step)), job="job", parent=parent, spec=ZERO, code=ZERO, ests=1,
        determinism={}, generation=1, metrics={}, history=b"{}\n", **options,
    )  # fmt: skip


def assert_whole(store: Any, step: int) -> None:
    """The marked commit of a step is there, to the bit."""
    marker = commits.read_marker(store, "job", step)
    assert marker is not None
    _, found = commits.read_commit(store, marker.manifest)
    for group in ("parameters", "buffers"):
        for name, tensor in state(step)["model"][group].items():
            assert torch.equal(found["model"][group][name], tensor)


# --- 29: SIGKILL at each of the writes of a commit --------------------------------------------------------------------

KILLED_AT_EACH = '''
import http.client, itertools, os, pathlib, signal, sys
sys.path[:0] = [sys.argv[1], str(pathlib.Path(sys.argv[1]).parent)]
import torch
from test_commit_faults import commit
from easyscale.storage.objects import open_store

torch.set_num_threads(1)

def killed_at(number):
    """Die just before call number `number` of those that change something, in the store or on the wire."""
    calls = itertools.count(1)
    def counted(owner, name):
        original = getattr(owner, name)
        def wrapper(*args, **options):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)
        setattr(owner, name, wrapper)
    if sys.argv[2].startswith("s3"):
        counted(http.client.HTTPConnection, "send")
    else:
        for name in ("fsync", "link", "replace", "mkdir", "unlink"):
            counted(os, name)

for number in itertools.count(1):
    child = os.fork()
    if child == 0:
        try:
            store = open_store(f"{sys.argv[2]}/{number}")
            first = commit(store, 1)
            killed_at(number)
            commit(store, 2, first.manifest_digest)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        print(number)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
'''


@pytest.mark.parametrize("kind", ["files", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)])
def test_29_a_process_killed_at_any_write_of_a_commit_leaves_no_half_commit_and_the_next_one_succeeds(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    address = f"file://{tmp_path}"
    if kind == "seaweedfs":
        server: S3Server = request.getfixturevalue(kind)
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        address = f"s3://{server.new_bucket()}"
    command = [sys.executable, "-c", KILLED_AT_EACH, str(Path(__file__).parent), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    points = int(done.stdout.splitlines()[-1])
    assert points > 12, "six objects, each several calls"
    visible = 0
    for number in range(1, points):
        store = open_store(f"{address}/{number}")
        assert_whole(store, 1)
        if commits.read_marker(store, "job", 2) is not None:
            visible += 1
            assert_whole(store, 2)
        first = commits.read_marker(store, "job", 1)
        assert first is not None
        commit(store, 2, first.manifest)
        assert_whole(store, 2)
    assert visible < points / 2, "the marker comes last"


# --- 27: the disk fills while saving; a file is cut short -------------------------------------------------------------


def rubbish(folder: Path) -> list[Path]:
    return list((folder / "~tmp").iterdir())


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New files are on a device that is full: the kernel itself says ENOSPC."""
    original = Path.open

    def on_full_device(self: Path, mode: str = "r", buffering: int = -1) -> Any:
        if mode != "xb":
            return original(self, mode, buffering)
        original(self, mode).close()
        return original(Path("/dev/full"), "wb", buffering)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", on_full_device)
        yield


@pytest.mark.parametrize("how", ["full", "cut short"])
def test_27_a_full_disk_is_named_with_what_is_needed_the_head_is_intact_and_the_commit_succeeds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = FileStore(tmp_path)
    first = commit(store, 1)
    fault = full_disk(monkeypatch) if how == "full" else no_file_above(100_000)
    with fault, pytest.raises(UnavailableError) as caught:
        commit(store, 2, first.manifest_digest)
    text = str(caught.value)
    assert ("No space left on device" if how == "full" else "File too large") in text
    assert f"{tmp_path}/blobs/" in text
    assert re.search(r": 480,\d{3} bytes needed, [\d,]+ bytes free", text)
    assert "make room" in text
    assert rubbish(tmp_path) == []
    assert commits.read_marker(store, "job", 2) is None
    assert_whole(store, 1)
    commit(store, 2, first.manifest_digest)
    assert_whole(store, 2)


@pytest.mark.parametrize("left", [0, 1000])
def test_27_a_blob_that_a_power_cut_cut_short_is_found_by_its_hash_and_healed_by_the_next_commit(
    tmp_path: Path, left: int
) -> None:
    store = FileStore(tmp_path)
    first = commit(store, 1)
    second = commit(store, 2, first.manifest_digest)
    torn = commits.read_commit(store, second.manifest_digest)[0].packs[1].digest
    os.truncate(store.path(f"blobs/{torn[:2]}/{torn}"), left)
    with pytest.raises(CorruptError, match=torn):
        commits.read_commit(store, second.manifest_digest)
    manifest, _, damage = commits.read_latest(store, second.manifest_digest)
    assert (manifest.step, len(damage)) == (1, 1)
    assert torn in damage[0]
    commit(store, 2, first.manifest_digest)  # without `overwrite`: nobody needs to have noticed
    assert_whole(store, 2)


# --- 30, 31, 32: order ------------------------------------------------------------------------------------------------


def test_30_a_marker_is_on_disk_only_after_everything_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    at_the_marker: list[set[str]] = []
    original, link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        original(descriptor)
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def linking(source: Any, target: Any) -> None:
        at_the_marker.append(set(synced))
        link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linking)
    store = FileStore(tmp_path)
    written = commit(store, 9)
    manifest, _ = commits.read_commit(store, written.manifest_digest)
    assert manifest.history is not None
    named = [*(pack.digest for pack in manifest.packs), manifest.history, written.manifest_digest]
    (before,) = at_the_marker
    assert {str(store.path(f"blobs/{digest[:2]}/{digest}").parent) for digest in named} <= before
    assert len([path for path in before if "~tmp" in path]) == len(named) + 1, "their bytes, and the marker's own"


def test_31_step_9000_comes_before_10000_by_number_and_by_name(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first = commit(store, 9_000)
    commit(store, 10_000, first.manifest_digest)
    names = sorted(store.list("jobs/job/commits/"))
    assert [int(name.rpartition("/")[2]) for name in names] == [9_000, 10_000]


def test_32_a_commit_has_the_bytes_of_its_step_though_training_goes_on_meanwhile(tmp_path: Path) -> None:
    live = state(1)
    snapshot = commits.Snapshot.take(1, live)

    class TrainsMeanwhile(FileStore):
        def put(self, key: str, data: Any, *, durable: bool = True) -> None:
            with torch.no_grad():
                live["model"]["parameters"]["w"].add_(1)
                live["model"]["buffers"]["n"] += 1
                live["optimizer"]["state"][0]["m"].mul_(2)
            super().put(key, data, durable=durable)

    store = TrainsMeanwhile(tmp_path)
    written = commits.write_commit(
        store, snapshot, job="job", parent=None, spec=ZERO, code=ZERO, ests=1, determinism={}, generation=1,
        metrics={}, history=None,
    )  # fmt: skip
    assert_whole(store, 1)
    assert written.state_digest == commit(FileStore(tmp_path / "other"), 1).state_digest
