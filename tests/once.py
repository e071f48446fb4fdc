"""What takes seconds to make and can be written down is made once in a test run, whichever of its processes needs it
first: with pytest-xdist every process has session fixtures of its own."""

from __future__ import annotations

import fcntl
import os
import pickle
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

T = TypeVar("T")


def once(folders: pytest.TempPathFactory, name: str, make: Callable[[], T]) -> T:
    """What `make` returns, here or in another process of this run; it can be pickled. `name` is that of a file."""
    run = folders.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else folders.getbasetemp()
    made = run / f"{name}.pickle"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            value = make()
            made.write_bytes(pickle.dumps(value))
            return value
    found: T = pickle.loads(made.read_bytes())
    return found
