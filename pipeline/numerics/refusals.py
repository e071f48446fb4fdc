"""What a refused operator is told as: the operator, why, the line of the user's code, the module, and what to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...errors import InexactError
from ..operator_calls import OperatorCalls
from ..places import Place, Places, frames_of
from .library import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

HINT = (
    "`easyscale scan SCRIPT` lists all operators that exact numerics do not cover: use others there, or run the job "
    'with numerics="native"'
)


@contextmanager
def told(what: str, model: nn.Module | None = None, again: Callable[[], object] | None = None) -> Iterator[None]:
    """An operator that is refused in here becomes an `InexactError` that names its place.

    Args:
        what: what is being done: `the forward pass`.
        model: whose modules are named.
        again: does the same once more. Then an operator without a line of its own, of the backward pass, is found.

    Raises:
        InexactError: instead of the operator's own error.
    """
    try:
        yield
    except RuntimeError as error:
        reason = refusal(error)
        if reason is None:
            raise
        place = Places(model).of(frames_of(error.__traceback__))
        backward = any(frame.f_code.co_name == "_engine_run_backward" for frame, _ in frames_of(error.__traceback__))
        if backward and again is not None:
            place, what = _traced(again, model), "the backward pass"
        raise InexactError(f"{reason} (in {what}{f': {place}' if str(place) else ''})", HINT) from None


def refusal(error: BaseException) -> str | None:
    """What was refused and why, if this is a refusal, or was caused by one."""
    seen: BaseException | None = error
    while seen is not None:
        _, found, reason = str(seen).partition(REFUSED)
        if found:
            operator, _, why = reason.splitlines()[0].partition(": ")
            return f"exact numerics refuse the operator {operator}: {why}"
        seen = seen.__cause__ or seen.__context__
    return None


def _traced(again: Callable[[], object], model: nn.Module | None) -> Place:
    calls = OperatorCalls(model)
    try:
        with calls:
            again()
    except RuntimeError:
        return calls.last
    return Place()
