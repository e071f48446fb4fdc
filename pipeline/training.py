"""What the user's `build()` returns: the model and everything that turns a batch into an update.

It is only a description. `engine.py` runs it; `spec.py` holds the settings that are hashed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch.optim import Optimizer
    from torch.utils.data import Dataset


class Stateful(Protocol):
    """Anything that can say and take back its state (nested dicts, lists, tensors, numbers, strings)."""

    def state_dict(self) -> Any:
        """The state as it is now."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Go back to a state from `state_dict`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One replica's training, made afresh in every process that runs the job.

    Args:
        model: parameters in the order that the reduction uses. Initialise it in `build()`: the RNGs are seeded before.
        optimizer: over this model's parameters.
        dataset: map-style (`__len__`, `__getitem__`). Randomness inside `__getitem__` is seeded per sample and epoch.
        step: `(model, batch) -> scalar loss tensor`, the mean over the batch; or a dict with a `"loss"` entry.
        scheduler: an LR scheduler over `optimizer`; stepped per optimizer step or epoch, as the job says.
        evaluate: `(model) -> float` or `-> {name: float}`; called in eval mode without gradients.
        collate: list of samples -> batch; default torch's `default_collate`.
        state: objects whose state belongs to S(t) and is the same for all ESTs.
        est_state: objects whose state each EST has its own copy of, swapped in before that EST runs.
    """

    model: torch.nn.Module
    optimizer: Optimizer
    dataset: Dataset[Any]
    step: Callable[[torch.nn.Module, Any], Any]
    scheduler: Stateful | None = None
    evaluate: Callable[[torch.nn.Module], float | dict[str, float]] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    state: Mapping[str, Stateful] = field(default_factory=dict)
    est_state: Mapping[str, Stateful] = field(default_factory=dict)
