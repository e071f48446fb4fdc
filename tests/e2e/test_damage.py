"""What lies in the store is not trusted: a damaged commit is named, and its parent is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import JOBS
from easyscale.storage.blobs import blob_key
from easyscale.storage.manifests import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import Cluster
    from reference import Reference


def test_a_damaged_head_is_named_and_its_parent_used(
    cluster: Cluster, reference: Reference, injected: Callable[[str], None]
) -> None:
    run = cluster.run(JOBS / "small.py", JOB_PACE="0.01")
    cluster.until("small", lambda now: now.committed >= 30)
    run.kill()
    cluster.assert_nothing_left()
    head = cluster.job("small")
    assert head.committed < 80
    manifest = read_manifest(cluster.store, head.manifest)
    parent = read_manifest(cluster.store, manifest.parent)
    pack = manifest.packs[0].digest
    path = cluster.folder / "store" / blob_key(pack)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    injected("a bit of a commit flipped")

    done = cluster.run(JOBS / "small.py").wait()
    assert done.code == 0
    (found,) = done.last["damage"]
    assert pack in found
    assert f"step {head.committed}" in found
    assert pack in cluster.command("show", "small").out
    log = "".join(path.read_text() for path in cluster.folder.glob("local/logs/**/*.log"))
    assert f'"usable": {parent.step}' in log
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
