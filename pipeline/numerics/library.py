"""The exact kernels in this process: loaded once, then in PyTorch's place or not.

PyTorch's operators are the process's, so this is a mode of the whole process. A runner turns it on before the model is
built and never off; tests and benchmarks go back and forth.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from . import build

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED = "easyscale: not exact: "
"""How the text of what a kernel refuses begins."""


@cache
def load() -> Any:
    """The library's operators (`torch.ops.easyscale`); built first if need be.

    Raises:
        BuildError: it cannot be.
    """
    torch.ops.load_library(str(build.library()))  # type: ignore[no-untyped-call]
    return torch.ops.easyscale


def enable() -> None:
    """Every operator of this process is exact from now on, or refused."""
    load().enable()
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001 - it would be asked before the kernels that were replaced
    torch.backends.cuda.enable_flash_sdp(False)  # attention as its parts, which are exact, and the same everywhere
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)


def disable() -> None:
    """PyTorch's own operators again."""
    load().disable()
    torch._C._set_mkldnn_enabled(True)  # noqa: SLF001
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.mha.set_fastpath_enabled(True)


@contextmanager
def exact(isa: str = "") -> Iterator[None]:
    """Exact inside, PyTorch's own outside, for tests and benchmarks.

    Args:
        isa: `baseline`, `avx2`, `avx512` or `neon`; empty: the best that this processor has.
    """
    load().use_isa(isa)
    enable()
    try:
        yield
    finally:
        disable()
        load().use_isa("")
