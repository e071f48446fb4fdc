"""The exact kernels in this process: loaded once, then in PyTorch's place or not.

PyTorch's operators are the process's, so this is a mode of the whole process. A runner turns it on before the model is
built and never off, and strictly: what is not covered is refused (see `strict.py`). Tests and benchmarks go back and
forth, without that.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch.optim import optimizer, swa_utils
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from ...errors import DeviceError
from . import build, coverage

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

REFUSED = "easyscale: not exact: "
"""How the text of what a kernel refuses begins."""

ISA = "EASYSCALE_ISA"
"""Environment variable: the instruction set of our kernels, for tests and diagnosis. It never reaches the bits."""

_NARROW = {
    f"aten::{name}"
    for name in (
        *(
            "conv1d",
            "conv1d.padding",
            "conv2d",
            "conv2d.padding",
            "conv3d",
            "conv3d.padding",
            "_convolution.deprecated",
        ),
        *("conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "mkldnn_rnn_layer"),
        *("mm", "bmm", "addmm", "_addmm_activation", "addbmm", "baddbmm", "linear", "matmul", "linalg_vecdot"),
        *("prelu", "scaled_dot_product_attention", "_native_multi_head_attention"),
    )
}
_WIDEST = {"aten::cat", "aten::stack", "aten::index_copy"}

_OPTIMIZERS = (optimizer, swa_utils)


@cache
def load() -> Any:
    """The library's operators (`torch.ops.easyscale`); built first if need be, which the log tells.

    Raises:
        BuildError: it cannot be.
        DeviceError: EASYSCALE_ISA names what this processor lacks.
    """
    if "easyscale" not in _spaces():
        torch.ops.load_library(str(build.library(_tell)))  # type: ignore[no-untyped-call]
    use_isa()
    return torch.ops.easyscale


def _tell(progress: str) -> None:
    log.info("numerics.build", progress=progress)


def _spaces() -> set[str]:
    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}  # noqa: SLF001


def use_isa(isa: str = "") -> None:
    """Let the kernels use this instruction set from now on.

    Args:
        isa: `baseline`, `avx2`, `avx512` or `neon`; empty: EASYSCALE_ISA's, or the best that this processor has.

    Raises:
        DeviceError: this processor lacks it.
    """
    isa = isa or os.environ.get(ISA, "")
    try:
        torch.ops.easyscale.use_isa(isa)
    except RuntimeError as error:
        raise DeviceError(f"{ISA}={isa}: {str(error).splitlines()[0]}") from None


def enable(device: str = "cpu") -> None:
    """Every operator that has an exact kernel is exact from now on.

    Args:
        device: `cpu`, or a GPU that is there: then kernels for it are made, if need be.

    Raises:
        BuildError: they cannot be.
        DeviceError: there are none for this GPU.
    """
    ours = load()
    _start(torch.device(device))
    ours.enable()
    if ours.has_devices():
        roads = _roads()
        ours.take_roads(roads, [name for name in roads if coverage.base_name(name) in coverage.ROADS_OF_ALL])
        ours.take_casts(*casts())
    settle()


def _start(device: torch.device) -> None:
    """Have kernels run on this device. Without CUDA in PyTorch there is none; what is in its place runs them itself."""
    if device.type == "cpu" or torch.version.cuda is None:
        return
    from . import cuda

    cuda.start(load(), torch.cuda.current_device() if device.index is None else device.index, _tell)


def _roads() -> list[str]:
    """Operators that compute on a device as on the CPU: ours, and what is made of them there but not here."""
    have, own = torch._C._dispatch_has_kernel_for_dispatch_key, set(load().operators())  # noqa: SLF001
    found = []
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        if not coverage.goes_by_the_cpu(name) or name.partition("::")[2] in own:
            continue
        if have(name, "CPU") or have(name, "CUDA"):
            found.append(name)
    return found


def casts() -> tuple[list[str], list[str], list[str], list[str]]:
    """What autocast does on a CPU (PyTorch 2.13, autocast_mode.cpp), for devices to do the same.

    Returns:
        Operators whose inputs are cast to its type; to binary32; to the widest among them; and those that it leaves
        alone there, but not on a GPU.
    """
    names, has = torch._C._dispatch_get_all_op_names(), torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    cast = {name for name in names if has(name, "AutocastCPU")}
    alone = [name for name in names if has(name, "AutocastCUDA") and name not in cast]
    return sorted(cast & _NARROW), sorted(cast - _NARROW - _WIDEST), sorted(cast & _WIDEST), alone


def settle() -> None:
    """PyTorch's switches as exact mode needs them."""
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001 - it would be asked before the kernels that were replaced
    torch.backends.cuda.enable_flash_sdp(False)  # attention as its parts, which are exact, and the same everywhere
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    # What is ours is deterministic without it; with it PyTorch composes some operators in another way, on GPUs only.
    torch.use_deterministic_algorithms(False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.opt_einsum.enabled = False  # else an order of products depends on what else is installed
    # By default they do their steps in another way on these devices, which rounds otherwise.
    for module in _OPTIMIZERS:
        module._get_foreach_kernels_supported_devices = list  # type: ignore[attr-defined]  # noqa: SLF001


def disable() -> None:
    """PyTorch's own operators again."""
    ours = load()
    if ours.has_devices():
        ours.leave_casts()
        ours.leave_roads()
    ours.disable()
    torch._C._set_mkldnn_enabled(True)  # noqa: SLF001
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cudnn.enabled = True
    torch.backends.mha.set_fastpath_enabled(True)
    torch.backends.opt_einsum.enabled = torch.backends.opt_einsum.is_available()
    for module in _OPTIMIZERS:
        module._get_foreach_kernels_supported_devices = _get_foreach_kernels_supported_devices  # type: ignore[attr-defined]  # noqa: SLF001


@contextmanager
def exact(isa: str = "") -> Iterator[None]:
    """Exact inside, PyTorch's own outside, for tests and benchmarks.

    Args:
        isa: see `use_isa`.
    """
    load()
    use_isa(isa)
    enable()
    try:
        yield
    finally:
        disable()
        use_isa()
