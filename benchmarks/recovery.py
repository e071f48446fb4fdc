"""`kill -9` of one of three workers, until the next finished step: ours, `torchrun --nnodes=1:3`, torchft.

    python benchmarks/recovery.py [--model digits gpt] [--who ours-embedded ours-etcd torchrun torchft] [--kills 4]
                                  [--torchft PYTHON] [--samples FILE]

Three workers train the same model with the same batches per step. One is killed with all its processes, again and
again, and another takes its place; with ours, every second kill hits the runner alone, under a living agent. All write
a line when a step is finished, so all are measured alike: a kill costs the time until the standstill after it ends, and
the steps that are computed again, the one under way included. At the end the weights are compared with those of a run
of the same program that nobody disturbed.

The rivals are used as they come: torchrun with its default rendezvous timeouts (see `Torchrun` for the one thing that
is not the default) and a script that saves a checkpoint every 20 steps, as often as ours commits; torchft with the
lighthouse options of its README, and its DDP mended by a few lines without which no survivor survives. `--torchft`
names an interpreter that has it beside this environment's packages:

    python3.11 -m venv /tmp/torchft
    echo "import site; site.addsitedir('$PWD/.venv/lib/python3.11/site-packages')" \
        > /tmp/torchft/lib/python3.11/site-packages/main.pth
    /tmp/torchft/bin/pip install torchft

With `--samples`, runs are kept in a file and those of earlier calls are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import MORTAL, Cluster  # noqa: E402
from etcd_service import EtcdCluster  # noqa: E402
from ledger import Finished, Ledger, watched  # noqa: E402
from machine import Machine  # noqa: E402
from services import free_ports  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

RIVALS = Path(__file__).parent / "rivals"
EXAMPLES = ROOT / "examples"
WORKERS = 3
EVERY = 20
STEPS = {"digits": 400, "gpt": 120}
PATIENCE = 240.0
SOON = 0.5
"""Seconds within which a standstill must begin to be the kill's doing."""

Sample = dict[str, Any]


class Contender(Protocol):
    """Three workers that train until the last step."""

    ledger: Ledger

    def kill(self, number: int) -> None:
        """SIGKILL to one of them; another takes its place."""
        ...

    def numbered(self, steps: list[Finished]) -> list[tuple[float, int]]:
        """When which step was finished."""
        ...

    def digest(self) -> str | None:
        """Of the final weights, or None if training still goes on."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class Ours:
    """Workers on one machine, a coordinator, and the store lane or peers, as the cluster chooses."""

    def __init__(self, folder: Path, model: str, services: str, python: str) -> None:
        del python
        self._stack = ExitStack()
        kv = None
        if services == "etcd":
            (folder / "etcd").mkdir()
            etcd = EtcdCluster(folder / "etcd", 3)
            self._stack.callback(etcd.close)
            kv = etcd.address
        self.cluster = self._stack.enter_context(Cluster(folder / "cluster", kv))
        self.ledger = Ledger(folder / "ledger")
        self._machine = Machine(self.cluster, self.ledger.env)
        self._stack.callback(self._machine.close)
        self.cluster.even_coordinator()  # what a change costs is measured here, not when it pays
        for _ in range(WORKERS):
            self._join()
        self.cluster.until_true(lambda: len(self.cluster.kv.range("/easyscale/v1/workers/")) == WORKERS)
        script = watched(EXAMPLES / f"{model}.py", folder / "code")
        settings = {"ests": WORKERS, "epochs": None, "steps": STEPS[model], "commit_every": EVERY, "min_workers": 1}
        self._job = self.cluster.submit(script, **settings)
        self._order: dict[int, int] = {}

    def _join(self) -> None:
        number = len(list((self.cluster.folder / "workers").glob("*")))
        self._machine.join(f"w{number}")

    def kill(self, number: int) -> None:
        """An agent, or a runner alone."""
        self.cluster.until(self._job, lambda now: len(now.workers) == WORKERS)
        worker = self._machine.workers[number % WORKERS]
        if number % 2:
            assert worker.kill_runner()
            return
        worker.signal(signal.SIGKILL)
        self._machine.workers.remove(worker)
        worker.close()
        self._join()

    def numbered(self, steps: list[Finished]) -> list[tuple[float, int]]:
        """All replicas come to the same states, one after the other, so each state's first line gives its number."""
        for step in steps:
            self._order.setdefault(step.fingerprint, len(self._order) + 1)
        return [(step.at, self._order[step.fingerprint]) for step in steps]

    def digest(self) -> str | None:
        """Of the job's last commit."""
        now = self.cluster.job(self._job)
        assert now.state != "failed", now.reason
        return now.state_digest if now.state == "done" else None

    def close(self) -> None:
        """Also the servers."""
        self._stack.close()


class Rival:
    """Processes that this one starts and kills: see the scripts in `rivals/`."""

    def __init__(self, folder: Path, model: str, python: str) -> None:
        self._folder, self._python = folder, python
        self.ledger = Ledger(folder / "ledger")
        (folder / "code").mkdir()
        (folder / "code" / "model.py").write_text((EXAMPLES / f"{model}.py").read_text())
        self._result = folder / "result"
        self._env = os.environ | self.ledger.env | {
            "MODEL_FOLDER": str(folder / "code"), "STEPS": str(STEPS[model]), "EVERY": str(EVERY),
            "CHECKPOINT": str(folder / "checkpoint.pt"), "RESULT": str(self._result), "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        self._running: list[subprocess.Popen[bytes]] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._prepare()
        for number in range(WORKERS):
            self._running.append(self._worker(number))

    def _prepare(self) -> None:
        """What the workers need."""

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _start(self, name: str, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*MORTAL, *command], env=self._env | env, cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, number: int) -> None:
        """A whole machine: all processes that were started together."""
        slot = number % WORKERS
        self._end(self._running[slot])
        self._running[slot] = self._worker(slot)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        family = descendants(process.pid)
        for pid in [process.pid, *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def numbered(self, steps: list[Finished]) -> list[tuple[float, int]]:
        """They write the number itself."""
        return [(step.at, step.fingerprint) for step in steps]

    def digest(self) -> str | None:
        """What the first rank wrote."""
        if self._result.exists() and (text := self._result.read_text()):
            return text
        assert any(process.poll() is None for process in self._running), f"all have ended: {self.logs()}"
        return None

    def logs(self) -> str:
        """The ends of their logs."""
        return "\n".join(f"==> {path.name}\n{path.read_text()[-1500:]}" for path in self._folder.glob("*.log"))

    def close(self) -> None:
        """Kill everything."""
        for process in self._running + self._others:
            self._end(process)


class Torchrun(Rival):
    """Three torchrun agents with one worker each.

    The store of their rendezvous runs where no kill hits it. The store of the workers is made anew for each round: by
    default it stays with the first agent, and when that is killed, the others wait for it in vain.
    """

    def _prepare(self) -> None:
        (self._port,) = free_ports(1)
        code = (
            "import time, torch.distributed as d\n"
            f"s = d.TCPStore('127.0.0.1', {self._port}, is_master=True, wait_for_workers=False, multi_tenant=True)\n"
            "time.sleep(1e6)"
        )
        self._others.append(self._start("store", [sys.executable, "-c", code]))

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{WORKERS}", "--nproc-per-node=1"),
            *("--max-restarts=1000", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            *("--rdzv-id=bench", "--rdzv-conf=is_host=false", "--local-addr=127.0.0.1"),
            str(RIVALS / "torchrun_ddp.py"),
        ]
        return self._start(f"torchrun-{number}", command)


class Torchft(Rival):
    """Three replica groups of one process each, and a lighthouse."""

    def _prepare(self) -> None:
        (self._port,) = free_ports(1)
        lighthouse = str(Path(self._python).parent / "torchft_lighthouse")
        options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        self._others.append(self._start("lighthouse", [lighthouse, "--bind", f"127.0.0.1:{self._port}", *options]))

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        env = {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}", "GROUP": str(number), "GROUPS": str(WORKERS),
        }  # fmt: skip
        return self._start(f"torchft-{number}", [self._python, str(RIVALS / "torchft_ddp.py")], **env)


WHO: dict[str, Callable[[Path, str, str], Contender]] = {
    "ours-embedded": lambda folder, model, python: Ours(folder, model, "embedded", python),
    "ours-etcd": lambda folder, model, python: Ours(folder, model, "etcd", python),
    "torchrun": Torchrun,
    "torchft": Torchft,
}


def descendants(pid: int) -> list[int]:
    """All living children, and theirs."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def wait_for(condition: Callable[[], Any], what: str) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


def recovery(steps: list[tuple[float, int]], killed: float) -> tuple[float, int] | None:
    """Seconds from a kill to the end of the standstill after it, and steps computed again; None: none has ended yet.

    The standstill is the longest time without a finished step that begins at about the kill and ends after it.
    """
    gaps = [
        (after[0] - before[0], before, after)
        for before, after in itertools.pairwise(steps)
        if after[0] > killed and before[0] < killed + SOON
    ]
    if not gaps or steps[-1][0] < killed + SOON:
        return None
    _, before, after = max(gaps)
    furthest = max(step for at, step in steps if at <= before[0])
    return after[0] - killed, furthest - after[1] + 2


def one_run(who: str, model: str, kills: int, python: str) -> Sample:
    """A run with so many kills (0: undisturbed), from the start to the last step."""
    with tempfile.TemporaryDirectory(prefix="easyscale-recovery-") as scratch:
        it = WHO[who](Path(scratch), model, python)
        try:
            seconds, again = [], []
            for number in range(kills):
                goal = it.ledger.finished + 4 * WORKERS  # lines of some steps that all make together
                wait_for(lambda goal=goal: it.digest() or (it.ledger.finished >= goal and all_there(it)), "all workers")
                if it.digest():
                    print(f"{who} {model}: at the end after {number} kills", flush=True)
                    break
                it.kill(number)
                killed = time.time()
                wait_for(lambda at=killed: recovery(it.numbered(it.ledger.steps()), at) or it.digest(), "steps")
                found = recovery(it.numbered(it.ledger.steps()), killed)
                if found is None:  # that kill came too late
                    break
                seconds.append(found[0])
                again.append(found[1])
                print(f"{who} {model}: {found[0]:.2f} s, {found[1]} step(s) again", flush=True)
            wait_for(it.digest, "the end")
            return {"who": who, "model": model, "seconds": seconds, "again": again, "digest": it.digest()}
        finally:
            it.close()


def all_there(it: Contender) -> bool:
    """Whether as many processes finish steps as there should be workers."""
    steps = it.ledger.steps()
    newest = [step for step in steps if step.at > time.time() - 5.0]
    return bool(newest) and len({step.pid for step in newest[-3 * WORKERS :]}) == WORKERS


def show(samples: list[Sample]) -> None:
    """The table."""
    print("\n| model | who | kills | seconds, median (worst) | steps computed again, median (worst) | final weights |")
    print("|---|---|---|---|---|---|")
    for model, who in dict.fromkeys((sample["model"], sample["who"]) for sample in samples):
        mine = [sample for sample in samples if (sample["model"], sample["who"]) == (model, who)]
        seconds = [value for sample in mine for value in sample["seconds"]]
        again = [value for sample in mine for value in sample["again"]]
        calm = {sample["digest"] for sample in mine if not sample["seconds"]}
        stirred = {sample["digest"] for sample in mine if sample["seconds"]}
        if not seconds:
            continue
        weights = "" if not calm else "equal" if stirred == calm else "differ"
        print(
            f"| {model} | {who} | {len(seconds)} | {statistics.median(seconds):.2f} ({max(seconds):.2f}) "
            f"| {statistics.median(again):.0f} ({max(again)}) | {weights} |"
        )


def kept(path: Path | None) -> list[Sample]:
    """Runs of earlier calls."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def tables(
    models: list[str] | None = None, who: list[str] | None = None, kills: int = 4, torchft: str = "",
    samples: Path | None = None,
) -> None:  # fmt: skip
    """Measure and print the table."""
    found = kept(samples)
    for model in models or list(STEPS):
        for name in who or [name for name in WHO if torchft or name != "torchft"]:
            calm = any((run["who"], run["model"], run["seconds"]) == (name, model, []) for run in found)
            for number in [kills] if calm else [0, kills]:
                found.append(one_run(name, model, number, torchft))
                if samples:
                    with samples.open("a") as file:
                        file.write(json.dumps(found[-1]) + "\n")
    show(found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=STEPS, nargs="+")
    parser.add_argument("--who", choices=WHO, nargs="+")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--torchft", default="", metavar="PYTHON", help="an interpreter that has torchft")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="keep runs there, and count those of before")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    tables(chosen.model, chosen.who, chosen.kills, chosen.torchft, chosen.samples)


if __name__ == "__main__":
    main()
