"""Children of the fork server are as good as fresh processes, and end with whoever wanted them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest
from easyscale.pipeline import forkserver_process
from easyscale.pipeline.forkserver import LOST, ForkServer
from easyscale.pipeline.forkserver_messages import EXTRA_FD
from easyscale.pipeline.script import ENCODING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECONDS = 60.0
PROBE = "a_child"
"""The module below, which the tests put where the fork server finds it."""

CHILD = '''
"""Tells what it was started with, then does as it is told."""
import json, os, random, signal, subprocess, sys, time

def tell():
    import numpy, torch
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
    fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    return {
        "argv": sys.argv, "main": sys.modules["__main__"].__name__, "env": dict(os.environ), "cwd": os.getcwd(),
        "pid": os.getpid(), "group": os.getpgrp(), "session": os.getsid(0), "parent": os.getppid(),
        "threads": len(os.listdir("/proc/self/task")), "torch threads": torch.get_num_threads(),
        "torch random": torch.rand(3).tolist(),
        "numpy random": numpy.random.rand(3).tolist(), "random": random.random(),
        "handlers": [str(handler) for handler in handlers], "hash": hash("a"), "fds": fds[:-1],
        "stdin": os.readlink("/proc/self/fd/0"), "warm": "torch._dynamo" in sys.modules,
        "cuda": torch.cuda.is_initialized(),
    }

def main():
    what = sys.argv[1]
    if what == "tell":
        print(json.dumps(tell()), flush=True)
    elif what == "exit":
        sys.exit(int(sys.argv[2]))
    elif what == "raise":
        raise ValueError("it went wrong")
    elif what == "last":
        import atexit, builtins, io, threading
        class Whole:
            def __del__(self):
                os.write(1, b"taken apart\\n")
        builtins.whole = Whole()
        builtins.file = open(sys.argv[2], "w")
        builtins.file.write("left open")
        atexit.register(lambda: os.write(1, b"at exit\\n"))
        atexit.register(lambda: 1 / 0)
        go = threading.Event()
        threading.Thread(target=lambda: go.wait() and os.write(1, b"a thread\\n")).start()
        atexit.register(lambda: os.write(1, b"after threads\\n"))
        threading.Timer(0.2, go.set).start()
        sys.exit("in the end")
    elif what == "write":
        os.write(3, b"beside")
    elif what == "leave":  # a child of its own that would stay
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    elif what == "wait":
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
        time.sleep(1000)

if __name__ == "__main__":
    main()
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / f"{PROBE}.py").write_text(CHILD)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    yield folder
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def fork_server(module: Path) -> Iterator[ForkServer]:
    with ForkServer() as it:
        yield it


@contextmanager
def outputs(count: int) -> Iterator[list[IO[bytes]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(TemporaryFile()) for _ in range(count)]


def ran(fork_server: ForkServer, *arguments: str, outputs_of: int = 3) -> tuple[int, list[bytes]]:
    """A child run to its end: its status, and what it wrote."""
    with outputs(outputs_of) as files:
        with closing(fork_server.child(PROBE, arguments, *(file.fileno() for file in files))) as child:
            status = child.wait(SECONDS)
        for file in files:
            file.seek(0)
        return status, [file.read() for file in files]


def told(fork_server: ForkServer) -> dict[str, Any]:
    status, written = ran(fork_server, "tell", outputs_of=2)
    assert status == 0, written
    found: dict[str, Any] = json.loads(written[0])
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_is_started_with_what_a_fresh_process_has(fork_server: ForkServer, module: Path) -> None:
    child = told(fork_server)
    fresh = subprocess.run(
        [sys.executable, "-P", "-m", PROBE, "tell"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        start_new_session=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": ENCODING},
    )
    other = json.loads(fresh.stdout)
    assert child["warm"], "it was to be spared the imports"
    assert child["pid"] == child["group"] == child["session"]
    assert child["main"] == PROBE
    for one in (child, other):
        del one["env"]["PYTEST_CURRENT_TEST"]  # it has changed meanwhile
    same = ("argv", "env", "cwd", "threads", "torch threads", "handlers", "hash", "stdin")
    assert {name: child[name] for name in same} == {name: other[name] for name in same} | {"threads": 1}
    assert child["fds"] == [0, 1, 2]
    assert not child["cuda"]


def test_children_draw_other_random_numbers_where_fresh_processes_would(fork_server: ForkServer) -> None:
    first, second = told(fork_server), told(fork_server)
    assert first["random"] != second["random"]
    assert first["numpy random"] != second["numpy random"]
    assert first["torch random"] != second["torch random"]


def test_children_ignore_an_interrupt_where_whoever_started_the_fork_server_does(module: Path) -> None:
    """A job in the background of a script: Ctrl-C in the terminal is not meant for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ForkServer() as fork_server:
            assert told(fork_server)["handlers"][1] == str(int(signal.SIG_IGN))
    finally:
        signal.signal(signal.SIGINT, before)


def test_how_a_child_ends_is_told_as_of_a_process_of_ones_own(fork_server: ForkServer) -> None:
    assert ran(fork_server, "exit", "0")[0] == 0
    assert ran(fork_server, "exit", "7")[0] == 7
    status, written = ran(fork_server, "raise")
    assert status == 1
    assert b"ValueError: it went wrong" in written[1]
    with outputs(2) as files, closing(fork_server.child(PROBE, ["wait"], *(file.fileno() for file in files))) as child:
        child.signal(signal.SIGTERM, group=False)  # maybe before it has started
        assert child.wait(SECONDS) == -signal.SIGTERM


def test_a_child_ends_with_all_that_it_has_asked_for_but_is_not_taken_apart(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """With torch loaded that takes seconds, in which the device's memory is not free and nobody gains anything."""
    status, (out, err, _) = ran(fork_server, "last", str(tmp_path / "file"))
    assert status == 1
    assert out.splitlines() == [b"a thread", b"after threads", b"at exit"]
    assert err.startswith(b"in the end\n")
    assert b"ZeroDivisionError" in err
    assert (tmp_path / "file").read_text() == "left open"


def test_a_child_may_have_one_descriptor_more(fork_server: ForkServer) -> None:
    assert EXTRA_FD == 3
    assert ran(fork_server, "write") == (0, [b"", b"", b"beside"])
    status, written = ran(fork_server, "write", outputs_of=2)
    assert status == 1
    assert b"Bad file descriptor" in written[1]


def test_what_a_child_left_running_ends_with_it(fork_server: ForkServer) -> None:
    status, written = ran(fork_server, "leave")
    assert status == 0
    until(lambda: not psutil.pid_exists(int(written[0])))


@contextmanager
def waiting(fork_server: ForkServer) -> Iterator[tuple[Any, psutil.Process, psutil.Process]]:
    """A child, its process, and a process that it has started."""
    with outputs(2) as files:
        child = fork_server.child(PROBE, ["wait"], *(file.fileno() for file in files))

        def said() -> bytes:
            return os.pread(files[0].fileno(), 100, 0)

        until(lambda: said().endswith(b"\n"))
        assert child.poll() is None
        yield child, psutil.Process(child.pid), psutil.Process(int(said()))
        child.close()


def test_a_child_ends_with_its_group_when_its_owner_lets_go_of_it(fork_server: ForkServer) -> None:
    with waiting(fork_server) as (child, process, grandchild):
        child.close()
        assert psutil.wait_procs([process, grandchild], timeout=SECONDS)[1] == []


def test_children_end_with_their_fork_server_and_the_next_ones_have_a_new_one(module: Path) -> None:
    with ForkServer() as fork_server, waiting(fork_server) as (child, process, grandchild):
        process.parent().kill()
        assert child.wait(SECONDS) == LOST
        assert psutil.wait_procs([process, grandchild], timeout=SECONDS)[1] == []
        assert ran(fork_server, "exit", "3")[0] == 3


def test_who_shares_a_fork_server_has_children_from_it_and_starts_another_when_it_is_gone(module: Path) -> None:
    with ForkServer() as fork_server:
        guest = ForkServer(fork_server.share().detach())
        first = told(guest)
        assert first["parent"] == told(fork_server)["parent"]
        fork_server.close()
        assert told(guest)["parent"] != first["parent"]
        guest.close()


OWNER = f'''
import sys, time
from easyscale.pipeline.forkserver import ForkServer
fork_server = ForkServer()
child = fork_server.child("{PROBE}", ["wait"], 1, 2)
child.wait()
'''


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_with_an_owner_that_is_killed(module: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-P", "-c", OWNER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    grandchild = psutil.Process(int(owner.stdout.readline()))
    family = psutil.Process(owner.pid).children(recursive=True)
    assert grandchild in family
    assert len(family) == 3
    owner.send_signal(number)
    owner.communicate()
    assert psutil.wait_procs(family, timeout=SECONDS)[1] == []


def test_signals_for_a_whole_service_do_not_end_the_fork_server(fork_server: ForkServer) -> None:
    """Service managers signal every process; the fork server ends with its owner, who may still need its children."""
    parent = psutil.Process(told(fork_server)["parent"])
    for number in (signal.SIGTERM, signal.SIGINT):
        parent.send_signal(number)
    assert told(fork_server)["parent"] == parent.pid


def test_where_a_fork_will_not_do_children_are_fresh_processes(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some library keeps a thread, or torch cannot be imported: here, it is another module of that name."""
    other = module / "other"
    other.mkdir()
    (other / "torch.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(other) + os.pathsep + os.environ["PYTHONPATH"])
    with ForkServer() as fork_server:
        assert ran(fork_server, "exit", "7")[0] == 7
        assert ran(fork_server, "write") == (0, [b"", b"", b"beside"])
        with waiting(fork_server) as (child, process, grandchild):
            assert "-m" in process.cmdline()
            assert PROBE in process.cmdline()
            child.close()
            assert psutil.wait_procs([process, grandchild], timeout=SECONDS)[1] == []


def test_the_fork_server_has_all_imported_that_children_need_before_the_users_code() -> None:
    assert {"torch", "easyscale.pipeline.inspect", "easyscale.pipeline.runner"} <= set(forkserver_process.WARM)
