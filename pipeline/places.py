"""Where in the user's code something happens: the innermost line that is theirs, and the module of the model.

Theirs is what lies neither in PyTorch, nor in us, nor in an installed package. If all of it is installed (a model from
a library), the innermost line outside of PyTorch and us counts, or the optimizer. The backward pass has no lines of its
own: what happens there is told with the place of the forward operator that it is the derivative of.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from .script import MODULE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType, TracebackType

    from torch import nn

_PACKAGE = Path(__file__).parents[1]  # not resolved: as in frames
_OURS = (*(f"{_PACKAGE / name}/" for name in ("pipeline", "storage", "coordinator")), "<")
_TORCH = f"{Path(torch.__file__).parent}/"
_INSTALLED = tuple({f"{path}/" for path in sysconfig.get_paths().values()})


class Place(NamedTuple):
    """`line`: `train.py:12`, or empty. `module`: path in the model, or empty."""

    line: str = ""
    module: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.line, f"module {self.module!r}" if self.module else ""]))


class Places:
    """Finds places, and remembers where autograd's nodes were made.

    Args:
        model: whose modules are named; None while there is none.
        only: a folder, if only lines in it are the user's.
    """

    def __init__(self, model: nn.Module | None = None, only: Path | None = None) -> None:
        self._names: dict[int, str] = {}
        if model is not None:
            self.knows(model)
        self._kinds: dict[CodeType, int] = {}
        self._only = only is not None
        script = getattr(sys.modules.get(MODULE_NAME), "__file__", None)
        folder = only.resolve() if only else Path(script).parent if script else None
        self._folder = f"{folder}/" if folder else "\0"
        self._origins: dict[int, Place] = {}  # autograd's number of a node -> where it was made

    def knows(self, model: nn.Module) -> None:
        """The model has been built."""
        self._names = {id(module): name for name, module in model.named_modules()}

    def of(self, frames: Iterable[tuple[FrameType, int]]) -> Place:
        """The place of a stack, innermost frame first, with the lines at which they are."""
        line = installed = module = ""
        found = False
        for frame, number in frames:
            code = frame.f_code
            if not found and code.co_name == "_call_impl":
                found = True
                module = self._names.get(id(frame.f_locals.get("self")), "")
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = self._kind(code.co_filename)
            if code.co_name == "step" and isinstance(owner := frame.f_locals.get("self"), torch.optim.Optimizer):
                installed = installed or f"{type(owner).__name__}.step"
            if not line and kind == 2:
                line = self._text(code.co_filename, number)
            elif not installed and kind == 1:
                installed = self._text(code.co_filename, number)
        return Place(line or ("" if self._only else installed), module)

    def origin(self, place: Place) -> tuple[bool, Place | None]:
        """Where an operator that is called now comes from, in the backward pass.

        Args:
            place: where it is called; in the forward pass that is kept for the derivatives of what it makes.

        Returns:
            Whether this is the backward pass, and if so the place of what is derived there, as far as it is known.
        """
        node = torch._C._current_autograd_node()  # noqa: SLF001 - torch has no other way
        if node is None:  # if the newest node was not there before, it is this operator's
            self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)  # noqa: SLF001
            return False, None
        return True, self._origins.get(node._sequence_nr())  # noqa: SLF001 - torch has no other way

    def _kind(self, file: str) -> int:
        """2: the user's; 1: an installed package's; 0: PyTorch's or ours."""
        if file.startswith((_TORCH, *_OURS)):
            return 0
        if self._only:
            return 2 if file.startswith(self._folder) else 0
        return 1 if file.startswith(_INSTALLED) and not file.startswith(self._folder) else 2

    def _text(self, file: str, number: int) -> str:
        for prefix in (self._folder, *sorted(_INSTALLED, key=len, reverse=True)):
            file = file.removeprefix(prefix)
        return f"{file}:{number}"


def stack(depth: int) -> Iterator[tuple[FrameType, int]]:
    """The stack of the caller, `depth` frames above it and outward."""
    frame: FrameType | None = sys._getframe(depth + 1)  # noqa: SLF001
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def frames_of(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames of a traceback, innermost first."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames[::-1]
