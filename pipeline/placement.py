"""Batches on the device that computes: moved there, or aligned where they are.

Nothing here changes a value; it keeps where a batch came from (a loader process, NumPy, a slice) from choosing kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .flat import ALIGNMENT

if TYPE_CHECKING:
    from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`: in dicts, lists, tuples, and objects that have `.to()`."""
    if isinstance(batch, torch.Tensor):
        return _tensor_to(batch, device)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if type(batch) in (list, tuple):
        return type(batch)(to_device(item, device) for item in batch)
    return batch


def _tensor_to(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        # NumPy aligns to 16 bytes and shared memory to pages; BLAS libraries may choose a kernel by it
        misaligned = tensor.layout == torch.strided and tensor.data_ptr() % ALIGNMENT != 0
        return tensor.clone() if misaligned else tensor
    return tensor.to(device, non_blocking=True)
