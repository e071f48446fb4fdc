"""What an attempt's end says to the agent: whose fault it was, and the user's part of the traceback. Pure.

The cause decides what it costs: only what the user's code raised fails a job at once.
"""

from __future__ import annotations

import errno
import traceback
from typing import TYPE_CHECKING

import msgspec

from ..errors import (
    AddressError,
    CorruptError,
    DeviceError,
    DivergenceError,
    EasyScaleError,
    InexactError,
    NonFiniteError,
    NotFoundError,
    ProcessDiedError,
    RemoteError,
    ScriptError,
    UnavailableError,
    UserError,
    WrongReplicaError,
    headline,
    plain,
)
from . import messages
from .script import is_ours, user_traceback

if TYPE_CHECKING:
    from pathlib import Path

    from ..coordinator.records import Cause

MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "DefaultCPUAllocator")
"""How torch says that memory ran out, where it raises a plain RuntimeError."""

PLAIN: dict[type[EasyScaleError], Cause] = {
    DivergenceError: "diverged",
    WrongReplicaError: "corrupt",
    NonFiniteError: "nonfinite",
    InexactError: "inexact",
    DeviceError: "refused",
    ProcessDiedError: "died",
    CorruptError: "died",
    NotFoundError: "died",
}
"""What our own errors, whose messages say all, come to."""


def describe(error: BaseException, step: int, folder: Path) -> messages.Failed:
    """How an attempt's end is told to the agent, with the frames of the traceback that lie in the user's folder."""
    told = _describe(error, step, folder)
    return msgspec.structs.replace(told, message=plain(told.message), traceback=plain(told.traceback))


def _describe(error: BaseException, step: int, folder: Path) -> messages.Failed:
    text = headline(error)
    for kind, cause in PLAIN.items():
        if isinstance(error, kind):
            return messages.Failed(cause=cause, step=step, message=str(error))
    if isinstance(error, UnavailableError | AddressError):
        return messages.Failed(cause="preempted", step=step, message=f"a store does not answer: {error}")
    if isinstance(error, AssertionError) and is_ours(error, folder):  # not the user's fault, whoever runs it next
        trace = "".join(traceback.format_exception(error))
        return messages.Failed(cause="died", step=step, message=f"easyscale broke a promise: {error}", traceback=trace)
    lacking = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_WORDS)
    )
    if lacking:
        return messages.Failed(cause="memory", step=step, message=f"out of memory at step {step}: {text}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"this worker's disk is full ({text}): free some room, then start the worker again"
        return messages.Failed(cause="refused", step=step, message=text, traceback=user_traceback(error, folder))
    if isinstance(error, RemoteError):
        what, _, trace = str(error).partition("\n")
        return messages.Failed(cause="raised", step=step, message=what, traceback=trace)
    if isinstance(error, ScriptError | UserError):
        return messages.Failed(cause="raised", step=step, message=str(error), traceback=getattr(error, "detail", ""))
    return messages.Failed(cause="raised", step=step, message=text, traceback=user_traceback(error, folder))
