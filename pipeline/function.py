"""A plain function as a job of one step: what it returns becomes the state that the final commit keeps.

So it is leased, handed over, retried, verified and compared as training is. It is called in `compute`, and its result
counts once it is committed: a worker that dies before that leaves nothing, and another one calls the function again. If
the commit was written and not published, the next attempt takes the result from there: so one result counts, also of a
function that gives another one each time. What it does outside of its result may happen twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import torch

from ..errors import CorruptError, DeviceError, NotFoundError, SpecError, UserError
from ..storage import commits, sums, trees
from ..storage.blobs import get_blob
from ..storage.digest import tree_digest
from . import footprint
from .contexts import copy_tree
from .numerics.guard import exactly
from .randomness import seed_step
from .results import MAX_METRIC_NAME, MAX_METRICS
from .spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..coordinator import records
    from ..storage.objects import ObjectStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """What is recorded of the one step."""

    step: int = 0
    epoch: int = 0
    loss: float | None = None
    lr: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """What the function returned: the part of the step that its one worker brings.

    Args:
        result: a tree of `storage.trees`, of which nobody else holds anything.
        watched, sample: nobody compares them: there is one worker.
    """

    step: int
    result: Any
    watched: bytes = b""
    sample: bytes = b""


def written(store: ObjectStore, spec: JobSpec) -> Returned | None:
    """The result of the same call that somebody has committed, and may not have lived to publish.

    Raises:
        UnavailableError: the store does not answer.
    """
    try:
        marker = commits.read_marker(store, spec.name, 1)
        if marker is None:
            return None
        manifest, state = commits.read_commit(store, marker.manifest)
        same = not JobSpec.decode(get_blob(store, manifest.spec)).differences(spec)
    except (CorruptError, NotFoundError, DeviceError):
        return None  # then it is called again
    return Returned(0, state["result"]) if same else None


class FunctionEngine:
    """What `engine.Engine` is to training.

    Args:
        function: the user's, called with keyword arguments.
        spec: the job, of kind `function`.
        device: `cpu`, `cuda` or `cuda:<index>`; the function finds a GPU as CUDA's current device.
        arguments: reads what it is called with.
        written: finds the result that an attempt has committed before, if there is one; see the function of this name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        spec: JobSpec,
        device: str,
        arguments: Callable[[], dict[str, Any]],
        written: Callable[[], Returned | None] = lambda: None,
    ) -> None:
        self._function, self._spec, self._arguments, self._written = function, spec, arguments, written
        self._device = torch.device(device)
        self._step = 0
        self._result: Any = None
        self._called = 0

    @property
    def step(self) -> int:
        """0 before the call, 1 after it."""
        return self._step

    def probe(self) -> tuple[list[str], float]:
        """What two workers must have in common. The function is not called for it, nor to see how long it takes."""
        return [tree_digest(self.state())], math.inf

    def pass_seconds(self) -> float:
        """How long the call takes: not known."""
        return math.inf

    def compute(self, ests: range, watch: int | None = None) -> Returned:  # noqa: ARG002 - there is one EST
        """Call the function, with every RNG seeded as for EST 0's first step.

        Raises:
            SpecError: it returns something that cannot be stored; names where in it, and of which type.
            DeviceError, CorruptError, UnavailableError: see `inputs.load`.
            InexactError: with exact numerics: it does what they do not cover.
        """
        assert self._step == 0, "it is called once"
        before = self._written()
        if before is not None:
            log.info(
                "function.taken", job=self._spec.name, reason="an attempt before this one has committed its result"
            )
            return before
        arguments = self._arguments()
        seed_step(self._spec.seed, 0, 0)
        self._called = 1
        with exactly(self._spec, f"{_name(self._function)}()", loaded=True):
            result = self._function(**arguments)
        return Returned(0, self._kept(result))

    def _kept(self, result: Any) -> Any:
        try:
            skeleton, tensors = trees.flatten({"result": result})
        except UserError as error:
            raise SpecError(f"stage {self._spec.name!r}: of what it returned, {error.what}", error.hint) from None
        host, copied = trees.snapshot(tensors)
        if copied is not None:
            copied.synchronize()
        return trees.restore(skeleton, host)["result"]

    def apply(self, contributions: Sequence[Returned]) -> FunctionReport:
        """The result is the state from now on."""
        (returned,) = contributions
        assert returned.step == self._step, f"a result of step {returned.step} is none of step {self._step}"
        self._result, self._step = returned.result, 1
        return FunctionReport()

    def run_local(self) -> FunctionReport:
        """Both at once."""
        return self.apply([self.compute(range(1))])

    def state(self) -> dict[str, Any]:
        """As nested dicts of tensors and plain values, for `storage.trees`."""
        return {"step": self._step, "result": self._result}

    def load_state(self, tree: Mapping[str, Any]) -> None:
        """Become what some `state` gave; nothing of the argument is kept."""
        self._step, self._result = tree["step"], copy_tree(tree["result"])

    def keep_until(self, read: torch.Event | None) -> None:
        """The state never changes in place, so whoever reads it is in nobody's way."""

    def sums(self) -> bytes:
        """See `Engine.sums`."""
        return sums.state_sums(self.state())

    def exact_sums(self) -> dict[str, str]:
        """See `Engine.exact_sums`."""
        return sums.exact_sums(self.state())

    @property
    def gradient_names(self) -> list[str]:
        """There are no gradients."""
        return []

    def gradient_sums(self, est: int) -> bytes:  # noqa: ARG002
        """There are no gradients."""
        return b""

    def footprint(self) -> records.Footprint | None:
        """What this process has taken of its device's memory; None before the call, or if that is not known."""
        return footprint.measured(self._device, self._called, 0)

    def evaluate(self) -> dict[str, float]:
        """The numbers at the top of the result, by name, so that they are seen without reading it."""
        found = self._result if isinstance(self._result, dict) else {_name(self._function): self._result}
        numbers = [(str(name)[:MAX_METRIC_NAME], float(value)) for name, value in found.items() if _is_number(value)]
        return dict(numbers[:MAX_METRICS])

    def close(self) -> None:
        """Nothing is left open."""


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and value.bit_length() <= 64)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")
