"""What of its owner's is on a GPU: what `--only-when-idle` looks at, through NVML (the library of `nvidia-smi`).

A process that computes counts by being there. Those that draw (a desktop) count by the memory that they use, and what
cannot be seen as a process (in another container) by memory and by how busy the GPU is while we do not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MIB = 1 << 20

HOST_PIDS = "pid:[4026531836]"
"""The machine's own PID namespace: the kernel gives it this number. In any other, NVML's PIDs mean nothing to us."""


@dataclass(slots=True)
class Gpu:
    """Looks at one GPU.

    Args:
        nvml: the module `pynvml`, or what stands in for it. handle: the GPU's.
        ours: PIDs of the worker and its children. counts: whether another one is of those that count.
        runs: whether our runner has the GPU.
        memory: bytes that others may use. load: share of the time in which they may compute.
        pids: whether NVML's PIDs are ours (`sees_pids`).
    """

    nvml: Any
    handle: Any
    ours: Callable[[], Collection[int]]
    runs: Callable[[], bool]
    counts: Callable[[int], bool]
    memory: int
    load: float
    pids: bool = True

    def look(self) -> str:
        """What of others' is on it; "" if nothing that counts.

        A GPU that cannot be asked any more is not used either.
        """
        try:
            return self._look()
        except self.nvml.NVMLError as error:
            return f"its GPU cannot be looked at: {error}"

    def _look(self) -> str:
        computing = {one.pid: one.usedGpuMemory for one in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)}
        runs, mine = self.runs(), set(self.ours())
        if self.pids:
            others = sorted(pid for pid in computing.keys() - mine if self.counts(pid))
            if others:
                return f"process {others[0]} computes on its GPU"
        elif len(computing) > runs:  # of PIDs that mean nothing there is one too many
            return f"{len(computing) - runs} process(es) of others compute on its GPU"
        used = int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)
        if not runs:
            if used > self.memory:
                return f"others use {used / MIB:.0f} MiB of its GPU's memory (limit {self.memory / MIB:.0f} MiB)"
            busy = self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu / 100
            if busy > self.load:
                return f"others keep its GPU busy {busy:.0%} of the time (limit {self.load:.0%})"
            return ""
        own = [memory for pid, memory in computing.items() if (pid in mine or not self.pids)]
        if own and all(memory is not None for memory in own) and used - sum(own) > self.memory:
            rest = (used - sum(own)) / MIB
            return f"others use {rest:.0f} MiB of its GPU's memory (limit {self.memory / MIB:.0f} MiB)"
        return ""


def sees_pids() -> bool:
    """Whether NVML's PIDs mean here what they mean on the machine."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == HOST_PIDS
    except OSError:
        return False


def open_nvml(uuid: str, nvml: Any = None) -> tuple[Any, Any]:
    """NVML, and its handle of the GPU of this UUID (as CUDA gives it, so that CUDA_VISIBLE_DEVICES does not matter).

    Raises:
        UserError: there is no NVML here, or it does not know the GPU.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as error:
        raise UserError(
            f"--only-when-idle cannot look at GPU {uuid}: {error}", "it needs the driver's NVML (libnvidia-ml.so.1)"
        ) from error
