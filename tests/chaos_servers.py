"""The real servers that chaos is made on, and how they fail: members of etcd, an S3 server, coordinators.

What is taken down is due to come back a little later; `Schedule` says when.
"""

from __future__ import annotations

import heapq
import itertools
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etcd_service import EtcdCluster
from faulty_proxy import FaultyProxy
from http_server import serving
from services import SeaweedFS, running_seaweedfs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster import Cluster, Process

MEMBERS = 3
"""Of etcd."""


class Schedule:
    """What is to be done later, at moments drawn at random."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, low: float, high: float, action: Callable[[], None]) -> None:
        """Do this in between so many seconds."""
        when = time.monotonic() + self._chance.uniform(low, high)
        heapq.heappush(self._due, (when, next(self._numbers), action))

    def do_due(self) -> None:
        """Do what has become due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()


@dataclass(kw_only=True)
class Servers:
    """What a cluster stands on; all None: one file and one folder."""

    etcd: EtcdCluster | None = None
    s3: SeaweedFS | None = None
    proxy: FaultyProxy | None = None
    kv: str | None = None
    store: str | None = None
    env: dict[str, str] = field(default_factory=dict)


@contextmanager
def running_servers(kind: str, folder: Path, seed: int) -> Iterator[Servers]:
    """`embedded`, or `etcd`: three members of etcd, and SeaweedFS behind a proxy that can be in trouble."""
    if kind == "embedded":
        yield Servers()
        return
    with ExitStack() as stack:
        for name in ("etcd", "s3"):
            (folder / name).mkdir(parents=True)
        etcd = EtcdCluster(folder / "etcd", MEMBERS)
        stack.callback(etcd.close)
        s3 = stack.enter_context(running_seaweedfs(folder / "s3"))
        proxy = stack.enter_context(serving(FaultyProxy(s3.endpoint, seed)))
        env = s3.env | {"AWS_ENDPOINT_URL": proxy.endpoint}
        store = f"s3://{s3.new_bucket()}/chaos"
        yield Servers(etcd=etcd, s3=s3, proxy=proxy, kv=etcd.address, store=store, env=env)


class Outages:
    """What happens to servers. Each method says whether it has happened: not everything can at any time.

    At most one member of etcd is down at a time, so that the other two go on, if not at once.
    """

    def __init__(self, servers: Servers, cluster: Cluster, chance: random.Random, schedule: Schedule) -> None:
        self._servers, self._cluster, self._chance, self._later = servers, cluster, chance, schedule.later
        self._coordinators: list[Process | None] = [cluster.coordinator() for _ in range(2)]
        self._member_down = self._s3_down = False

    def kill_coordinator(self) -> bool:
        """SIGKILL to the one that leads or to the one that waits."""
        number = self._chance.randrange(len(self._coordinators))
        process = self._coordinators[number]
        if process is None:
            return False
        process.kill()
        self._coordinators[number] = None

        def again() -> None:
            self._coordinators[number] = self._cluster.coordinator()

        self._later(0.2, 2.0, again)
        return True

    def kill_leader(self) -> bool:
        """SIGKILL to the leader of etcd: an election follows."""
        return self._take_down(lambda etcd: etcd.kill_leader(), EtcdCluster.restart, 0.5, 3.0)

    def restart_member(self) -> bool:
        """SIGKILL to any member, and at once a new start on its data."""
        return self._take_down(self._any(EtcdCluster.stop), EtcdCluster.restart, 0.0, 0.5)

    def stop_member(self) -> bool:
        """SIGSTOP to any member: connections stay, and nothing is answered."""
        return self._take_down(self._any(EtcdCluster.pause), EtcdCluster.resume, 0.3, 2.0)

    def _any(self, strike: Callable[[EtcdCluster, int], None]) -> Callable[[EtcdCluster], int]:
        """Do this to any member; which one it was."""

        def down(etcd: EtcdCluster) -> int:
            member = self._chance.randrange(MEMBERS)
            strike(etcd, member)
            return member

        return down

    def _take_down(
        self, down: Callable[[EtcdCluster], int], up: Callable[[EtcdCluster, int], None], low: float, high: float
    ) -> bool:
        etcd = self._servers.etcd
        assert etcd
        if self._member_down:
            return False
        self._member_down = True
        member = down(etcd)

        def again() -> None:
            up(etcd, member)
            self._member_down = False

        self._later(low, high, again)
        return True

    def kill_s3(self) -> bool:
        """SIGKILL to the S3 server."""
        s3 = self._servers.s3
        assert s3
        if self._s3_down:
            return False
        s3.kill()
        self._s3_down = True

        def again() -> None:
            s3.restart()
            self._s3_down = False

        self._later(0.2, 1.5, again)
        return True

    def trouble_s3(self) -> bool:
        """A share of all requests is refused with 500 or 503, or is done and not answered."""
        proxy = self._servers.proxy
        assert proxy
        if proxy.trouble:
            return False
        proxy.trouble = self._chance.choice([0.1, 0.3, 0.9])

        def over() -> None:
            proxy.trouble = 0.0

        self._later(0.5, 2.5, over)
        return True
