"""The errors a user or a caller can meet, rooted at `EasyScaleError`.

A message names the thing, says what was found and what to do. `UserError` is the user's to mend (exit code 2);
everything else is ours or the world's (exit code 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 80
"""Characters of a wrong value that go into a message."""


def shown(value: object) -> str:
    """A wrong value for a message: on one line, cut short, whatever it is. Its `repr` may itself fail or be endless."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print those of more than 4300 digits
    try:
        text = " ".join(repr(value).splitlines())
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        text = f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def headline(error: BaseException) -> str:
    """An exception on one line, even if its text cannot be made."""
    try:
        reason = str(error).partition("\n")[0][:300]
    except Exception:  # noqa: BLE001 - a user's exception class may raise anything
        reason = "(its text cannot be made)"
    return f"{type(error).__name__}: {reason}".removesuffix(": ")


def listed(things: Sequence[object], most: int = 8) -> str:
    """The first few of several things, and how many more there are."""
    text = ", ".join(map(str, things[:most]))
    return text + (f" and {len(things) - most} more" if len(things) > most else "")


def plain(text: str) -> str:
    """Text that can be sent and stored: half characters, as in names of files that are not UTF-8, written out."""
    return text.encode("utf-8", "backslashreplace").decode()


class EasyScaleError(Exception):
    """Root of all errors raised on purpose by EasyScale."""

    exit_code = 1


class UserError(EasyScaleError):
    """A mistake in what the user gave us: nothing was created, nothing was lost.

    Args:
        what: what is wrong, and where.
        hint: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}\n  {hint}" if hint else what)
        self.what = what
        self.hint = hint


class AddressError(UserError):
    """A key-value store or object store cannot be reached, refuses us, or is unfit for use."""


class SpecError(UserError):
    """A job specification that cannot be run."""


class ScriptError(UserError):
    """A user's script that cannot be loaded, or defines no job. `detail` holds its own short traceback."""

    def __init__(self, what: str, hint: str = "", detail: str = "") -> None:
        super().__init__(what, hint)
        self.detail = detail


class ChangedError(UserError):
    """The specification, code or data of an existing job differ from what was submitted before."""


class InexactError(UserError):
    """Exact numerics do not cover what the job's code does."""


class NotFoundError(EasyScaleError):
    """An object that should be in the object store is not there."""


class UnavailableError(EasyScaleError):
    """A service did not answer in time; nothing is known to have been changed by a *read*."""


class OutcomeUnknownError(UnavailableError):
    """A write was sent and not answered: it may or may not have been applied. Resolve it by reading."""


class LeaseGoneError(UnavailableError):
    """A write under a lease that has ended: nothing was written, and under that lease nothing ever will be."""


class LaneBrokenError(EasyScaleError):
    """The exchange between the members of a generation broke, and the generation with it.

    Args:
        lost: slots whose connections broke; empty if it cannot tell which. why: for people.
    """

    def __init__(self, lost: tuple[int, ...], why: str) -> None:
        super().__init__(why)
        self.lost = lost


class TooLargeError(EasyScaleError):
    """A value that the key-value store must not be given: everything large belongs in the object store."""


class CorruptError(EasyScaleError):
    """Bytes read from the object store do not have the digest they are named by."""


class DivergenceError(EasyScaleError):
    """Two computations of the same step gave different states: the promise of determinism is broken."""


class WrongReplicaError(EasyScaleError):
    """This replica was found to hold or to compute other bits than it should; its device is not to be trusted."""


class NonFiniteError(EasyScaleError):
    """A NaN or an infinity in a loss, a gradient or a state, which the job's policy does not allow to pass over."""


class ProcessDiedError(EasyScaleError):
    """A helper process (a loader) was killed or crashed: the attempt has ended, the job has not."""


class DeviceError(EasyScaleError):
    """This worker's device cannot run this job; another one may."""


class RemoteError(EasyScaleError):
    """The user's code failed in a worker. The message ends with the traceback from there."""
