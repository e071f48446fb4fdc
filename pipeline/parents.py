"""Dying with one's parent: what keeps a killed agent or `easyscale run` from leaving anything running."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die() -> NoReturn:
    """End this process, and the group that it leads, now: nobody is left to tell."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def die_with(pid: int) -> None:
    """Have the kernel kill this process when its parent `pid` dies (Linux). Survives an exec, not a fork."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != pid:
            die()


def outlive() -> None:
    """Undo `die_with`."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
