"""Virtual time, and the processes that live in it. Each thread of a process is a greenlet, so the product's ordinary
blocking code runs as it is; wherever it would block it gives way to the hub, which knows who is next.

Such a point is an *await*. A process can be stopped (SIGSTOP) or killed at any of them. A killed one never runs on: its
greenlets are unwound, and whatever their `finally` clauses would still wait for ends them at once.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable

Token = int


class Process:
    """One operating system process: what is stopped and killed together.

    Args:
        name: for the history.
        clock, wall: how far its monotonic and its wall clock are off the hub's time, in seconds.
    """

    def __init__(self, hub: Hub, name: str, *, clock: float = 0.0, wall: float = 0.0) -> None:
        self.hub, self.name, self.clock, self.wall = hub, name, clock, wall
        self.alive = True
        self.owner: Any = None
        self.stopped_until = 0.0
        self.threads: list[Thread] = []
        self.blocked: list[tuple[Thread, Token]] = []
        """What would have run on, had it not been stopped."""
        self.on_death: list[Callable[[], None]] = []
        self.strike: tuple[int, Callable[[], None]] | None = None
        """After so many more awaits of this process, do this: how a fault comes at a certain await."""

    def stop(self, seconds: float) -> None:
        """SIGSTOP now, SIGCONT after `seconds`."""
        self.stopped_until = max(self.stopped_until, self.hub.now + seconds)
        self.hub.at(self.stopped_until, self.go_on)

    def go_on(self) -> None:
        """SIGCONT, unless it was stopped for longer meanwhile."""
        if self.stopped_until <= self.hub.now:
            blocked, self.blocked = self.blocked, []
            for thread, token in blocked:
                thread.resume(token)

    def kill(self) -> None:
        """SIGKILL, or the end of `main`. Takes effect before anything else of the process happens."""
        if not self.alive:
            return
        self.alive = False
        self.hub.at(self.hub.now, self._unwind)
        for call in self.on_death:
            self.hub.at(self.hub.now, call)

    def _unwind(self) -> None:
        threads, self.threads = self.threads, []
        for thread in threads:
            thread.unwind()


class Thread:
    """One thread of a process."""

    def __init__(self, process: Process, call: Callable[[], None]) -> None:
        self.process, self._call = process, call
        self.finished = False
        self.token: Token = 0
        self.woken = False
        self._greenlet = greenlet(self._run, process.hub.main)  # the hub is who goes on when it ends
        process.threads.append(self)
        process.hub.at(process.hub.now, self.resume, 0)

    def resume(self, token: Token) -> None:
        """Run on from the await with this number, if it still waits there."""
        process, hub = self.process, self.process.hub
        if token != self.token or self.finished or not process.alive:
            return
        if process.stopped_until > hub.now:
            process.blocked.append((self, token))
            return
        self.token += 1
        hub.thread = self
        self._greenlet.switch()
        hub.thread = None

    def wake(self) -> None:
        """End the wait it is in before its time."""
        self.woken = True
        self.process.hub.at(self.process.hub.now, self.resume, self.token)

    def unwind(self) -> None:
        """Never run on."""
        if not self.finished:
            self.process.hub.thread = self
            self._greenlet.throw(GreenletExit)
            self.process.hub.thread = None

    def _run(self) -> None:
        try:
            self._call()
        except GreenletExit:
            pass
        except BaseException as error:
            if self.process.alive:
                self.process.hub.crashed(self.process, error)
        finally:
            self.finished = True
            if self in self.process.threads:
                self.process.threads.remove(self)


class Hub:
    """Runs what is due, in order of virtual time.

    Args:
        crashed: told of an exception that ended a thread.
    """

    def __init__(self, crashed: Callable[[Process, BaseException], None], now: float = 1000.0) -> None:
        self.now, self.crashed = now, crashed
        self.thread: Thread | None = None
        self.awaits = 0
        self.main = getcurrent()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    @property
    def process(self) -> Process | None:
        """Who is running; None: the world itself."""
        return self.thread.process if self.thread is not None else None

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Do something later."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, call, arguments))

    def sleep(self, seconds: float) -> bool:
        """An await. True when it ended before its time, because somebody woke this thread."""
        thread = self.thread
        assert thread is not None, "only a process can wait"
        process = thread.process
        if not process.alive:
            raise GreenletExit
        self.awaits += 1
        if process.strike is not None:
            self._strike(process, *process.strike)
        thread.woken = False
        if seconds != float("inf"):
            self.at(self.now + seconds, thread.resume, thread.token)
        self.thread = None
        self.main.switch()
        if not process.alive:
            raise GreenletExit
        return thread.woken

    def _strike(self, process: Process, awaits: int, call: Callable[[], None]) -> None:
        process.strike = (awaits - 1, call)
        if awaits <= 1:
            process.strike = None
            call()

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let the world go on until then, or until `stop`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if stop():
                return
            self.now, _, call, arguments = heapq.heappop(heap)
            call(*arguments)
        self.now = max(self.now, until)
