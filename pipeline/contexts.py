"""What ESTs keep from step to step: the model's buffers and the state a user registers per EST.

The copies kept here are the state; what the module and the user's objects hold is scratch that is loaded before an EST
runs and read after it. So a step that is dropped halfway leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import ChangedError
from ..storage import trees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from .contribution import Contribution
    from .spec import JobSpec
    from .training import Stateful


def copy_tree(tree: Any) -> Any:
    """A copy that shares no memory with the original.

    Raises:
        UserError: it contains something that cannot be stored; it names the path and the type.
    """
    skeleton, tensors = trees.flatten(tree)
    return trees.restore(skeleton, {name: tensor.clone() for name, tensor in tensors.items()})


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors pairwise: one kernel per dtype on a GPU, not one per tensor."""
    for some, theirs in pairs_by_dtype(targets, sources):
        torch._foreach_copy_(some, theirs)


def pairs_by_dtype(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """The pairs sorted by the targets' dtypes: what one `_foreach_copy_` can do at once."""
    found: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        some, theirs = found.setdefault(target.dtype, ([], []))
        some.append(target)
        theirs.append(source)
    return list(found.values())


def require_like(kind: str, ours: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those of this model.

    Raises:
        ChangedError: names the first tensor that is missing, unknown, or of another shape or dtype.
    """
    for name in {**ours, **given}:
        here, there = (
            f"{tensors[name].dtype} {list(tensors[name].shape)}" if name in tensors else "missing"
            for tensors in (ours, given)
        )
        if here != there:
            raise ChangedError(
                f"{kind} {name!r} is {there} in the state and {here} in the model that build() made",
                "continue with the code that the state was trained with",
            )


class ModuleBuffers:
    """The places in a module where its buffers lie, each buffer once, in the module's order."""

    def __init__(self, model: nn.Module) -> None:
        self.names: list[str] = []
        self._slots: list[tuple[dict[str, Tensor], str]] = []
        self._tensors: list[Tensor] = []
        for name, tensor in model.named_buffers():
            prefix, _, key = name.rpartition(".")
            self.names.append(name)
            self._slots.append((vars(model.get_submodule(prefix))["_buffers"], key))
            self._tensors.append(tensor)
        self._written: Mapping[str, Tensor] = {}
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    def read(self) -> dict[str, Tensor]:
        """Copies of the buffers as they are now."""
        now = [buffers[key].detach() for buffers, key in self._slots]
        copies = [torch.empty_like(tensor) for tensor in now]
        copy_all(copies, now)
        return dict(zip(self.names, copies, strict=True))

    @torch.no_grad()
    def write(self, values: Mapping[str, Tensor]) -> None:
        """Set the buffers, in place: also when user code has put another tensor in a buffer's place.

        The same `values`, given again, must have the same tensors: all ESTs of a step begin with them.
        """
        if values is not self._written:
            self._prepare(values)
        for (buffers, key), tensor in zip(self._slots, self._tensors, strict=True):
            buffers[key] = tensor
        for targets, sources in self._pairs:
            torch._foreach_copy_(targets, sources)

    def _prepare(self, values: Mapping[str, Tensor]) -> None:
        """Memory that fits, and who is copied where."""
        sources = [values[name] for name in self.names]
        for place, value in enumerate(sources):
            tensor = self._tensors[place]
            if tensor.shape != value.shape or tensor.dtype != value.dtype:
                self._tensors[place] = torch.empty_like(value, device=tensor.device)
        self._pairs = pairs_by_dtype(self._tensors, sources)
        self._written = values


class Contexts:
    """The buffers and contexts of all ESTs.

    Args:
        model: on its device.
        est_state: the user's objects of which each EST has its own state.
        spec: the job.
    """

    def __init__(self, model: nn.Module, est_state: Mapping[str, Stateful], spec: JobSpec) -> None:
        self._module = ModuleBuffers(model)
        self._objects = est_state
        self._device = next(model.parameters()).device
        has_buffers = bool(self._module.names)
        self._per_est = has_buffers and spec.buffers == "per_est"
        self._shared = self._module.read() if has_buffers else {}
        self._ests: dict[int, dict[str, Any]] = {}
        if self._per_est or est_state:
            self._ests = {est: self._read() for est in range(spec.ests)}

    def _read(self) -> dict[str, Any]:
        context: dict[str, Any] = {}
        if self._per_est:
            context["buffers"] = self._module.read()
        if self._objects:
            context["user"] = {name: copy_tree(thing.state_dict()) for name, thing in self._objects.items()}
        return context

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers that are evaluated and exported: those of EST 0."""
        return dict(self._ests[0]["buffers"]) if self._per_est else dict(self._shared)

    @property
    def bytes_of_one(self) -> int:
        """Bytes on the device of EST 0's context. Those of other ESTs are as large, give or take what a user keeps."""
        tensors = trees.flatten(self._ests[0])[1].values() if self._ests else ()
        return sum(tensor.nbytes for tensor in tensors if tensor.device.type == self._device.type)

    def enter(self, est: int) -> None:
        """Make the module and the user's objects what this EST left them."""
        if self._per_est:
            self._module.write(self._ests[est]["buffers"])
        elif self._shared:
            self._module.write(self._shared)
        for name, thing in self._objects.items():
            thing.load_state_dict(copy_tree(self._ests[est]["user"][name]))

    def leave(self, est: int) -> tuple[dict[str, Any] | None, dict[str, Tensor] | None]:
        """What this EST has made of them: its context, and the buffers if they are to be everybody's."""
        context = self._read() if self._ests else None
        shares = est == 0 and self._shared and not self._per_est
        return context, self._module.read() if shares else None

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Move on to the next step: the contexts and buffers that all contributions bring together.

        Raises:
            ValueError: an EST's context, or EST 0's buffers, are in none of them.
        """
        contexts = {est: context for c in contributions for est, context in c.contexts.items()}
        buffers = [c.buffers for c in contributions if c.buffers is not None]
        if contexts.keys() != self._ests.keys():
            raise ValueError(f"contexts of the ESTs {sorted(self._ests.keys() ^ contexts.keys())} are missing or extra")
        if self._shared and not self._per_est:
            if not buffers:
                raise ValueError("the buffers of EST 0 are missing")
            self._shared = self._on_device(buffers[0])
        self._set(contexts)
        self.enter(0)  # the optimizer's hooks may look at the module

    def _on_device(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self._device) for name, tensor in buffers.items()}

    def _set(self, contexts: Mapping[int, dict[str, Any]]) -> None:
        for est in self._ests:
            self._ests[est] = dict(contexts[est])
            if self._per_est:
                self._ests[est]["buffers"] = self._on_device(contexts[est]["buffers"])

    def state(self) -> dict[int, dict[str, Any]]:
        """Each EST's context by rank; empty if ESTs have none. The tensors are those in use, not copies."""
        return dict(self._ests)

    def load(self, buffers: Mapping[str, Tensor], ests: Mapping[int, Any]) -> None:
        """Go back to what `buffers` and `state` gave.

        Raises:
            ChangedError: they are of another model or job.
        """
        if ests.keys() != self._ests.keys():
            raise ChangedError(
                f"the state has contexts of the ESTs {sorted(ests)}, the job has them for {sorted(self._ests)}"
            )
        given = [context["buffers"].keys() for context in ests.values()] if self._per_est else []
        for names in (buffers.keys(), *given):
            if names != self.buffers.keys():
                raise ChangedError(
                    f"the state's buffers {sorted(names ^ self.buffers.keys())} are missing or extra",
                    "continue with the code that the state was trained with",
                )
        self._shared = self._on_device(copy_tree(dict(buffers)))
        self._set({est: copy_tree(context) for est, context in ests.items()})
        self.enter(0)
