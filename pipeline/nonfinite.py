"""What a NaN or an infinity does to a job: it stops, leaves the step's update out, or also goes back to an *anchor*.

The anchor is a copy of what training had come to at the last step that `commit_every` divides. It is part of S(t), as
is the count of what was left out, so every replica does the same, also one that joined or resumed in between. What is
not finite is found by the engine; legal infinities (in buffers, in metrics) are none of this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import NonFiniteError, listed
from ..storage.digest import has_nan, has_nonfinite
from .contexts import copy_tree
from .data import epoch_of, sample_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from .spec import JobSpec

MAX_SKIPS = 100
"""Steps that are left out in a row; a run that has nothing else any more has come to its end."""

MAX_REWINDS = 3
"""Times that training goes back to one anchor: if it does not get away from it, it will not."""

_ANCHORED = ("model", "ests", "ema", "scaler", "user")
"""Parts of S(t) that an anchor holds; of the optimizer it holds the state, but no learning rates."""


class NonFinitePolicy:
    """A job's rule for steps that are not finite, with its part of S(t).

    `stop` raises. `skip` leaves the update out: everything stays as it was but the step number and the LR schedule.
    `rewind` does the same and then goes back to the anchor; also at an anchor's step, if the parameters that it would
    hold are not finite.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._count = 0
        self._anchor: dict[str, Any] = {}

    @property
    def rewinds(self) -> bool:
        """Whether there are anchors."""
        return self._spec.nonfinite == "rewind"

    def count(self, step: int, found: str) -> None:
        """Step `t` is not finite: may it be passed over?

        Raises:
            NonFiniteError: no: the job stops here. It ends with `found`, and what to do.
        """
        policy = self._spec.nonfinite
        limit = {"stop": 0, "skip": MAX_SKIPS, "rewind": MAX_REWINDS}[policy]
        if self._count < limit:
            self._count += 1
            return
        epoch, _ = epoch_of(self._spec, step)
        advice = "look at the data of that step, or run the job again with a lower learning rate"
        if policy == "stop":
            why = "the step was not applied (nonfinite='stop')"
            advice += ", or with --set nonfinite=skip --accept-changes to leave such steps out"
        elif policy == "skip":
            why = f"{limit} steps in a row were left out before (nonfinite='skip'), so this will not mend itself"
        else:
            why = f"training went back {limit} times to the same anchor (nonfinite='rewind') and did not get past it"
        raise NonFiniteError(
            f"step {step} (epoch {epoch}) is not finite: {found}\n  {why}; the newest commit is whole\n  {advice}"
        )

    def passed(self) -> None:
        """A step was finite."""
        if not self.rewinds:
            self._count = 0

    def anchors(self, step: int) -> bool:
        """Whether the state after `step` steps is to be an anchor."""
        return self.rewinds and self._spec.commit_every is not None and step % self._spec.commit_every == 0

    def keep(self, state: Mapping[str, Any]) -> None:
        """Make a state (as of `Engine.state`) the anchor."""
        parts = {name: state[name] for name in _ANCHORED} | {"optimizer": state["optimizer"]["state"]}
        self._anchor = copy_tree(parts)
        self._count = 0

    def anchored(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with the anchor's parts in their places. Nothing is copied."""
        parts = dict(self._anchor)
        optimizer = {**state["optimizer"], "state": parts.pop("optimizer")}
        return {**state, **parts, "optimizer": optimizer}

    def state(self) -> dict[str, Any]:
        """Our part of S(t): none under `stop`, so that those jobs' states are what they would be without us."""
        if self._spec.nonfinite == "stop":
            return {}
        ours = {"policy": self._spec.nonfinite, "count": self._count}
        return {"nonfinite": ours | {"anchor": self._anchor} if self.rewinds else ours}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` gave. A state that comes from another policy is its own anchor."""
        ours = state.get("nonfinite", {})
        if self._spec.nonfinite == ours.get("policy"):
            self._count = ours["count"]
            self._anchor = copy_tree(ours.get("anchor", {}))
        else:
            self._count = 0
            if self.rewinds:
                self.keep(state)


def found_in_losses(spec: JobSpec, step: int, losses: Sequence[float]) -> str:
    """Which ESTs' losses are not finite, and the samples that they come from; empty if all are finite."""
    bad = [est for est, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad:
        return ""
    named = listed([f"{losses[est]} for EST {est}" for est in bad])
    samples = [f"\n  samples of EST {est}: {listed(sample_ids(spec, step, est), 32)}" for est in bad[:4]]
    return f"the loss is {named}{''.join(samples)}"


def found_in_gradients(names: Sequence[str], gradients: Sequence[Tensor]) -> str:
    """Which parameters' averaged gradients are not finite."""
    bad = [name for name, gradient in zip(names, gradients, strict=True) if has_nonfinite(gradient)]
    return f"the losses are, but the averaged gradient of {listed(list(map(repr, bad)))} is not"


def found_in_model(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> str:
    """Which parameters are not finite, and which buffers hold a NaN (an infinity in a buffer may be meant)."""
    bad = [name for name, tensor in parameters.items() if has_nonfinite(tensor)]
    bad += [name for name, tensor in buffers.items() if has_nan(tensor)]
    return f"the update has made {listed(list(map(repr, bad)))} NaN or infinite" if bad else ""
