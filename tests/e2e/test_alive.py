"""A probe sees by a file whether a process lives, also while its store is away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, told_on_failure
from easyscale.coordinator import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from etcd_service import EtcdCluster

LONG_AGO = 1_000_000.0


@pytest.fixture
def on_etcd(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_cluster: Callable[..., EtcdCluster]
) -> Iterator[tuple[Cluster, EtcdCluster]]:
    etcd = etcd_cluster(1)
    with told_on_failure(Cluster(tmp_path / "cluster", etcd.address), request) as it:
        yield it, etcd
    etcd.close()


def test_workers_coordinators_and_commands_with_several_devices_touch_their_file_whatever_etcd_does(
    on_etcd: tuple[Cluster, EtcdCluster], tmp_path: Path, injected: Callable[[str], None]
) -> None:
    cluster, etcd = on_etcd
    files = {name: tmp_path / name for name in ("coordinator", "worker", "crew")}
    option = {name: ("--alive-file", str(path)) for name, path in files.items()}
    cluster.coordinator(*option["coordinator"])
    cluster.worker("one", *option["worker"])
    cluster.worker("two", "--device", "cpu,cpu", *option["crew"])

    def all_are_touched() -> bool:
        return all(path.exists() and path.stat().st_mtime > LONG_AGO for path in files.values())

    cluster.until_true(lambda: len(cluster.kv.range(keys.WORKERS)) == 3)
    for away in (False, True):
        if away:
            etcd.pause(0)
            injected("SIGSTOP of etcd")
        for path in files.values():
            os.utime(path, (LONG_AGO, LONG_AGO))
        cluster.until_true(all_are_touched)
    etcd.resume(0)


def test_a_file_that_cannot_be_touched_ends_the_command_before_it_has_begun(cluster: Cluster, tmp_path: Path) -> None:
    for command in ("worker", "coordinator"):
        done = cluster.command(command, "--alive-file", str(tmp_path / "nowhere" / "alive"))
        assert done.code == 2
        assert "error: --alive-file" in done.err
        assert "No such file or directory" in done.err
