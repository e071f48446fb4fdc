"""What the engine puts around each piece of a job, so that with exact numerics nothing goes unnoticed.

With native numerics it does nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import refusals, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ..spec import JobSpec


@contextmanager
def exactly(
    spec: JobSpec,
    what: str,
    model: nn.Module | None = None,
    again: Callable[[], None] | None = None,
    *,
    loaded: bool = False,
) -> Iterator[None]:
    """With exact numerics: what is refused in here is told as the user's, and afterwards all is as it should be.

    Args:
        loaded: code of the user's has been loaded before, or is being loaded.

    Raises:
        InexactError: see `numerics.refusals` and `numerics.strict`.
    """
    if spec.numerics != "exact" or not strict.begun():  # a scan only looks
        yield
        return
    if loaded:
        strict.look(operators=True)
    with refusals.told(what, model, again):
        yield
    strict.look(operators=loaded)
