"""What the engine puts around each piece of a job, so that with exact numerics nothing goes unnoticed.

With native numerics it does nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...errors import InexactError, listed
from . import refusals, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ..spec import JobSpec


class Pass:
    """What is run once. `came`: operators of others that came while it ran, and that it may have called."""

    def __init__(self) -> None:
        self.came: list[str] = []


@contextmanager
def exactly(
    spec: JobSpec,
    what: str,
    model: nn.Module | None = None,
    again: Callable[[], None] | None = None,
    *,
    loaded: bool = False,
    repeats: bool = False,
) -> Iterator[Pass]:
    """With exact numerics: what is refused in here is told as the user's, and afterwards all is as it should be.

    Args:
        what: is being done, for people. model: whose modules are named.
        again: does the same once more, to find places.
        loaded: code of the user's has been loaded before, or is being loaded.
        repeats: the caller does it all once more if operators `came`; else that is an error.

    Raises:
        InexactError: see `refusals` and `strict`.
    """
    run = Pass()
    if spec.numerics != "exact" or not strict.begun():  # a scan only looks
        yield run
        return
    if loaded:
        strict.refuse_new()
    with refusals.told(what, model, again):
        yield run
    run.came = strict.look(operators=loaded)
    if run.came and not repeats:
        raise InexactError(
            f"operators that exact numerics do not cover were brought along in {what}: {listed(run.came)}",
            "import what they come from at the top of the script: then they are refused only where they are called",
        )
