"""Real etcd servers for tests: one member or three on free loopback ports, that can be killed, paused and restarted.

A member dies with the test process, whatever ends it. Speaks to etcd over its HTTP gateway, so that nothing here
depends on the client under test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from services import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from certificates import Authority

ELECTION_MS = 500
START_DEADLINE = 30.0


class EtcdCluster:
    """A running cluster. Members are numbered from 0.

    Args:
        authority: signs the certificates of members and clients, without which nobody gets in; None: in plain text.
    """

    def __init__(self, folder: Path, members: int = 1, authority: Authority | None = None) -> None:
        self._folder = folder
        self._authority = authority
        self._scheme = "https" if authority else "http"
        self._context: ssl.SSLContext | None = None
        if authority:
            self._certificate = authority.issue("etcd-member")
            self._context = ssl.create_default_context(cafile=authority.ca)
            self._context.load_cert_chain(*self._certificate)
        ports = free_ports(2 * members)
        self._clients = [f"127.0.0.1:{port}" for port in ports[:members]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        try:
            for member in range(members):
                self._launch(member)
            for member in range(members):
                self._await_healthy(member)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """What `open_kv` takes."""
        return ("etcds://" if self._authority else "etcd://") + ",".join(self._clients)

    @property
    def endpoints(self) -> list[str]:
        """host:port of every member."""
        return list(self._clients)

    def leader(self) -> int:
        """The member that leads now; waits until there is one."""
        end = time.monotonic() + START_DEADLINE
        while time.monotonic() < end:
            for member, process in enumerate(self._processes):
                status = self._post(member, "/v3/maintenance/status") if process else {}
                if status and status.get("leader") == status["header"]["member_id"]:
                    return member
            time.sleep(0.02)
        raise AssertionError(f"no leader among {self._clients}; logs are in {self._folder}")

    def kill_leader(self) -> int:
        """SIGKILL the leader; says which member it was."""
        leader = self.leader()
        self.stop(leader)
        return leader

    def stop(self, member: int) -> None:
        """SIGKILL a member (also a paused one); its data stays."""
        process = self._processes[member]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[member] = None

    def restart(self, member: int) -> None:
        """Start a stopped member on its data again; returns when it answers."""
        self.stop(member)
        self._launch(member)
        self._await_healthy(member)

    def pause(self, member: int) -> None:
        """SIGSTOP: connections stay open and nothing is answered, once all of its threads stand still."""
        threads = Path(f"/proc/{self._signal(member, signal.SIGSTOP)}/task")
        while any(" T " not in (thread / "stat").read_text().rpartition(")")[2][:3] for thread in threads.iterdir()):
            time.sleep(0.001)

    def resume(self, member: int) -> None:
        """SIGCONT."""
        self._signal(member, signal.SIGCONT)

    def compact(self) -> None:
        """Forget the history up to now: what a watch has missed of it is gone."""
        revision = int(self._ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._ask("/v3/kv/compaction", {"revision": revision, "physical": True})

    def revoke(self, lease: int) -> None:
        """End a lease behind its holder's back, as `etcdctl lease revoke` does."""
        self._ask("/v3/lease/revoke", {"ID": lease})

    def seconds_left(self, lease: int) -> int:
        """What is left of a lease; -1: it is gone."""
        return int(self._ask("/v3/lease/timetolive", {"ID": lease})["TTL"])

    def enable_users(self, password: str) -> None:
        """From now on only user root, who has this password, gets in."""
        self._ask("/v3/auth/user/add", {"name": "root", "password": password})
        self._ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self._ask("/v3/auth/enable", {})

    def close(self) -> None:
        """Kill all members."""
        for member in range(len(self._processes)):
            self.stop(member)

    def _signal(self, member: int, number: signal.Signals) -> int:
        process = self._processes[member]
        assert process is not None, f"etcd member {member} is not running"
        os.kill(process.pid, number)
        return process.pid

    def _launch(self, member: int) -> None:
        client, peer = f"{self._scheme}://{self._clients[member]}", self._peers[member]
        cluster = ",".join(f"m{number}={url}" for number, url in enumerate(self._peers))
        tls: list[str] = []
        if self._authority:
            cert, key = self._certificate
            tls = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={self._authority.ca}"]
            tls.append("--client-cert-auth")
        # setpriv rather than preexec_fn: no Python may run between fork and exec in a process full of gRPC threads
        self._processes[member] = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "etcd", f"--name=m{member}",
             f"--data-dir={self._folder / f'm{member}'}", "--logger=zap",
             f"--log-outputs={self._folder / f'm{member}.log'}",
             f"--heartbeat-interval={ELECTION_MS // 10}", f"--election-timeout={ELECTION_MS}",
             f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
             f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
             f"--initial-cluster={cluster}", "--initial-cluster-state=new", *tls],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _await_healthy(self, member: int) -> None:
        end = time.monotonic() + START_DEADLINE
        while time.monotonic() < end:
            process = self._processes[member]
            if process is None or process.poll() is not None:
                break
            if self._post(member, "/health").get("health") == "true":
                return
            time.sleep(0.02)
        raise AssertionError(f"etcd member {member} does not become healthy; see {self._folder / f'm{member}.log'}")

    def _ask(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """The answer of the first member that gives one, which it does once there is a leader."""
        end = time.monotonic() + START_DEADLINE
        while time.monotonic() < end:
            for member, process in enumerate(self._processes):
                found = self._post(member, path, body) if process else {}
                if found:
                    return found
            time.sleep(0.05)
        raise AssertionError(f"nobody answers {path} {body}; logs are in {self._folder}")

    def _post(self, member: int, path: str, content: dict[str, object] | None = None) -> dict[str, Any]:
        """The answer, or nothing."""
        body = None if path == "/health" else json.dumps(content or {}).encode()
        request = urllib.request.Request(f"{self._scheme}://{self._clients[member]}{path}", data=body)
        secure = urllib.request.HTTPSHandler(context=self._context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), secure)
        try:
            with opener.open(request, timeout=1) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}


def need_etcd() -> None:
    """Skip the test where etcd is not installed; in CI that is a failure."""
    if shutil.which("etcd") is None:
        advice = "etcd is not installed (Debian, Ubuntu: apt-get install etcd-server)"
        if os.environ.get("CI") == "true":
            pytest.fail(advice)
        pytest.skip(advice)


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EtcdCluster]]:
    """Starts clusters: `etcd_cluster()` has three members. Whoever starts one closes it: an idle one still takes time.

    What is left is killed with the session.
    """
    need_etcd()
    started: list[EtcdCluster] = []

    def start(members: int = 3, authority: Authority | None = None) -> EtcdCluster:
        started.append(EtcdCluster(tmp_path_factory.mktemp("etcd"), members, authority))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


@pytest.fixture(scope="session")
def etcd(etcd_cluster: Callable[..., EtcdCluster]) -> EtcdCluster:
    """One member, shared by the session: use your own key prefix, and leave it running."""
    return etcd_cluster(1)
