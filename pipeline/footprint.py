"""What a runner takes of its device's memory, and what one EST more would take.

ESTs share the parameters, the optimizer's state and the activations, since they run one after the other. What each of
them adds is its *context* (its own buffers, and the state that a user keeps per EST): the one that it leaves in a step
lies beside the one that it began with until the step is applied. The contexts that ESTs begin with do not count: every
replica holds those of all ESTs. Nor do gradients: of n ESTs, about log2(n) partial sums are alive at a time. Batches
that are fetched ahead are as many whatever n is. So a job without contexts runs any number of ESTs in the memory of
one, but for those sums.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..coordinator.records import Footprint


def measured(device: torch.device, ests: int, est: int) -> Footprint | None:
    """What this process has taken.

    Args:
        ests: the most ESTs that it has computed at a time. est: bytes of an EST's context.

    Returns:
        None if the device does not say what was taken of it, or if nothing was computed yet.
    """
    peak = peak_bytes(device)
    return Footprint(peak=peak, ests=ests, est=est) if peak and ests else None


def peak_bytes(device: torch.device) -> int:
    """The most that this process has taken so far; 0 if the device does not say.

    Of a GPU: what tensors took; what libraries and the allocator hold besides depends on how much is free. Of a CPU:
    resident memory, libraries included, loader processes not.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _peak_resident()


def _peak_resident() -> int:
    """Bytes. What `getrusage` says would count the memory of whoever started this process, from before it was one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
