"""How much of this machine's processors others use: what `--only-when-idle` looks at on a worker without a GPU.

Linux tells how long processors have worked in all, and how long each process has. What EasyScale's workers on this
machine use, with all their children, is no owner's: else two of them would drive each other away.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

Times = dict[tuple[int, float], float]
"""Seconds that processes have worked, by PID and start."""

LEAST_SECONDS = 0.2
"""Between two looks: processors' times come in hundredths of a second."""


@dataclass(slots=True)
class Processors:
    """Looks at processors.

    Args:
        limit: share of all processors that others may use. ours: processes whose families are not others.
        users: ids of the users who count as others; empty: all do. clock: seconds.
    """

    limit: float
    ours: Callable[[], Sequence[psutil.Process]]
    users: frozenset[int] = frozenset()
    clock: Callable[[], float] = time.monotonic
    _at: float = float("-inf")
    _total: float = 0.0
    _before: Times | None = None
    _said: str = ""

    def look(self) -> str:
        """What others do, if it is more than the limit; "" if not."""
        now = self.clock()
        seconds = now - self._at
        if seconds < LEAST_SECONDS:
            return self._said
        total, self._total, self._at = self._total, _worked(), now
        used, cores = self._total - total, os.cpu_count() or 1
        if used <= self.limit * seconds * cores:
            self._before, self._said = None, ""  # whoever it is: who used them is not even looked for
            return ""
        before, after = self._before, self._of_users() if self.users else self._of_family()
        self._before = after
        if before is None:
            return self._said
        # What a process had done before it was first seen was done since the last look.
        some = sum(done - before.get(one, 0.0) for one, done in after.items())
        share = (some if self.users else used - some) / seconds / cores
        busy = share > self.limit
        self._said = f"others use {share:.0%} of its {cores} processors (limit {self.limit:.0%})" if busy else ""
        return self._said

    def _of_family(self) -> Times:
        """Seconds that processes of ours have worked, with those of children that have ended."""
        return dict(_times([one for root in self.ours() for one in with_children(root)]))

    def _of_users(self) -> Times:
        """The same of processes of these users, but for ours."""
        mine = {one.pid for root in self.ours() for one in with_children(root)}
        others = [one for one in psutil.process_iter() if one.pid not in mine and belongs_to(one, self.users)]
        return dict(_times(others))


def _times(processes: Iterable[psutil.Process]) -> Iterator[tuple[tuple[int, float], float]]:
    for one in processes:
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            done = times.user + times.system + times.children_user + times.children_system
            yield (one.pid, one.create_time()), done


def is_of(pid: int, users: Container[int] = ()) -> bool:
    """Whether this is a process of one of these users; of none: whoever's it is."""
    try:
        return not users or belongs_to(psutil.Process(pid), users)
    except psutil.Error:
        return False


def belongs_to(process: psutil.Process, users: Container[int]) -> bool:
    """Whether it is a process of one of these users."""
    try:
        return process.uids().real in users
    except psutil.Error:
        return False


def _worked() -> float:
    """Seconds that all processors have worked, together."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # are in `user` and `nice` as well
    return float(sum(times) - idle - guests)


def with_children(root: psutil.Process) -> list[psutil.Process]:
    """A process and all that came of it."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def workers() -> list[psutil.Process]:
    """EasyScale's processes on this machine that others have started, and this one."""
    found = {os.getpid(): psutil.Process()}
    for one in psutil.process_iter(["cmdline"]):
        if is_worker(one.info["cmdline"] or []):
            found[one.pid] = one
    return list(found.values())


def family_pids() -> set[int]:
    """PIDs of EasyScale's workers on this machine and of all their children."""
    return {one.pid for root in workers() for one in with_children(root)}


def is_worker(command: Sequence[str]) -> bool:
    """Whether this is the command line of `easyscale worker` or `easyscale run`."""
    names = [part.rsplit("/", 1)[-1] for part in command[:4]]
    ours = any(name == "easyscale" or name == "easyscale.pipeline.cli" for name in names)
    return ours and any(part in ("worker", "run") for part in command)
