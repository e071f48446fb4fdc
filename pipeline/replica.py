"""A job's replica, made from its function and its specification: the engine that its kind needs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from . import inputs
from .engine import Engine, build
from .function import FunctionEngine, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.objects import ObjectStore
    from .spec import JobSpec


def make(
    entry: Callable[..., Any], spec: JobSpec, store: ObjectStore, device: str, *, anew: bool = False
) -> Engine | FunctionEngine:
    """A replica that holds the initial state.

    Args:
        entry: the user's function: of a training it is called now, of a function when its step is computed.
        spec: the job.
        store: where the commits are that it starts from.
        device: `cpu`, `cuda` or `cuda:<index>`.
        anew: call a function even if its result was committed before.

    Raises: as `engine.build`, `engine.Engine` and `inputs.load` do.
    """
    arguments = partial(inputs.load, store, spec)
    if spec.kind == "function":
        before = (lambda: None) if anew else partial(written, store, spec)
        return FunctionEngine(entry, spec, device, arguments, before)
    return Engine(build(entry, spec, arguments), spec, device)
