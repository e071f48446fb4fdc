"""A process that has this folder on its PYTHONPATH has a CUDA device, which comes along with PyTorch.

It is `csrc/standin`, named by STAND_IN; where that is not set, nothing happens.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Bringer(MetaPathFinder, Loader):
    """Imports torch with a device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._theirs: Loader | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find torch; this loader's only module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.origin
        from presence import load_device

        load_device(self._device, spec.origin)
        self._theirs, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As always."""
        assert self._theirs
        return self._theirs.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """And then let it know of its device."""
        assert self._theirs
        self._theirs.exec_module(module)
        from presence import tell_torch

        tell_torch()


if _device := os.environ.get("STAND_IN"):
    sys.meta_path.insert(0, Bringer(_device))
