"""The standard library as the simulated processes see it: `time`, `threading`, `queue`, `random`, `secrets` on the hub.

`installed` puts these in place of the real modules' names in the product (and in tenacity), for one world at a time.
The product is not changed: its drivers, threads and retries run as they are.
"""

from __future__ import annotations

import contextlib
import functools
import queue as real_queue
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import easyscale.chance
import easyscale.coordinator.coordinator
import easyscale.coordinator.lease
import easyscale.coordinator.records
import easyscale.pipeline.committer
import easyscale.pipeline.joblogs
import easyscale.pipeline.laps
import easyscale.pipeline.reach
import easyscale.pipeline.runner
import easyscale.pipeline.worker
import easyscale.storage.commits
import easyscale.storage.s3
import easyscale.storage.transfers
import tenacity
import tenacity.nap

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from .hub import Hub, Thread

EPOCH = 1_700_000_000.0


class Time:
    """Stands for `time`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def monotonic(self) -> float:
        process = self._hub.process
        return self._hub.now + (process.clock if process else 0.0)

    def time(self) -> float:
        process = self._hub.process
        return EPOCH + self._hub.now + (process.wall if process else 0.0)

    def sleep(self, seconds: float) -> None:
        self._hub.sleep(seconds)


class Waiters:
    """Threads that wait for the same thing."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._threads: list[Thread] = []

    def wait(self, timeout: float | None) -> bool:
        thread = self._hub.thread
        assert thread is not None
        self._threads.append(thread)
        try:
            return self._hub.sleep(float("inf") if timeout is None else max(0.0, timeout))
        finally:
            self._threads.remove(thread)

    def wake(self) -> None:
        for thread in self._threads:
            thread.wake()


class Condition:
    """Stands for `threading.Condition` and `threading.Lock`: threads give way only where they wait."""

    def __init__(self, hub: Hub) -> None:
        self._waiters = Waiters(hub)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        return self._waiters.wait(timeout)

    def notify_all(self) -> None:
        self._waiters.wake()


class Event:
    """Stands for `threading.Event`."""

    def __init__(self, hub: Hub) -> None:
        self._waiters = Waiters(hub)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class Queue:
    """Stands for `queue.SimpleQueue`."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._waiters = hub, Waiters(hub)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        end = self._hub.now + timeout if timeout is not None else float("inf")
        while not self._items and block and self._hub.now < end:
            self._waiters.wait(end - self._hub.now)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()


class VirtualThread:
    """Stands for `threading.Thread`: a further thread of the process that starts it."""

    def __init__(self, hub: Hub, target: Callable[[], None], args: tuple[Any, ...] = ()) -> None:
        self._hub, self._target, self._args = hub, target, args
        self._thread: Thread | None = None
        self._ended = Waiters(hub)

    def start(self) -> None:
        from .hub import Thread

        process = self._hub.process
        assert process is not None
        self._thread = Thread(process, self._run)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.finished

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._ended.wait(timeout)

    def _run(self) -> None:
        self._target(*self._args)
        assert self._thread is not None
        self._thread.finished = True
        self._ended.wake()


class Pool:
    """Stands for `ThreadPoolExecutor`, one thing after the other."""

    def __init__(self, threads: int) -> None:
        del threads

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def map(self, call: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return iter([call(*arguments) for arguments in zip(*items, strict=True)])


@contextlib.contextmanager
def installed(hub: Hub, rng: random.Random) -> Iterator[None]:
    """Let the product live in the hub's time."""
    e = easyscale
    time, queue = Time(hub), SimpleNamespace(SimpleQueue=lambda: Queue(hub), Empty=real_queue.Empty)
    threading = SimpleNamespace(
        Thread=lambda target, name="", daemon=False, args=(): VirtualThread(hub, target, args),
        Condition=lambda: Condition(hub),
        Lock=lambda: Condition(hub),
        Event=lambda: Event(hub),
        current_thread=lambda: None,
    )
    secrets = SimpleNamespace(token_hex=lambda count: rng.randbytes(count).hex())
    # The same bytes are read again and again by everybody's polling; records are immutable.
    decode = functools.lru_cache(maxsize=4096)(e.coordinator.records.decode)
    patches: list[tuple[Any, dict[str, Any]]] = [
        (e.coordinator.coordinator, {"time": time, "secrets": secrets, "os": SimpleNamespace(getpid=lambda: 1)}),
        (e.coordinator.records, {"decode": decode}),
        (e.coordinator.lease, {"time": time, "threading": threading}),
        (e.pipeline.worker, {"time": time, "threading": threading, "queue": queue, "secrets": secrets}),
        (e.pipeline.runner, {"time": time, "queue": queue}),
        (e.pipeline.laps, {"time": time}),
        (e.pipeline.committer, {"threading": threading, "queue": queue}),
        (e.pipeline.reach, {"threading": threading}),
        (e.pipeline.joblogs, {"threading": threading}),
        (e.storage.commits, {"time": time}),
        (e.storage.transfers, {"ThreadPoolExecutor": Pool}),
        (e.storage.s3, {"ThreadPoolExecutor": Pool}),
        (tenacity, {"time": time}),
        (tenacity.nap, {"time": time}),
        (e.chance, {"_own": rng}),
    ]
    defaults: list[tuple[Any, dict[str, Any]]] = [
        (e.coordinator.lease.LeaseKeeper.__init__, {"clock": time.monotonic}),
        (e.storage.commits.write_commit, {"clock": time.monotonic, "sleep": time.sleep}),
    ]
    with contextlib.ExitStack() as stack:
        for module, names in patches:
            for name, value in names.items():
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        for function, values in defaults:
            kept = dict(function.__kwdefaults__)
            stack.callback(function.__kwdefaults__.update, kept)
            function.__kwdefaults__.update(values)
        yield
