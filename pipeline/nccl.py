"""Gradients between GPUs by NCCL, when every member computes on one of its own.

Only the flat gradients go this way; what else members say to each other goes over `links.py`, which also notices who is
lost: NCCL itself would wait for a peer that has died until it is told to give up.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]


def all_distinct(gpus: Sequence[str]) -> bool:
    """Whether every member has a GPU, and none shares it: NCCL wants that. The same answer for all members."""
    return bool(gpus) and all(gpus) and len(set(gpus)) == len(gpus)


class Nccl:
    """A communicator of one generation.

    Args:
        store: where the members met. slot, size: mine, and how many members there are. device: my GPU.
    """

    def __init__(self, store: Store, slot: int, size: int, device: torch.device) -> None:
        from torch.distributed import PrefixStore, ProcessGroupNCCL  # type: ignore[attr-defined]

        options = ProcessGroupNCCL.Options()
        self._group: Any = ProcessGroupNCCL(PrefixStore("nccl/", store), slot, size, options)
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._computed: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._expected: dict[int, Mapping[int, Sequence[Tensor]]] = {}
        self.sent = 0
        """Bytes sent so far."""

    def stage(self) -> None:
        """What the calling thread has computed so far is what will be sent."""
        self._computed.record(torch.cuda.current_stream(self._device))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Kernels that are started meanwhile come after what was received, and before what will be sent."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._computed)
            yield

    def expect(self, tag: int, receives: Mapping[int, Sequence[Tensor]]) -> None:
        """As `Links.expect`, for tensors of this GPU."""
        self._expected[tag] = receives

    def move(self, tag: int, sends: Mapping[int, Sequence[Tensor]]) -> Callable[[], Mapping[int, Sequence[Tensor]]]:
        """As `Links.move`."""
        receives = self._expected.pop(tag, {})
        moves = [(slot, tensor, False) for slot, tensors in receives.items() for tensor in tensors if tensor.numel()]
        moves += [(slot, tensor, True) for slot, tensors in sends.items() for tensor in tensors if tensor.numel()]
        with self.computing():
            self._group._start_coalescing(self._device)  # noqa: SLF001 - one launch, or two peers could wait for ever
            for slot, tensor, away in moves:
                self.sent += tensor.nbytes if away else 0
                (self._group.send if away else self._group.recv)([tensor], slot, 0)
            work = self._group._end_coalescing(self._device)  # noqa: SLF001

        def settle() -> Mapping[int, Sequence[Tensor]]:
            with self.computing():
                if work is not None:
                    work.wait()
                self._stream.synchronize()
            return receives

        return settle

    def release(self) -> None:
        """See `Shared.release`: what has been waited for has been copied."""

    def abort(self) -> None:
        """Give up whatever is on its way."""
        self._group.abort()
