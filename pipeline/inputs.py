"""What a stage of a pipeline starts from: results of earlier stages, read from their commits and checked to the bit.

A specification names inputs by content (`spec.Input`): a job, a step, and the digest of the state. The marker of that
step leads to a manifest, whoever wrote it; a state of another digest is another input, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CorruptError, DeviceError, NotFoundError, SpecError
from ..storage import commits
from ..storage.collected import is_collected
from ..storage.manifests import read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from ..storage.manifests import Manifest
    from ..storage.objects import ObjectStore
    from .spec import Input, JobSpec


@dataclass(frozen=True, slots=True)
class Committed:
    """A job's commit, as a later stage of its pipeline gets it. Tensors are on the host, and the receiver's own.

    Args:
        job, step, state_digest: which commit.
        metrics: what `evaluate` had returned of it.
        parameters, buffers: of the model, under the names of `named_parameters()` and `named_buffers()`.
        ema: the averaged parameters, or None.
        optimizer: its `state_dict()`.
    """

    job: str
    step: int
    state_digest: str
    metrics: dict[str, float]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: dict[str, Any]

    def load_into(self, model: nn.Module, *, ema: bool = False) -> nn.Module:
        """Give a model of the same kind these parameters and buffers; it is returned.

        Args:
            model: on any device. ema: the averaged parameters instead, where there are some.

        Raises:
            SpecError: its parameters or buffers have other names or shapes, or there are no averages.
        """
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        with torch.no_grad():
            self._copy("parameter", parameters, self._averaged() if ema else self.parameters)
            self._copy("buffer", buffers, self.buffers)
        return model

    def state_dict(self, *, ema: bool = False) -> dict[str, Tensor]:
        """Parameters and buffers by name, for `model.load_state_dict`.

        Of tied parameters only the first name is there, and buffers that are not persistent are there, too: a model
        that has such needs `load_into`, or `strict=False`.

        Raises:
            SpecError: averages are wanted, and there are none.
        """
        return {**(self._averaged() if ema else self.parameters), **self.buffers}

    def _averaged(self) -> dict[str, Tensor]:
        if self.ema is None:
            raise SpecError(f"job {self.job!r} keeps no averages of its parameters", "train it with ema=...")
        return averaged(self.parameters, self.ema)

    def _copy(self, kind: str, ours: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
        for name in [*ours, *given]:
            here, there = ours.get(name), given.get(name)
            if here is None or there is None or here.shape != there.shape:
                shapes = [
                    f"of shape {list(tensor.shape)}" if tensor is not None else "missing" for tensor in (here, there)
                ]
                raise SpecError(
                    f"{kind} {name!r} is {shapes[0]} in this model, {shapes[1]} in commit {self.step} of {self.job!r}",
                    "make the model as the job's build function does",
                )
        for name, tensor in ours.items():
            tensor.copy_(given[name])


def averaged(parameters: Mapping[str, Tensor], averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as they are evaluated where averages are kept: averages in the parameters' own types, by name."""
    return {**parameters, **{name: average.to(parameters[name].dtype) for name, average in averages.items()}}


def load(store: ObjectStore, spec: JobSpec) -> dict[str, Any]:
    """What a job's function is called with, by the names of its parameters. Each call reads it anew.

    Args:
        store: where the earlier stages' commits are.
        spec: names them.

    Raises:
        DeviceError: this store has no such commit, or its state was collected: says which, and what to do.
        CorruptError: it is damaged.
        UnavailableError: the store does not answer.
    """
    return {name: value_of(*_read(store, spec.name, one)) for name, one in spec.inputs.items()}


def value_of(manifest: Manifest, state: Any) -> Any:
    """The result that a commit's state stands for: what a function returned, or `Committed`."""
    if "result" in state:
        return state["result"]
    return Committed(
        job=manifest.job,
        step=manifest.step,
        state_digest=manifest.state_digest,
        metrics={name: float(value) for name, value in manifest.metrics.items()},
        parameters=state["model"]["parameters"],
        buffers=state["model"]["buffers"],
        ema=state["ema"],
        optimizer=state["optimizer"],
    )


def _read(store: ObjectStore, job: str, one: Input) -> tuple[Manifest, Any]:
    marker = commits.read_marker(store, one.job, one.step)
    if marker is None or marker.state_digest != one.state_digest:
        found = f"has no commit of step {one.step}" if marker is None else "came to another state there"
        raise DeviceError(
            f"job {job!r} starts from {one}, but in the object store {store.address} that job {found}: use the store "
            "that it was submitted with (--store), or run the pipeline's script again"
        )
    try:
        manifest, state = commits.read_commit(store, marker.manifest)
    except NotFoundError as error:
        manifest = read_manifest(store, marker.manifest)
        if not is_collected(store, marker.manifest, manifest):
            raise
        raise DeviceError(
            f"job {job!r} starts from {one}, whose state was collected (easyscale gc): have it computed anew "
            f"(easyscale rewind {one.job} --to 0, then run its script again)"
        ) from error
    if manifest.state_digest != one.state_digest:
        raise CorruptError(f"{store.address}: the marker of {one} leads to a state of digest {manifest.state_digest}")
    return manifest, state
