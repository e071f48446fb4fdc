"""A device that is slower than it is, for tests and demonstrations: after its ESTs have been computed it sleeps for as
long as they would have gone on, and what it says of one EST is as much longer. Bits stay as they are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError

if TYPE_CHECKING:
    from .engine import Engine
    from .function import FunctionEngine


def check(factor: float) -> float:
    """The factor.

    Raises:
        UserError: nothing can be made faster by waiting, or wait for ever.
    """
    if not 1.0 <= factor < float("inf"):
        raise UserError(f"--slowdown {factor:g} is no slowdown", "use 1 or more: each EST takes so many times as long")
    return factor


E = TypeVar("E", bound="Engine | FunctionEngine")


def slowed(engine: E, factor: float) -> E:
    """The same engine, each of whose ESTs takes `factor` times as long."""
    if factor == 1.0:
        return engine
    compute, pass_seconds = engine.compute, engine.pass_seconds

    def slowly(*arguments: Any) -> Any:
        began = time.monotonic()
        contribution = compute(*arguments)
        time.sleep((factor - 1.0) * (time.monotonic() - began))
        return contribution

    engine.compute = slowly  # type: ignore[method-assign, assignment]
    engine.pass_seconds = lambda: factor * pass_seconds()  # type: ignore[method-assign]
    return engine
