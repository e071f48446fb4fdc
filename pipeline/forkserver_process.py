"""The fork server: imports torch and ours once, then forks a child for whatever asks, in milliseconds.

It runs no user code, no kernel and no thread, so a child is as good as a fresh process: a session of its own, the
environment and the random numbers a fresh one has, nothing inherited but what it was given. Where that cannot be had
(some library keeps a thread after all, torch cannot be imported), children are fresh processes. It ends with its owner,
and ends whatever its children have started; if it dies itself, they die with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from .forkserver_messages import EXTRA_FD, MAX_PACKET, Exited, Share, Spawn, Started, decode_to_fork_server
from .parents import die_with, outlive
from .script import python_command

WARM = ("torch", "easyscale.pipeline.inspect", "easyscale.pipeline.runner", "easyscale.pipeline.engine",
        "easyscale.pipeline.committer", "easyscale.pipeline.generation", "easyscale.pipeline.lanes",
        "easyscale.storage.commits", "easyscale.storage.cache")  # fmt: skip
"""What the children would import before any of the user's code."""

_PR_SET_NAME = 15
_OUTPUTS = 3
_PACKETS = msgspec.json.Encoder()


@dataclass(slots=True)
class _Child:
    """A child as the fork server knows it. It is reaped when its owner has closed: until then its number is its own."""

    pid: int
    owner: socket.socket
    ended: bool = False
    abandoned: bool = False


class Server:
    """The loop: requests, ends of children, and owners that go.

    Args:
        connection: to the process that started this one; its end is the end.
        warm: whether children may go on in a fork.
        on_interrupt: what children do about SIGINT: what this process was started with.
    """

    def __init__(self, connection: socket.socket, *, warm: bool, on_interrupt: Any) -> None:
        self._connection = connection
        self._on_interrupt = on_interrupt
        self._warm = warm
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup, writer = socket.socketpair()
        self._wakeup_writer = writer
        for end in (self._wakeup, writer):
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ)

    def serve(self) -> Spawn | None:
        """Until the connection closes: None. In a child that goes on in a fork: what it is to be."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._owner_gone(key.data)
                elif key.fileobj is self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(1 << 12)
                    self._look_after()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    request = self._asked(key.fileobj)
                    if request is not None:
                        return request
                    if key.fileobj is self._connection and self._connection.fileno() < 0:
                        return None

    def end(self) -> None:
        """Kill all children, and hear of no death any more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in self._children.values():
            _kill(child.pid)

    # ---- requests

    def _asked(self, connection: socket.socket) -> Spawn | None:
        """Do what somebody asks for; what it is to be, in the child."""
        try:
            data, fds, _, _ = socket.recv_fds(connection, MAX_PACKET, EXTRA_FD + 1)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            self._selector.unregister(connection)
            connection.close()
            return None
        request = decode_to_fork_server(data)
        if isinstance(request, Share):
            self._selector.register(socket.socket(fileno=fds[0]), selectors.EVENT_READ)
            return None
        return self._spawn(request, socket.socket(fileno=fds[0]), fds[1:])

    def _spawn(self, request: Spawn, owner: socket.socket, fds: list[int]) -> Spawn | None:
        if _closed(owner):
            for fd in fds:
                os.close(fd)
            owner.close()
            return None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._child_main(request, owner, fds, parent)
            return request
        for fd in fds:
            os.close(fd)
        child = self._children[pid] = _Child(pid, owner)
        self._selector.register(owner, selectors.EVENT_READ, child)
        return None

    def _child_main(self, request: Spawn, owner: socket.socket, fds: list[int], parent: int) -> None:
        """In the child: become what a fresh process would be."""
        os.setsid()
        die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._on_interrupt)
        owner.sendall(_PACKETS.encode(Started(pid=os.getpid())))
        # Closed as objects, too: a socket that is collected later would close whatever has its number by then.
        ends = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for end in (*ends, self._wakeup_writer, owner):
            assert isinstance(end, socket.socket)
            end.close()
        self._children.clear()
        for wanted, fd in enumerate(fds, start=1):
            os.dup2(fd, wanted)
            os.set_inheritable(wanted, True)
        for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208 - numbers, not paths
            if fd > (EXTRA_FD if len(fds) >= _OUTPUTS else EXTRA_FD - 1):
                with contextlib.suppress(OSError):
                    os.close(fd)
        if not self._warm:
            command = [*python_command(request.module), *request.arguments]
            os.execv(command[0], command)  # noqa: S606 - our own program

    # ---- ends

    def _look_after(self) -> None:
        """Tell owners of children that have ended, and end what those have left running."""
        for child in list(self._children.values()):
            if child.ended:
                continue
            found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            child.ended = True
            _kill(child.pid)  # its loader processes; it is not reaped yet, so nobody else has its number
            status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                child.owner.sendall(_PACKETS.encode(Exited(status=status)))
            if child.abandoned:
                self._reap(child)

    def _owner_gone(self, child: _Child) -> None:
        self._selector.unregister(child.owner)
        child.abandoned = True
        if child.ended:
            self._reap(child)
        else:
            _kill(child.pid)

    def _reap(self, child: _Child) -> None:
        os.waitpid(child.pid, 0)
        child.owner.close()
        del self._children[child.pid]


def _closed(owner: socket.socket) -> bool:
    """Whether the owner does not want the child any more."""
    try:
        return not owner.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _kill(pid: int) -> None:
    """The group, and the process that might not have made it yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def warm_up() -> bool:
    """Import what children need; whether they may go on in a fork."""
    try:
        for name in WARM:
            importlib.import_module(name)
        import torch

        # The first optimizer of a process imports torch's compiler, which takes as long as torch itself.
        torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=1.0)
    except Exception:  # noqa: BLE001 - a child will meet it too, and has somebody to tell
        return False
    for undoing in list(weakref.finalize._registry):  # type: ignore[attr-defined] # noqa: SLF001 - there is no other list
        undoing.atexit = False  # torch would take back its operators one by one
    # Libraries that know of forks end their threads before one (OpenBLAS does). Are there others?
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()  # pages of what lives for ever stay shared: the collector does not write to them
    return len(list(Path("/proc/self/task").iterdir())) == 1


def become(request: Spawn) -> int:
    """Run a child's module; the status that a fresh process would have ended with."""
    module = importlib.import_module(request.module)
    sys.modules["__main__"] = module
    sys.argv = [module.__file__ or request.module, *request.arguments]
    set_name(request.module)
    if "torch" in sys.modules:  # `random` sees to it itself
        import torch

        torch.default_generator.seed()
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed()
    try:
        module.main()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - shown as at the end of any process
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end_process(status: int) -> NoReturn:
    """End as Python does, but for taking itself apart: with torch loaded that takes seconds on a busy machine.

    What the program has asked for is still done: its threads are waited for (not daemons), exit handlers run, what was
    written is flushed. Memory, the device's too, is the kernel's to free.
    """
    python = threading._shutdown, atexit._run_exitfuncs  # type: ignore[attr-defined] # noqa: SLF001 - as it does itself
    for last in (*python, _flush_files, sys.stdout.flush, sys.stderr.flush):
        try:
            last()
        except BaseException:  # noqa: BLE001 - of the user's, or of a full disk: told, as by Python
            sys.excepthook(*sys.exc_info())
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


def _flush_files() -> None:
    """Files that were left open, as their own end would have done."""
    things = gc.get_objects()
    files = {kind for kind in set(map(type, things)) if issubclass(kind, io.IOBase)}  # few kinds, many things
    for thing in things:
        if type(thing) in files:
            with contextlib.suppress(OSError, ValueError):  # those that are closed or read from
                thing.flush()


def set_name(module: str) -> None:
    """What `ps` and `top` call this process: all children share one command line."""
    name = f"es:{module.rpartition('.')[2].partition('_')[0]}"[:15]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def main() -> None:
    """Entry point: pid of the owner, number of the descriptor that is the connection to it."""
    owner, fd = (int(text) for text in sys.argv[1:])
    on_interrupt = signal.getsignal(signal.SIGINT)  # whoever runs in the background of a script ignores it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it goes when its owner goes, who may still need its children
    die_with(owner)
    connection = socket.socket(fileno=fd)
    environment = dict(os.environ)
    warm = warm_up()
    os.environ.clear()  # torch's compiler leaves a variable behind
    os.environ.update(environment)
    set_name(__spec__.name)
    outlive()  # by a moment: children have children, and only a group is killed whole
    server = Server(connection, warm=warm, on_interrupt=on_interrupt)
    request = server.serve()
    if request is None:
        server.end()
    end_process(become(request) if request is not None else 0)


if __name__ == "__main__":
    main()
