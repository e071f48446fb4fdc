"""The worker process: the thin driver that feeds the agent (`agent.py`) from leases, watches, signals and its runner.

It runs no user code and imports no torch, so nothing a user does can starve its lease. One device, one worker.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from ..alive import AliveFile
from ..coordinator import keys, records, views
from ..coordinator.lease import LeaseKeeper
from ..coordinator.transactions import apply
from ..errors import UnavailableError
from . import actions, messages
from .agent import Agent
from .devices import device_kind, memory_bytes
from .joblogs import LogShipper
from .owners.owner import Owner
from .process import RunnerProcess
from .reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..coordinator.kv import KeyValueStore
    from ..storage.objects import ObjectStore
    from .forkserver import ForkServer

log = structlog.get_logger()

LEASE_SECONDS = 10.0
POLL_SECONDS, IDLE_POLL_SECONDS = 0.25, 1.0
"""Between looks at the store with and without a runner; watches wake it in between."""

TICK_SECONDS = 0.05
LAST_LOGS_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker is run.

    Args:
        name: for people; the id adds a boot nonce. device: `cpu` or `cuda:N`.
        folder: logs, unpacked code, cached blobs.
        only: the one job it serves; None: any.
        lane: how it exchanges: see `records.WorkerRecord`. host: where peers reach this machine.
        ttl: seconds of its lease. grace: seconds to leave in. hang_floor: see `hang.HangWatch`.
        max_memory: bytes of the device's memory that jobs may count on; None: all.
        slowdown: see `slowdown.py`.
        owner: whose the device is, and what he wants. alive: for whoever watches over the process.
    """

    name: str
    device: str
    folder: Path
    only: str | None = None
    lane: records.LaneChoice = "auto"
    host: str = "127.0.0.1"
    ttl: float = LEASE_SECONDS
    grace: float = 25.0
    hang_floor: float = 120.0
    max_memory: int | None = None
    slowdown: float = 1.0
    owner: Owner = field(default=Owner())
    alive: AliveFile = field(default_factory=AliveFile)


def boot_id(name: str) -> str:
    """A worker's id: a restarted worker is another one, and its old claims are not taken for alive."""
    return f"{name}-{secrets.token_hex(3)}"


class Worker:
    """One agent with its drivers. Its runners come from the fork server."""

    def __init__(self, kv: KeyValueStore, store: ObjectStore, options: WorkerOptions, fork_server: ForkServer) -> None:
        self._kv, self._store, self._options, self._fork_server = kv, store, options, fork_server
        self._events: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()
        memory = memory_bytes(options.device)
        me = records.WorkerRecord(
            id=boot_id(options.name),
            name=options.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=options.device,
            kind=device_kind(options.device),
            memory=memory if options.max_memory is None else min(memory, options.max_memory),
            only=options.only,
            lane=options.lane,
        )
        self._agent = Agent(me, hang_floor=options.hang_floor, grace=options.grace)
        self._keeper = LeaseKeeper(kv, options.ttl, self._on_lost)
        self._process: RunnerProcess | None = None
        self._logs = LogShipper(kv, store, self._agent.id)
        self._reach = Reach(kv, self._agent.id, lambda ids: self._events.put(lambda _: self._agent.on_reach(ids)))
        self._owner = options.owner.watch(
            options.device, lambda: self._process is not None, on_away=self._on_away, on_notice=self._on_notice
        )
        self._watched: str | None = None  # the job whose keys it watches
        self._looked_at = float("-inf")
        self._look_now = False
        self._done = False
        self._signals = 0

    @property
    def _poll(self) -> float:
        return POLL_SECONDS if self._process is not None else IDLE_POLL_SECONDS

    @property
    def id(self) -> str:
        """The worker's id."""
        return self._agent.id

    def run(self) -> None:
        """Serve until told to leave, then hand over."""
        if self._owner is not None:
            self._owner.start()  # first: who serves only in some hours must not begin before it is told that
        self._keeper.start()
        watcher = threading.Thread(target=self._watch, name="easyscale-watch", daemon=True)
        watcher.start()
        log.info("worker.started", worker=self.id, device=self._options.device, kv=self._kv.address)
        try:
            while not self._done:
                self._options.alive.beat(time.monotonic())
                self._take_in()
                if self._look_now or time.monotonic() - self._looked_at >= self._poll:
                    self._look()
                else:
                    self._act(self._agent.deadlines(time.monotonic()))
        finally:
            if self._process is not None:
                self._process.signal("kill")
                self._process.wait(5.0)
            if self._owner is not None:
                self._owner.close()
            self._reach.close()
            self._logs.close(LAST_LOGS_SECONDS)
            if self._signals > 1:  # told to go at once: that is no death of its job's making either
                apply(self._kv, self._agent.farewell())
            self._keeper.close()
            log.info("worker.ended", worker=self.id)

    def leave(self, *_: Any) -> None:
        """Signal handler: go gracefully; the second time at once."""
        self._signals += 1
        if self._signals > 1:
            self._done = True
        self._events.put(self._leave)

    def _leave(self, now: float) -> None:
        self._agent.on_leave(now)
        self._look_now = True

    def _on_away(self, why: str) -> None:
        self._events.put(lambda now: self._away(why, now))

    def _away(self, why: str, now: float) -> None:
        self._agent.on_away(why, now)
        self._look_now = True

    def _on_notice(self, why: str) -> None:
        log.warning("worker.notice", worker=self.id, why=why)
        self._events.put(self._leave)

    # ---- events in

    def _take_in(self) -> None:
        """Wait a moment for the first event, then take in all there are."""
        try:
            event = self._events.get(timeout=TICK_SECONDS if self._process is not None else IDLE_POLL_SECONDS / 4)
            while True:
                event(time.monotonic())
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _watch(self) -> None:
        """Wake the loop when something of ours may have changed; of hundreds of other jobs something always has."""
        watched, watch = self._watched, None
        while not self._done:
            if watch is None or watched != self._watched:
                if watch is not None:
                    watch.close()
                watched = self._watched
                watch = self._kv.watch(keys.assigned(self.id), *([keys.job(watched)] if watched else []))
                self._events.put(self._wake)  # for what has changed since it was decided what to watch
            if watch.wait(IDLE_POLL_SECONDS):
                self._events.put(self._wake)
        if watch is not None:
            watch.close()

    def _wake(self, _: float) -> None:
        self._look_now = True

    def _on_lost(self, reason: str) -> None:
        log.warning("worker.lease_lost", worker=self.id, reason=reason)
        self._events.put(self._lost)

    def _lost(self, _: float) -> None:
        if self._keeper.lease is None:  # not if the agent has noticed before, and has a new one
            self._agent.on_lease(0)
        self._look_now = True

    def _on_message(self, process: list[RunnerProcess], message: messages.FromRunner) -> None:
        self._events.put(lambda now: self._heard(process, message, now))

    def _heard(self, process: list[RunnerProcess], message: messages.FromRunner, now: float) -> None:
        if self._process in process:  # an earlier runner's last words do not count
            self._agent.on_message(message, now)
            # Several of these come with every step, and none of them calls for a look at the store.
            self._look_now |= not isinstance(message, messages.Computing | messages.Waiting | messages.Stepped)

    def _exited(self, process: list[RunnerProcess], how: str) -> None:
        if self._process in process:
            self._process = None
            self._logs.hurry()
            self._agent.on_exit(how)
            self._look_now = True

    # ---- looking and doing

    def _look(self) -> None:
        """One round: keep the lease, read the store, decide, do."""
        now = self._looked_at = time.monotonic()
        self._look_now = False
        try:
            self._hold_lease()
            assigned, job = self._picture()
        except UnavailableError as error:
            log.warning("worker.store_unavailable", worker=self.id, error=str(error))
            assigned, job = None, None
            if self._agent.runner is not None or self._agent.leaving_since is None:
                self._act(self._agent.deadlines(now))
                return
        self._act(self._agent.decide(assigned, job, now))
        self._reach.serve(self._agent.met_for)

    def _hold_lease(self) -> None:
        if self._agent.lease == 0:
            lease = self._keeper.grant()
            self._agent.on_lease(lease.id)

    def _picture(self) -> tuple[str | None, views.JobView | None]:
        assignment = self._kv.get(keys.assigned(self.id))
        assigned = assignment.value.decode() if assignment else None
        name = self._watched = self._agent.wanted_job(assigned)
        if name is None:
            return assigned, None
        view = views.parse(self._kv.range(keys.job(name)))
        return assigned, view.jobs.get(name) or views.JobView(name)

    def _act(self, wanted: list[actions.Action]) -> None:
        for action in wanted:
            if isinstance(action, actions.Write):
                outcome = apply(self._kv, action.txn)
                self._agent.on_outcome(action.txn, outcome)
                self._look_now |= outcome == "yes" and action.txn.tag != "record"
            elif isinstance(action, actions.Start):
                self._start(action.prepare)
            elif isinstance(action, actions.Exit):
                self._done = True
            elif self._process is not None:
                if isinstance(action, actions.Send):
                    self._process.send(action.message)
                else:
                    self._process.signal(action.kind)

    def _start(self, prepare: messages.Prepare) -> None:
        options = self._options
        path = options.folder / "logs" / prepare.job / f"{self.id}.log"
        self._logs.add(prepare.job, path)
        mine: list[RunnerProcess] = []
        try:
            self._process = RunnerProcess(
                self._fork_server,
                store=self._store.address,
                device=options.device,
                folder=options.folder,
                cache=not self._store.address.startswith("file:"),
                host="" if options.lane == "store" else options.host,
                slowdown=options.slowdown,
                log=path,
                on_message=lambda message: self._on_message(mine, message),
                on_exit=lambda how: self._events.put(lambda _: self._exited(mine, how)),
            )
        except OSError as error:  # a full disk, no process left: another worker may do better
            what = f"this worker cannot start a runner: {error}"
            self._agent.on_message(messages.Failed(cause="refused", step=0, message=what), time.monotonic())
            self._agent.on_exit(what)
            self._look_now = True
            return
        mine.append(self._process)
        self._process.send(prepare)
        log.info("worker.runner_started", worker=self.id, job=prepare.job)


def install_signals(worker: Worker) -> None:
    """SIGTERM and SIGINT ask the worker to leave."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.leave)
