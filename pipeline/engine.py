"""The deterministic step: `S(t+1) = F(S(t), batches(t))` on one replica, for any part of the ESTs.

`compute` runs some ESTs on the state held and leaves it as it is; `apply` takes everybody's contributions and moves
the state on. The bits depend on the job, the step and the data only. Who computes what, and how contributions travel,
is left to others; so are the process-wide settings of `determinism.configure`, to be made before the model is built.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any

import torch

from ..errors import SpecError
from ..storage import sums
from ..storage.digest import tensor_digest, tree_digest
from . import footprint
from .checks import check_training
from .contexts import Contexts, copy_all, copy_tree, require_like
from .contribution import Contribution, Mean
from .data import epoch_of
from .flat import FlatGradient, GradientLayout, GradientPool
from .loader import Loader
from .nonfinite import NonFinitePolicy, found_in_gradients, found_in_losses, found_in_model
from .numerics.guard import exactly
from .placement import to_device
from .randomness import preserved, seed_build, seed_evaluation, seed_step, seed_update
from .reduction import PartialStack, mean
from .results import metrics, scalar_loss
from .training import Training
from .update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from ..coordinator import records
    from .loader import Piece
    from .spec import JobSpec
    from .update import Outcome

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in one step.

    Args:
        step: `t`: the state was `S(t)` before and is `S(t+1)` now.
        epoch: the epoch the step lies in.
        loss: mean over the ESTs.
        losses: each EST's loss, by rank.
        lr: each parameter group's learning rate, as used.
        grad_norm: total norm of the averaged gradient before clipping; None without clipping.
        skipped: the update was left out: the step was not finite (see `nonfinite.py`), or the grad scaler skipped it.
    """

    step: int
    epoch: int
    loss: float
    losses: list[float]
    lr: list[float]
    grad_norm: float | None
    skipped: bool


def build(build_fn: Callable[..., Any], spec: JobSpec, arguments: Callable[[], dict[str, Any]] = dict) -> Training:
    """Run the user's `build()` with every RNG seeded, so that all processes initialise alike.

    Args:
        build_fn: the user's. spec: the job.
        arguments: makes what it is called with, anew for each call: see `inputs.load`.

    Raises:
        SpecError: it returns something else than a `Training`.
    """
    while True:
        given = arguments()
        seed_build(spec.seed)
        with exactly(spec, "build()", loaded=True, repeats=True) as run:
            training = build_fn(**given)
        if not run.came:
            break
    if not isinstance(training, Training):
        raise SpecError(
            f"job {spec.name!r}: build() returned {type(training).__name__}", "it must return an easyscale.Training"
        )
    return training


class Engine:
    """A replica of a job's state and what moves it on.

    Args:
        training: fresh from `build`; the engine owns it from now on and moves its model to the device.
        spec: the job.
        device: `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        SpecError: the training cannot be run; see `checks.py`.
        ChangedError: the dataset has another length than the job says.
        UserError: something in the state (scheduler, registered objects) cannot be stored.
    """

    def __init__(self, training: Training, spec: JobSpec, device: str = "cpu") -> None:
        check_training(training, spec)
        self._training = training
        self._model = training.model.to(device)
        self._spec = spec
        self._device = torch.device(device)
        self._step = 0
        self._most = 0
        self._read: torch.Event | None = None
        self._layout = GradientLayout(self._model.named_parameters(), spec.reduce)
        self._pool = GradientPool(self._layout, self._device)
        self._contexts = Contexts(self._model, training.est_state, spec)
        self._update = Update(training, spec, self._layout, self._device)
        self._policy = NonFinitePolicy(spec)
        pin = self._device.type == "cuda"
        self._loader = Loader(training.dataset, spec, training.collate, pin_memory=pin)
        if self._policy.rewinds:
            self._policy.keep(self.state())
        copy_tree({name: thing for name, thing in self.state().items() if name != "model"})  # storable, or UserError

    @property
    def step(self) -> int:
        """`t` of the state held: the number of steps it has behind it."""
        return self._step

    def compute(self, ests: range, watch: int | None = None) -> Contribution:
        """Run some ESTs' forward and backward passes on the state held, which stays as it is.

        May be called again for other ESTs of the same step, or the same. The tensors of the contribution are this
        engine's, and valid until its `apply`: send `to_bytes()` to other engines.

        Args:
            ests: which.
            watch: one of them of whose gradient the sums are wanted, as in `gradient_sums`.

        Raises:
            RemoteError: the dataset or `collate` raised.
            SpecError: `step` does not return a scalar loss, or makes sparse gradients.
            InexactError: with exact numerics: it does what they do not cover.
        """
        while True:
            with exactly(self._spec, "the forward pass", self._model, partial(self._rerun, ests), repeats=True) as run:
                contribution = self._compute(ests, watch)
            if not run.came:
                return contribution

    def _rerun(self, ests: range) -> None:
        """The same once more, to see where in it something is."""
        for est in ests:
            self._loader.start(self._step, range(est, est + 1))
            self._run(est, self._loader.next(self._step, est))

    def _compute(self, ests: range, watch: int | None) -> Contribution:
        self._layout.clear()  # whatever an interrupted step has left there
        self._most = max(self._most, len(ests))
        self._loader.start(self._step, ests)
        stack = PartialStack(ests.start, self._spec.ests, self._pool.give_back)
        used = bytes(len(self._layout.parameters))
        losses: list[Tensor] = []  # of all micro-batches, EST by EST
        counts: list[int] = []
        contexts: dict[int, Any] = {}
        buffers: dict[str, Tensor] | None = None
        watched = b""
        for est in ests:
            found = self._run(est, self._loader.next(self._step, est))
            if est == watch:
                watched = self._layout.sums()
            losses += found
            counts.append(len(found))
            used = _either(used, self._reduce(stack))
            context, shared = self._contexts.leave(est)
            if context is not None:
                contexts[est] = context
            buffers = buffers if shared is None else shared
        numbers = iter(torch.stack(losses).tolist() if losses else [])  # waits for the device
        # not sum(), which rounds otherwise since Python 3.12
        means = {est: reduce(add, islice(numbers, count), 0.0) for est, count in zip(ests, counts, strict=True)}
        return Contribution(self._step, stack.nodes(), used, means, contexts, buffers, watched)

    def gradient_sums(self, est: int) -> bytes:
        """Compute one EST, of whomever, for nothing but the sums of its gradient's bits: see `gradient_names`."""
        self._layout.clear()
        self._loader.start(self._step, range(est, est + 1))
        self._run(est, self._loader.next(self._step, est))
        found = self._layout.sums()
        self._layout.clear()
        return found

    def pass_seconds(self) -> float:
        """What EST 0's forward and backward passes take on the state held, which stays as it is.

        They are computed for nothing else. Their batch counts unless loader processes fetch it: in steps, they have.
        """
        self._layout.clear()
        self._loader.start(self._step, range(1))
        began = time.perf_counter()
        pieces = self._loader.next(self._step, 0)
        if self._spec.loaders:
            began = time.perf_counter()
        torch.stack(self._run(0, pieces)).tolist()  # waits for the device
        seconds = time.perf_counter() - began
        self._layout.clear()
        return seconds

    @property
    def gradient_names(self) -> list[str]:
        """Names of the parameters whose gradients have sums, 8 bytes each, in `gradient_sums`."""
        return self._layout.names

    def _run(self, est: int, pieces: list[Piece]) -> list[Tensor]:
        """One EST's forward and backward passes; the losses of its micro-batches, which make up its loss when added.

        The gradients are in `p.grad`.
        """
        batches = [(count, to_device(batch, self._device)) for count, batch in pieces]
        self._contexts.enter(est)
        seed_step(self._spec.seed, self._step, est)  # after fetching, which may draw random numbers here
        whole = sum(count for count, _ in batches)
        losses = []
        for count, batch in batches:
            with self._autocast():
                loss = scalar_loss(self._training.step(self._model, batch))
            if count != whole:
                loss = loss * (count / whole)
            self._update.scaled(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses

    def _reduce(self, stack: PartialStack) -> bytes:
        """Move the gradients from `p.grad` to the stack; which parameters have one."""
        left = stack.waiting()
        there = self._pool.find(left) if left is not None else None
        if there is None:
            gradient = self._pool.take()
            used = self._layout.collect(gradient)
            stack.push(gradient.flat)
        else:
            used = self._layout.add(there)
            stack.added()
        return used

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._spec.amp is None:
            return nullcontext()
        return torch.autocast(self._device.type, _AUTOCAST[self._spec.amp])

    def apply(self, contributions: Sequence[Contribution]) -> StepReport:
        """Move the state on by one step with the contributions of all workers, in any order.

        Raises:
            ValueError: they are of another step, or some EST is missing; the state has not changed. After any other
                exception (from the optimizer, say) this replica holds no valid state any more.
            NonFiniteError: a loss, the averaged gradient or what became of the parameters is not finite, and the job's
                policy does not let it pass.
        """
        with exactly(self._spec, "the update of the parameters", self._model):
            return self._apply(contributions)

    def _apply(self, contributions: Sequence[Contribution]) -> StepReport:
        losses = self._losses(contributions)
        average = self._average(contributions)
        epoch, index = epoch_of(self._spec, self._step)
        epoch_ends = index == self._spec.steps_per_epoch - 1
        found = self._nonfinite(losses, average)
        self._may_change()
        if found:
            self._policy.count(self._step, found)
            outcome = self._leave_out(epoch_ends=epoch_ends)
        else:
            self._contexts.take(contributions)
            outcome = self._update_from(average, contributions, epoch_ends=epoch_ends)
            self._policy.passed()
        self._layout.clear()
        self._pool.reclaim()
        self._step += 1
        if self._policy.rewinds:
            self._anchor_or_rewind(finite=not found)
        return StepReport(
            step=self._step - 1,
            epoch=epoch,
            loss=sum(losses) / len(losses),
            losses=losses,
            lr=outcome.lr,
            grad_norm=outcome.grad_norm,
            skipped=outcome.skipped,
        )

    def _nonfinite(self, losses: list[float], average: Mean) -> str:
        """What is not finite in a step; empty if all is. Of gradients that were scaled, the scaler takes care."""
        found = found_in_losses(self._spec, self._step, losses)
        if found or self._update.is_scaled or average.finite:
            return found
        return found_in_gradients(self._layout.names, self._layout.views(average.flat))

    def _update_from(self, average: Mean, contributions: Sequence[Contribution], *, epoch_ends: bool) -> Outcome:
        used = bytes(len(self._layout.parameters))
        for contribution in contributions:
            used = _either(used, contribution.used)
        self._layout.scatter(self._pooled(average.flat), used)
        seed_update(self._spec.seed, self._step)
        return self._update.run(epoch_ends=epoch_ends)

    def _leave_out(self, *, epoch_ends: bool) -> Outcome:
        self._contexts.enter(0)  # what an update leaves in the module: EST 0's
        seed_update(self._spec.seed, self._step)
        return self._update.leave_out(epoch_ends=epoch_ends)

    def _anchor_or_rewind(self, *, finite: bool) -> None:
        anchors = self._policy.anchors(self._step)
        if finite and anchors:
            broken = found_in_model(self._parameters(), self._contexts.buffers)
            if broken:
                self._policy.count(self._step - 1, broken)
                finite = False
        if not finite:
            self._restore(self._policy.anchored(self.state()))
        elif anchors:
            self._policy.keep(self.state())

    def _average(self, contributions: Sequence[Contribution]) -> Mean:
        """The gradients' mean over the ESTs, if no lane has made it."""
        made = next((c.mean for c in contributions if c.mean is not None), None)
        if made is not None:
            return made
        nodes = self._sums(contributions)
        ours = next((value for value in nodes.values() if self._pool.find(value)), None)
        flat = ours or self._pool.take().flat
        return Mean(flat, mean(nodes, self._spec.ests, flat))

    def _pooled(self, flat: list[Tensor]) -> FlatGradient:
        """The same in memory of the pool, where it lies already unless a lane needed other memory, or retired it.

        Clipping and unscaling will work in place.
        """
        there = self._pool.find(flat)
        if there is None:
            there = self._pool.take()
            for target, source in zip(there.flat, flat, strict=True):
                target.copy_(source)
        return there

    def _losses(self, contributions: Sequence[Contribution]) -> list[float]:
        for contribution in contributions:
            if contribution.step != self._step:
                raise ValueError(f"a contribution to step {contribution.step} is not one to step {self._step}")
        losses = {est: loss for c in contributions for est, loss in c.losses.items()}
        if losses.keys() != set(range(self._spec.ests)):
            raise ValueError(f"contributions of the ESTs {sorted(losses)} are not those of all {self._spec.ests}")
        return [losses[est] for est in range(self._spec.ests)]

    def _sums(self, contributions: Sequence[Contribution]) -> dict[tuple[int, int], list[Tensor]]:
        return {
            node: value if self._pool.find(value) else [tensor.to(self._device) for tensor in value]
            for contribution in contributions
            for node, value in contribution.nodes.items()
        }

    def run_local(self) -> StepReport:
        """One whole step on this replica alone."""
        return self.apply([self.compute(range(self._spec.ests))])

    def probe(self) -> tuple[list[str], float]:
        """Digests of the state and of EST 0's gradient and loss: what another device must reproduce to take part.

        And the seconds that this EST took.
        """
        parts = [tree_digest(self.state())]
        began = time.monotonic()
        contribution = self.compute(range(1))
        took = time.monotonic() - began
        parts += [tensor_digest(tensor) for flat in contribution.nodes.values() for tensor in flat]
        return parts + [value.hex() for value in contribution.losses.values()], took

    def state(self) -> dict[str, Any]:
        """`S(t)` as nested dicts of tensors and plain values, for `storage.trees`.

        The tensors are those in use: copy what has to outlive the next `apply`.
        """
        return {
            "step": self._step,
            "model": {"parameters": self._parameters(), "buffers": self._contexts.buffers},
            **self._update.state(),
            "ests": self._contexts.state(),
            "user": {name: thing.state_dict() for name, thing in self._training.state.items()},
            **self._policy.state(),
        }

    def keep_until(self, read: torch.Event | None) -> None:
        """The tensors of the state held are being read on another stream, until this event: change none before.

        Nobody waits here: what changes them will start after it.
        """
        self._read = read

    def _may_change(self) -> None:
        if self._read is not None:
            self._read.wait()  # the stream does, not this thread
            self._read = None

    def sums(self) -> bytes:
        """The sums of the state held, to be compared with other replicas': see `storage.sums`."""
        return sums.state_sums(self.state())

    def exact_sums(self) -> dict[str, str]:
        """The same by name, slowly, and different only where the states are."""
        return sums.exact_sums(self.state())

    def _parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def load_state(self, tree: Mapping[str, Any]) -> None:
        """Become the `S(t)` that some replica's `state` gave; nothing of the argument is kept.

        Raises:
            ChangedError: it is a state of another model.
        """
        self._restore(tree)
        self._policy.load(tree)

    def _restore(self, tree: Mapping[str, Any]) -> None:
        ours, given = self._parameters(), tree["model"]["parameters"]
        require_like("parameter", ours, given)
        self._may_change()
        self._contexts.load(tree["model"]["buffers"], tree["ests"])
        with torch.no_grad():
            copy_all(list(ours.values()), [given[name] for name in ours])
        self._update.load(tree)
        for name, thing in self._training.state.items():
            thing.load_state_dict(copy_tree(tree["user"][name]))
        self._step = tree["step"]
        self._layout.clear()

    def footprint(self) -> records.Footprint | None:
        """What this process has taken of its device's memory; None if that is not known. Does not wait for a GPU."""
        return footprint.measured(self._device, self._most, self._contexts.bytes_of_one)

    def evaluate(self) -> dict[str, float]:
        """The user's metrics of the state held: averaged parameters if there is an EMA, EST 0's buffers, eval mode.

        State, modes and RNGs are left as they were. A single number is named after the user's function. Empty if the
        training has no `evaluate`.
        """
        if self._training.evaluate is None:
            return {}
        modes = [(module, module.training) for module in self._model.modules()]
        self._contexts.enter(0)
        try:
            self._model.eval()
            with preserved(), torch.no_grad(), self._update.averaged():
                seed_evaluation(self._spec.seed, self._step)
                with exactly(self._spec, "evaluate()", self._model):
                    result = self._training.evaluate(self._model)
        finally:
            for module, mode in modes:
                module.training = mode
        if not isinstance(result, dict):
            result = {getattr(self._training.evaluate, "__name__", "metric"): result}
        return metrics(result)

    def close(self) -> None:
        """End the loader processes. The state can still be read."""
        self._loader.close()


def _either(left: bytes, right: bytes) -> bytes:
    """Which parameters have a gradient here or there."""
    if left == right:
        return left
    return bytes(a | b for a, b in zip(left, right, strict=True))
