"""A cluster of real processes for one test: coordinators, workers and `easyscale run`, to be killed, stopped and woken.

Coordinators and workers are forked (`forked.py`) where a test asks for that (`alone`). Every process carries a mark
in its environment, which its children inherit, or has left a note: so whatever is left of the cluster can be found,
runners and loaders included. All of them end with the cluster, and with the test process however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import forked
import msgspec
import psutil
import pytest
from easyscale.coordinator import keys, views
from easyscale.coordinator.kv import open_kv
from easyscale.errors import UnavailableError
from easyscale.pipeline.inspect import inspect_script
from easyscale.pipeline.numerics import build
from easyscale.pipeline.submit import Handle, Result, place
from easyscale.pipeline.summary import Summary, read_job, summarize
from easyscale.settings import file_address
from easyscale.storage import commits
from easyscale.storage.blobs import get_blob
from easyscale.storage.objects import open_store

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from types import TracebackType

    from easyscale.pipeline.bundle import Bundle
    from easyscale.pipeline.spec import JobSpec

T = TypeVar("T")

FAILED = pytest.StashKey[bool]()
"""Whether the test at hand has failed: then the logs are shown."""

MARK = "EASYSCALE_TEST_CLUSTER"
JOBS = Path(__file__).parent / "e2e" / "jobs"
STAGES = JOBS / "stages.py"
SABOTAGE = Path(__file__).parent / "e2e" / "sabotage"
MORTAL = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Makes a process end with us. Not by `preexec_fn`: no Python may run between fork and exec beside gRPC's threads."""

TTL = 5.0
PATIENCE = 180.0
"""Seconds for a condition to come true: only a bug, or a machine in deep trouble, uses them up."""

TAIL_LINES = 60


def sabotaged(faults: str) -> dict[str, str]:
    """The environment of a process with these faults inside: see `e2e/sabotage/sitecustomize.py`."""
    return {"SABOTAGE": faults}


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The JSON object on its last line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


class Process:
    """One of the cluster's processes, in a session of its own, its output in files.

    Args:
        command: of a Python of its own; or, with a `family` (see `forked.Order`), of ours for a forked process.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, family: Path | None = None
    ) -> None:
        self.name = log.stem.partition("-")[2]
        self.log = log
        self._out = log.with_suffix(".out")
        self._family = family
        self._process: subprocess.Popen[bytes] | forked.Forked
        with log.open("wb") as err, self._out.open("wb") as out:
            if family is not None:
                self._process = forked.Forked(
                    "easyscale.pipeline.cli", command, env=env, cwd=folder, family=family, stdout=out, stderr=err
                )
                return
            self._process = subprocess.Popen(
                [*MORTAL, sys.executable, *command],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def children(self) -> list[psutil.Process]:
        """The living children, as if its fork server were not between: the runner of a worker."""
        if self._family is not None:
            return forked.children(self._family, self.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = psutil.Process(self.pid).children()
            servers = [child for child in mine if child.name() == "es:forkserver"]
            theirs = [child for server in servers for child in server.children()]
            both = [child for child in mine + theirs if child not in servers]
            return [child for child in both if child.status() != psutil.STATUS_ZOMBIE]
        return []

    @property
    def text(self) -> str:
        """What it has written to standard error."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        self._process.kill()
        self._process.wait()

    def until_written(self, text: str, patience: float = PATIENCE) -> None:
        """Wait until it has written this to standard error."""
        deadline = time.monotonic() + patience
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            assert self.running, self.text
            time.sleep(0.02)

    def wait(self, timeout: float = PATIENCE) -> Done:
        """Wait until it has ended."""
        code = self._process.wait(timeout)
        return Done(code, self._out.read_text(errors="replace"), self.text)

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None


class Cluster:
    """Processes that share a key-value store and an object store.

    Args:
        folder: for logs, caches and, by default, both stores.
        kv, store: addresses; default: below `folder`.
        env: for all processes.
    """

    def __init__(
        self, folder: Path, kv: str | None = None, store: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.kv_address = kv or file_address(folder / "kv.sqlite")
        self.store_address = store or file_address(folder / "store")
        self.alone = False
        """Whether its commands are ordinary processes with fork servers of their own, which costs seconds; else they
        are forked, and so are their children."""
        self._mark = secrets.token_hex(8)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EASYSCALE_", "JOB_"))}
        self._env = kept | {
            MARK: self._mark,
            "EASYSCALE_KV": self.kv_address,
            "EASYSCALE_STORE": self.store_address,
            "EASYSCALE_FOLDER": str(folder / "local"),
            "HOME": str(folder),  # no settings file of the machine's
            "EASYSCALE_BUILD_FOLDER": str(build.cache_folder()),  # what takes minutes is built once
            "PYTHONDONTWRITEBYTECODE": "1",
            "JOB_STEPS": str(folder / "steps"),
            **(env or {}),
        }
        self._started: list[Process] = []
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True)
        (folder / "steps").mkdir()
        self._family = folder / "family"
        self._family.mkdir()
        with environment(env or {}):  # credentials
            self.kv = open_kv(self.kv_address)
            self.store = open_store(self.store_address)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Kill our own processes; their children must follow by themselves."""
        for process in self._started:
            process.kill()
        try:
            if kind is None:
                self.assert_nothing_left()
        finally:
            self.kill_all()
            self.kv.close()

    # ---- processes

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return dict(self._env)

    def coordinator(self, *options: str, **env: str) -> Process:
        """Start `easyscale coordinator`."""
        return self.start("coordinator", *options, name="coordinator", **env)

    def impatient_coordinator(self, stale: float) -> Process:
        """Start a coordinator that takes a worker for gone after this many seconds without a sign of life."""
        return self._coordinator(f"stale={stale}")

    def even_coordinator(self) -> Process:
        """Start a coordinator that learns no speeds: all who can serve do, and share evenly."""
        return self._coordinator("speeds=False")

    def _coordinator(self, planner: str) -> Process:
        code = (
            "import threading, easyscale.logs\n"
            "from easyscale.coordinator.coordinator import Coordinator\n"
            "from easyscale.coordinator.kv import open_kv\n"
            "from easyscale.coordinator.planner import Planner\n"
            "easyscale.logs.configure()\n"
            f"Coordinator(open_kv({self.kv_address!r}), Planner({planner})).run(threading.Event())"
        )
        return self.python("-P", "-c", code, name="coordinator")

    def leader(self) -> Process | None:
        """The coordinator that leads now."""
        found = self.kv.get(keys.LEADER)
        pid = int(found.value.decode().rsplit("-", 2)[1]) if found else None
        return next((process for process in self._started if process.pid == pid), None)

    def worker(
        self,
        name: str,
        *options: str,
        ttl: float = TTL,
        folder: Path | None = None,
        alone: bool | None = None,
        **env: str,
    ) -> Process:
        """Start `easyscale worker`.

        Args:
            options: more of its options. folder: its local folder; default: one of its own.
            alone: see `start`. env: more of its environment.
        """
        local = folder or self.folder / "workers" / f"{name}-{len(self._started)}"
        arguments = ["worker", "--name", name, "--ttl", str(ttl), "--folder", str(local), *options]
        return self.start(*arguments, name=name, alone=alone, **env)

    def run(self, script: Path, *options: str, workers: int = 1, **env: str) -> Process:
        """Start `easyscale run SCRIPT -o json`."""
        return self.start("run", str(script), "--workers", str(workers), "-o", "json", *options, name="run", **env)

    def start(self, *arguments: str, name: str, alone: bool | None = None, **env: str) -> Process:
        """Start an `easyscale` command in the background.

        Args:
            alone: as an ordinary process. Default: the cluster's. It is also alone if a library would read its
                environment too early.
        """
        alone = self.alone if alone is None else alone
        if alone or not forked.can_be_given(env):
            return self.python("-P", "-m", "easyscale.pipeline.cli", *arguments, name=name, **env)
        return self._begin(arguments, name, env, self._family)

    def python(self, *arguments: str, name: str, **env: str) -> Process:
        """Start a Python process in the background."""
        if "SABOTAGE" in env:
            path = env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SABOTAGE), path]))
        return self._begin(arguments, name, env)

    def _begin(self, command: Sequence[str], name: str, env: dict[str, str], family: Path | None = None) -> Process:
        elsewhere = self.folder / "elsewhere"  # nothing must depend on the current folder
        elsewhere.mkdir(exist_ok=True)
        log = self._logs / f"{len(self._started):02d}-{name}.log"
        process = Process(command, elsewhere, {**self._env, **env}, log, family)
        self._started.append(process)
        return process

    def command(self, *arguments: str, **env: str) -> Done:
        """Run an `easyscale` command to its end."""
        return self.start(*arguments, name=arguments[0], **env).wait()

    def left(self) -> list[psutil.Process]:
        """All living processes of this cluster, children of children too."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found + forked.living(self._family)

    def kill_all(self) -> None:
        """SIGKILL to everything at once, in no particular order."""
        left = self.left()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._started:
            if any(process.pid == started.pid for process in left):
                started.wait()  # only then a forked one can be reaped
        psutil.wait_procs(left, timeout=10)

    def assert_nothing_left(self, patience: float = 60.0) -> None:
        """Whatever the killed and the ended ones had started has ended too."""
        deadline = time.monotonic() + patience
        while left := self.left():
            if time.monotonic() > deadline:
                lines = [f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in left]
                raise AssertionError("left running:\n" + "\n".join(lines))
            time.sleep(0.05)

    # ---- jobs

    def submit(self, script: Path, **settings: Any) -> str:
        """Submit a script's job; its name. Each script is read only once per session: that takes seconds."""
        spec, bundle = inspected(script)
        spec = msgspec.structs.replace(spec, **settings)
        place(self.kv, self.store, spec, bundle)
        return spec.name

    def read(self, job: str) -> views.JobView | None:
        """The job's records as they are now; on a machine in trouble a store may not answer at once."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return read_job(self.kv, job)
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def view(self, job: str) -> views.JobView:
        """The job's records as they are now."""
        found = self.read(job)
        assert found is not None
        return found

    def job(self, job: str) -> Summary:
        """The job as it is now."""
        return summarize(self.view(job))

    def until(self, job: str, condition: Callable[[Summary], Any], patience: float = PATIENCE) -> Summary:
        """Wait until the job is as described."""
        deadline = time.monotonic() + patience
        while True:
            view = self.read(job)
            if view is not None and condition(summarize(view)):
                return summarize(view)
            if time.monotonic() > deadline:
                raise AssertionError(f"after {patience} s: {summarize(view) if view else 'no such job'}")
            time.sleep(0.02)

    def until_true(self, condition: Callable[[], T], patience: float = PATIENCE) -> T:
        """Wait until this is true of anything else than a job; what it came to."""
        deadline = time.monotonic() + patience
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {patience} s"
            time.sleep(0.02)
        return found

    def lease_of(self, worker: str) -> int:
        """The lease that a worker's record is written under; `worker` is its id."""
        found = self.kv.get(keys.worker(worker))
        assert found is not None
        return found.lease

    def until_step(self, job: str, step: int) -> Summary:
        """Wait until somebody has that many steps behind it, by what the members say of themselves."""
        return self.until(job, lambda now: now.state == "done" or max(now.step, self.reached(job)) >= step)

    def reached(self, job: str) -> int:
        """The newest step that any living member has told of."""
        workers = views.parse(self.kv.range(keys.WORKERS)).workers.values()
        return max((w.value.progress.step for w in workers if w.value.job == job and w.value.progress), default=0)

    def step_at_hand(self) -> int:
        """The newest step that `small.py` has begun: at once and without the key-value store, unlike `reached`."""
        return max((int(step.name) for step in (self.folder / "steps").glob("[0-9]*")), default=0)

    @contextlib.contextmanager
    def slowly(self) -> Iterator[None]:
        """Meanwhile `small.py` takes its time, so that what is waited for comes before its end on any machine."""
        slow = self.folder / "steps" / "slow"
        slow.touch()
        try:
            yield
        finally:
            slow.unlink()

    def told(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this name that any process has written so far."""
        lines = [line for path in self._log_files() for line in path.read_text(errors="replace").splitlines()]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [record for record in found if isinstance(record, dict) and record.get("event") == event]

    def result(self, job: str, timeout: float = PATIENCE) -> Result:
        """Wait for the job's end, as its submitter would."""
        return Handle(job, self.kv).result(timeout)

    def history(self, manifest: str) -> list[bytes]:
        """What was recorded of every step, along the chain of commits that ends with this one: a JSON line each."""
        blobs = [commit.history for _, commit in commits.chain(self.store, manifest)]
        return [line for blob in reversed(blobs) if blob for line in get_blob(self.store, blob).splitlines()]

    def state(self, manifest: str) -> Any:
        """The state of a commit."""
        return commits.read_commit(self.store, manifest)[1]

    def logs(self) -> str:
        """The ends of all logs, for a test that failed."""
        parts = []
        for path in self._log_files():
            lines = path.read_text(errors="replace").splitlines()
            parts.append(f"==> {path.relative_to(self.folder)} <==\n" + "\n".join(lines[-TAIL_LINES:]))
        return "\n\n".join(parts)

    def _log_files(self) -> list[Path]:
        patterns = ("logs/*.log", "local/**/*.log", "workers/**/*.log")
        return sorted(path for pattern in patterns for path in self.folder.glob(pattern))


@cache
def inspected(script: Path) -> tuple[JobSpec, Bundle]:
    """See `inspect_script`."""
    return inspect_script(script.absolute(), fork_server=forked.shared())


@contextlib.contextmanager
def environment(env: Mapping[str, str], *, exactly: bool = False) -> Iterator[None]:
    """These variables for a while: in addition to those that there are, or nothing else."""
    before = dict(os.environ)
    if exactly:
        os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@contextlib.contextmanager
def told_on_failure(it: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster for as long as a test takes; all its logs are shown when the test fails."""
    with it:
        yield it
        if request.node.stash.get(FAILED, False):
            print(it.logs(), file=sys.stderr)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without processes on the embedded stores."""
    with told_on_failure(Cluster(tmp_path / "cluster"), request) as it:
        yield it
