"""Whoever can write to the stores cannot hurt workers: jobs made by hand fail with a reason, and others go on.

What cannot be read of blobs, manifests and archives one by one is in `unit/test_commits.py`, `unit/test_packs.py`,
`unit/test_trees.py` and `unit/test_bundle.py`; this is what becomes of it in a whole cluster.
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from typing import TYPE_CHECKING, Any

import msgspec
from cluster import JOBS, Cluster
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.summary import read_job
from easyscale.storage.blobs import blob_digest, blob_key, get_blob, put_blob

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.pipeline.summary import Summary

NOWHERE = "0" * 64


def archive(*members: tuple[str, bytes], kind: int = stat.S_IFREG) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (kind | 0o644) << 16
            file.writestr(info, content)
    return out.getvalue()


def bomb() -> bytes:
    """A member that unpacks to 64 MiB."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("small.py", bytes(64 << 20))
    return out.getvalue()


class Forger:
    """Somebody who can write to both stores, and has seen one honest job that is done."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cluster = cluster
        view = read_job(cluster.kv, job)
        assert view is not None
        assert view.head is not None
        self.record, self.head = view.record, view.head.value
        self.spec = get_blob(cluster.store, self.record.spec)
        self.code = get_blob(cluster.store, self.record.code)
        self.manifest = json.loads(get_blob(cluster.store, self.head.manifest))

    def put(self, key: str, value: msgspec.Struct | bytes) -> None:
        data = value if isinstance(value, bytes) else records.encode(value)
        assert self.cluster.kv.txn((), (Put(key, data),)).succeeded

    def job(self, name: str, *, spec: bytes | None = None, code: bytes | None = None, **fields: Any) -> str:
        """A job that was never submitted."""
        named = JobSpec.decode(self.spec)
        spec = msgspec.structs.replace(named, name=name, steps=2 * self.head.step).encode() if spec is None else spec
        digests = [put_blob(self.cluster.store, data) for data in (spec, self.code if code is None else code)]
        changed = {"name": name, "spec": digests[0], "code": digests[1], "steps": 2 * self.head.step, **fields}
        self.put(keys.spec(name), msgspec.structs.replace(self.record, **changed))
        self.put(keys.desired(name), b"running")
        return name

    def commit(self, name: str, **changes: Any) -> str:
        """A job that has a commit with a manifest like the honest one's, but for something."""
        self.job(name)
        data = json.dumps({**self.manifest, "job": name, **changes}).encode()
        head = msgspec.structs.replace(self.head, manifest=put_blob(self.cluster.store, data))
        self.put(keys.head(name), head)
        return name


def forged(it: Forger) -> dict[str, list[str]]:
    """Names of jobs -> what one of the reasons must say."""
    store = it.cluster.store
    first = it.manifest["tensors"][0]
    store.put(blob_key(NOWHERE), b"other bytes")
    plain = json.loads(it.spec)

    def spec(**changes: Any) -> bytes:
        return json.dumps({**plain, **changes}).encode()

    found = {
        it.job("climbing", code=archive(("../../climbed.py", b"raise SystemExit"), ("small.py", b""))): ["name"],
        it.job("absolute", code=archive(("/tmp/climbed.py", b""), ("small.py", b""))): ["name"],
        it.job("linked", code=archive(("small.py", b"/etc/passwd"), kind=stat.S_IFLNK)): ["not a plain"],
        it.job("bomb", code=bomb()): ["more than 2000 files or 20000000 bytes"],
        it.job("no-archive", code=b"PK" + bytes(100)): ["archive"],
        it.job("other-code", code=b"was here"): ["is not what it should be", "hash", "digest"],
        it.job("no-spec", spec=b"[" * 100_000): ["cannot read the job's specification"],
        it.job("strange-spec", spec=spec(surprise=1)): ["surprise"],
        it.job("wide-spec", spec=spec(ests=10**9)): ["ests"],
        it.job("climbing-script", spec=spec(script="../../climbed.py::build")): ["climbed"],
        it.job("imported", spec=spec(script="os.py::system")): ["os.py"],
        it.commit("foreign-format", format=99): ["format 99"],
        it.commit("huge-shape", tensors=[{**first, "shape": [2**40, 2**20]}]): ["tensor"],
        it.commit("pickled", tensors=[{**first, "codec": "pickle"}]): ["codec"],
        it.commit("swapped", packs=[{"digest": NOWHERE, "length": 11}]): ["tensor", "digest"],
    }
    store.put(blob_key(blob_digest(b"was here")), b"is something else")
    return found


def over(job: Summary) -> bool:
    """Whether somebody has said what is wrong."""
    return job.state == "failed" or bool(job.damage) or "refused" in job.reason


def test_jobs_made_by_hand_fail_with_a_reason_and_harm_nobody(cluster: Cluster, tmp_path: Path) -> None:
    cluster.coordinator()
    for name in ("one", "two"):
        cluster.worker(name)
    honest = cluster.submit(JOBS / "small.py", steps=6, audit_every=0)
    digest = cluster.result(honest).state_digest
    wanted = forged(Forger(cluster, honest))
    told = {}
    for name in wanted:
        found = cluster.until(name, over)
        told[name] = f"{found.reason}\n{found.traceback}\n{found.damage}"
    assert not {name: told[name] for name, words in wanted.items() if not any(word in told[name] for word in words)}
    again = cluster.submit(JOBS / "small.py", name="again", steps=6, audit_every=0)
    assert cluster.result(again).state_digest == digest, "the workers are as they were"
    assert len(cluster.left()) >= 3
    assert not [*tmp_path.rglob("climbed*"), *tmp_path.parent.glob("climbed*")]
