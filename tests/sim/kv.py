"""The key-value store as simulated processes see it: the memory store behind a network and a server that lie."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from easyscale.coordinator import keys
from easyscale.coordinator.kv import CALL_DEADLINE, KeyValue
from easyscale.coordinator.memory import MemoryKV, _Lease
from easyscale.errors import OutcomeUnknownError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hub import Process
    from .world import World

STALE_SECONDS = 3.0

DECISIONS = 6.0
"""So many times more often than others are those writes hurt that decide something: all but signs of life."""

PUBLISHES = 20.0
"""So many times more often than before other decisions is a process stopped before it publishes."""


class Ordered(dict[Any, None]):
    """A set that is gone through in order of entry: chance must be drawn in the same order in every run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class Picture(NamedTuple):
    """All keys as they were."""

    time: float
    keys: dict[str, KeyValue]


class JudgedKV(MemoryKV):
    """What is true. The judge sees every change, and a few older pictures are kept for stale reads."""

    def __init__(self, world: World) -> None:
        super().__init__("sim", clock=lambda: world.hub.now)
        self._world = world
        self._watches = Ordered()  # type: ignore[assignment]
        self.author: Process | None = None
        self.pictures: deque[Picture] = deque(maxlen=64)
        self.ghosts: set[int] = set()
        self.deadlines: dict[int, float] = {}
        """Until when each lease was ever promised."""

    def _apply(self, operations: Any) -> None:
        before = dict(self._keys)
        self.pictures.append(Picture(self._world.hub.now, before))
        super()._apply(operations)
        self._world.judge.applied(before, self._keys, self.author)

    def _end(self, lease: int) -> None:
        """Whoever happens to call when a lease has run out is not the author of that."""
        author, self.author = self.author, None
        try:
            super()._end(lease)
        finally:
            self.author = author

    def grant(self, ttl: float) -> int:
        lease = super().grant(ttl)
        self.deadlines[lease] = self._leases[lease].deadline
        return lease

    def keep_alive(self, lease: int) -> bool:
        alive = super().keep_alive(lease)
        if alive:
            self.deadlines[lease] = self._leases[lease].deadline
        return alive

    def elect(self) -> None:
        """A new leader among the servers: the time of every lease starts anew."""
        now = self._world.hub.now
        for number, lease in self._leases.items():
            self._leases[number] = _Lease(lease.ttl, now + lease.ttl)
            self.deadlines[number] = now + lease.ttl

    def revoke_silently(self, lease: int) -> None:
        """The lease ends, and renewals are answered as if it had not."""
        self.ghosts.add(lease)
        self.revoke(lease)

    def leases(self) -> list[int]:
        return sorted(self._leases)

    def stale(self) -> dict[str, KeyValue] | None:
        """An older picture."""
        rng, now = self._world.rng, self._world.hub.now
        known = [picture for picture in self.pictures if now - picture.time < STALE_SECONDS]
        return rng.choice(known).keys if known else None


class LyingKV:
    """One store for all processes; whoever calls is who runs."""

    def __init__(self, world: World) -> None:
        self.world, self.inner = world, JudgedKV(world)
        self.address = self.inner.address
        self.down_until = 0.0
        self.cut_off: dict[Process, float] = {}

    def get(self, key: str) -> Any:
        return self._read(lambda: self.inner.get(key), lambda picture: picture.get(key))

    def range(self, prefix: str) -> Any:
        return self._read(
            lambda: self.inner.range(prefix),
            lambda picture: [picture[key] for key in sorted(picture) if key.startswith(prefix)],
        )

    def txn(self, compares: Any, operations: Any) -> Any:
        decides = compares and any(operation.key != keys.LEADER for operation in operations)
        if decides:
            self._stop_first(PUBLISHES if any(operation.key.endswith("/head") for operation in operations) else 1.0)
        times = DECISIONS if decides else 1.0
        return self._write(lambda: self.inner.txn(compares, operations), OutcomeUnknownError, times)

    def grant(self, ttl: float) -> int:
        lease: int = self._write(lambda: self.inner.grant(ttl), UnavailableError)
        return lease

    def keep_alive(self, lease: int) -> bool:
        def renew() -> bool:
            if lease in self.inner.ghosts and self.world.faulty:
                self.world.fault("renewal of a revoked lease answered yes")
                self.inner.deadlines[lease] = float("inf")
                return True
            return self.inner.keep_alive(lease)

        alive: bool = self._write(renew, UnavailableError)
        return alive

    def revoke(self, lease: int) -> None:
        self._write(lambda: self.inner.revoke(lease), UnavailableError)

    def watch(self, *prefixes: str) -> LyingWatch:
        self._travel()
        return LyingWatch(self.world, self.inner, prefixes)

    def close(self) -> None:
        return None

    # ---- the network

    def _stop_first(self, times: float) -> None:
        world, process = self.world, self.world.hub.process
        if process is not None and world.chance("kv_stopped", "SIGSTOP before a decision is sent", times):
            short, long = world.rng.uniform(0.1, 2.0), world.worker_ttl + world.rng.uniform(0.0, 8.0)
            process.stop(world.rng.choice([short, long]))
            if process.owner is not None and process.owner.runner is not None and world.rng.random() < 0.5:
                process.owner.runner.process.stop(process.stopped_until - world.hub.now)

    def _unreachable(self) -> bool:
        process, now = self.world.hub.process, self.world.hub.now
        return self.down_until > now or (process is not None and self.cut_off.get(process, 0.0) > now)

    def _travel(self) -> None:
        world = self.world
        if world.hub.process is not None:
            world.judge.lease(world.hub.process)
        slow = world.chance("kv_slow", "key-value call slow")
        world.hub.sleep(world.rng.uniform(0.1, 0.9) if slow else world.rng.uniform(0.0005, 0.004))

    def _no_answer(self, kind: type[UnavailableError]) -> UnavailableError:
        self.world.hub.sleep(CALL_DEADLINE)
        return kind("no answer")

    def _read(self, call: Callable[[], Any], of: Callable[[dict[str, KeyValue]], Any]) -> Any:
        world = self.world
        self._travel()
        if self._unreachable():
            raise self._no_answer(UnavailableError)
        if world.chance("kv_lost", "key-value read lost"):
            raise self._no_answer(UnavailableError)
        stale = self.inner.stale() if world.chance("kv_stale", "stale read") else None
        answer = of(stale) if stale is not None else call()
        self._travel()
        return answer

    def _write(self, call: Callable[[], Any], unknown: type[UnavailableError], times: float = 1.0) -> Any:
        """A call that changes something. What is raised when it is not answered is `unknown`."""
        world, author = self.world, self.world.hub.process

        def applied() -> Any:
            self.inner.author = author
            try:
                return call()
            finally:
                self.inner.author = None

        self._travel()
        if self._unreachable():
            if world.rng.random() < 0.5:
                raise UnavailableError("not connected")
            raise self._no_answer(unknown)
        if world.chance("kv_lost", "key-value write lost", times):
            raise self._no_answer(unknown)
        if world.chance("kv_late", "key-value write applied late", times):
            world.hub.at(world.hub.now + world.rng.uniform(0.0, 8.0), self._late, applied)
            raise self._no_answer(unknown)
        answer = applied()
        if world.chance("kv_answer_lost", "key-value write applied, answer lost", times):
            raise self._no_answer(unknown)
        self._travel()
        return answer

    def _late(self, applied: Callable[[], Any]) -> None:
        try:
            applied()
        except UnavailableError as error:
            self.world.note("late write", error=str(error))


class LyingWatch:
    """Hints that are lost, late, repeated; or no hints any more."""

    def __init__(self, world: World, inner: MemoryKV, prefixes: tuple[str, ...]) -> None:
        from .virtual import Waiters

        self.prefixes = prefixes
        self._world, self._inner = world, inner
        self._waiters, self._woken, self._silent = Waiters(world.hub), False, False
        inner._watches.add(self)  # type: ignore[arg-type]

    @property
    def pending(self) -> bool:
        """What the memory store sets when something changes."""
        return False

    @pending.setter
    def pending(self, changed: bool) -> None:
        world = self._world
        if not changed or self._silent or world.chance("watch_lost", "watch event lost"):
            return
        if world.chance("watch_silent", "watch went silent"):
            self._silent = True
            return
        late = world.chance("watch_late", "watch event late")
        world.hub.at(world.hub.now + (world.rng.uniform(0.1, 5.0) if late else 0.002), self._deliver)
        if world.chance("watch_repeated", "watch event repeated"):
            world.hub.at(world.hub.now + world.rng.uniform(0.0, 2.0), self._deliver)

    def _deliver(self) -> None:
        self._woken = True
        self._waiters.wake()

    def wait(self, timeout: float) -> bool:
        if not self._woken:
            self._waiters.wait(timeout)
        woken, self._woken = self._woken, False
        return woken

    def close(self) -> None:
        self._inner._watches.discard(self)  # type: ignore[arg-type]
