"""Which process is it, and does it still live? A pid alone is no answer, since pids are used again."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN = "-"


def identity(pid: int) -> str:
    """Names a process of this machine for good: pid, start time and pid namespace."""
    return f"{pid} {_started(pid) or _UNKNOWN} {_namespace()}"


def is_alive(name: str) -> bool:
    """Whether the process named by `identity` lives. True where that cannot be told: a lease then ends by its time."""
    pid, started, namespace = name.split(" ")
    if namespace != _namespace():
        return True  # a container's process, whose pid means nothing here
    if started != _UNKNOWN:
        return _started(int(pid)) == started
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started(pid: int) -> str | None:
    """Start time in clock ticks since boot; None for a process that is gone, or a zombie, or without /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return _UNKNOWN
