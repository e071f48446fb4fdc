"""Memory that a step gives back stays with the process: the next step needs as much again.

The C library would return large blocks to the system and get them again at each step, page by page and zeroed: a fifth
of a step of a model with 30 million parameters on a CPU.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep() -> None:
    """Let this process keep what it frees, up to the most that it has ever used. Does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_TOP_PAD, 64 << 20)
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
