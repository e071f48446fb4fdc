"""Processes of a cluster under test, forked from one fork server per test process, so that each costs milliseconds.

They are what `subprocess.Popen` makes of the same command, but for what is read before a module's first line: another
environment, folder and output, a session of its own, and whoever they have forked themselves gets the same. The owner
has a `Forked`; `main` is what runs first in the process itself.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import secrets
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
from easyscale.pipeline.forkserver import ForkServer
from easyscale.pipeline.forkserver_messages import EXTRA_FD, Spawn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

MODULE = "easyscale.tests.forked"
"""This one, as the fork server finds it."""

MARK = "EASYSCALE_TEST_FORKS"
"""In the environment that the fork server was started with, which is what the system shows of all its children."""

READ_LATE = ("EASYSCALE_", "JOB_", "SABOTAGE", "WATCHED", "TMPDIR", "CXX", "GLOO_")
"""How variables begin that are not read before a command's own first line."""

OURS = secrets.token_hex(8)
SABOTAGE = Path(__file__).parent / "e2e" / "sabotage" / "sitecustomize.py"


class Order(msgspec.Struct, frozen=True):
    """What a child is to become.

    Args:
        module, arguments: whose `main` with what. env: all of it, but for JOB_AGENT: the parent. folder: the current
            one.
        family: a folder where each process leaves a file named by its id, which holds that of its parent.
        parent: that parent.
        outermost: the test has asked for it: its own children come from where it came from.
    """

    module: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    folder: str
    family: str
    parent: int
    outermost: bool


@cache
def shared() -> ForkServer:
    """The fork server of this test process, with which it ends. Call it first in a thread that stays."""
    before = os.environ.get(MARK)
    os.environ[MARK] = OURS
    fork_server = ForkServer()
    fork_server.warm()
    if before is None:
        del os.environ[MARK]
    atexit.register(fork_server.close)
    return fork_server


class Forked:
    """One process, with as much of `subprocess.Popen` as the tests use.

    Args:
        module, arguments: see `Order`. stdout, stderr: open files.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        family: Path,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        order = Order(module, tuple(arguments), dict(env), str(cwd), str(family), os.getpid(), outermost=True)
        with shared().share() as connection:  # for its own children
            fds = stdout.fileno(), stderr.fileno(), connection.fileno()
            self._child = shared().child(MODULE, [msgspec.json.encode(order).decode()], *fds)
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Process id; waits until there is one."""
        while self._child.pid is None and self._status is None:
            with contextlib.suppress(TimeoutError):
                self.wait(0.01)
        assert self._child.pid is not None, "it was ended before it began"
        return self._child.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Signal this process alone."""
        self._child.signal(number, group=False)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """How it ended, or None while it lives."""
        if self._status is None and self._child.poll() is not None:
            self.wait()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end: exit status, or the negative number of a signal.

        Raises:
            TimeoutError: it still lives after that many seconds.
        """
        if self._status is None:
            self._status = self._child.wait(timeout)
            self._child.close()  # it can be reaped
        return self._status


def can_be_given(env: Iterable[str]) -> bool:
    """Whether these variables come early enough in a forked process."""
    return all(name.startswith(READ_LATE) for name in env)


def children(family: Path, parent: int) -> list[psutil.Process]:
    """Living children of a forked process that were forked, too."""
    found = []
    for path in family.iterdir():
        with contextlib.suppress(psutil.NoSuchProcess, ValueError):
            if int(path.read_text() or "0") == parent and is_ours(process := psutil.Process(int(path.name))):
                found.append(process)
    return found


def living(family: Path) -> list[psutil.Process]:
    """All living processes of a family: the forked ones, and what they have started."""
    sessions = {int(path.name) for path in family.iterdir()}
    found = []
    for process in psutil.process_iter() if sessions else ():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) in sessions and is_ours(process):
                found.append(process)
    return found


def is_ours(process: psutil.Process) -> bool:
    """Whether it lives, and comes from our fork server: its number may be anybody's by now."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == OURS
    return False


def main() -> None:
    """In the process: become what was ordered."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    Path(order.family, str(os.getpid())).write_text(str(order.parent))
    os.environ.clear()
    os.environ.update(order.env, JOB_AGENT=str(order.parent))
    os.chdir(order.folder)
    sys.path.insert(0, str(Path(__file__).parent))
    tempfile.tempdir = None
    begin, fork = ForkServer.__init__, ForkServer.child

    def connected(self: ForkServer, fd: int | None = None) -> None:
        begin(self, os.dup(EXTRA_FD) if fd is None and order.outermost else fd)

    def child(self: ForkServer, module: str, arguments: Sequence[str], *fds: int) -> object:
        mine = msgspec.structs.replace(
            order, module=module, arguments=tuple(arguments), parent=os.getpid(), outermost=False
        )
        return fork(self, MODULE, [msgspec.json.encode(mine).decode()], *fds)

    ForkServer.__init__ = connected  # type: ignore[method-assign]
    ForkServer.child = child  # type: ignore[method-assign, assignment]
    if "SABOTAGE" in order.env:
        spec = importlib.util.spec_from_file_location("sitecustomize", SABOTAGE)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from easyscale.pipeline.forkserver_process import become

    raise SystemExit(become(Spawn(module=order.module, arguments=order.arguments)))
