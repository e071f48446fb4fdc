"""What a worker spares the owner of its device, as its command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .rules import LOAD, QUIET_SECONDS
from .watch import OwnerWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .notices import Notice
    from .rules import Hours

MEMORY = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The wishes of a device's owner; by default he has none.

    Args:
        only_when_idle: the worker keeps away while others use the device.
        load: share of the processors, or of the GPU's time, that others may use without that. memory: bytes of a GPU's
            memory that they may.
        users: ids of the users who count as others; empty: all do.
        quiet: seconds without others until the worker is back. hours: when it may work; None: always.
        notice: where it hears that the machine will go; None: nowhere.
    """

    only_when_idle: bool = False
    load: float = LOAD
    memory: int = MEMORY
    users: frozenset[int] = frozenset()
    quiet: float = QUIET_SECONDS
    hours: Hours | None = None
    notice: Notice | None = None

    def watch(
        self, device: str, runs: Callable[[], bool], on_away: Callable[[str], None], on_notice: Callable[[str], None]
    ) -> OwnerWatch | None:
        """What looks after these wishes; None if there are none.

        Args:
            device: as torch names it. runs: whether our runner has the device now.
            on_away, on_notice: see `OwnerWatch`.

        Raises:
            UserError: the device cannot be looked at.
        """
        look = self._look(device, runs) if self.only_when_idle else None
        if look is None and self.hours is None and self.notice is None:
            return None
        return OwnerWatch(
            device=look,
            hours=self.hours,
            notice=self.notice,
            quiet=self.quiet,
            runs=runs,
            on_away=on_away,
            on_notice=on_notice,
        )

    def _look(self, device: str, runs: Callable[[], bool]) -> Callable[[], str]:
        from .processor import Processors, family_pids, is_of, workers

        if device == "cpu":
            return Processors(self.load, workers, self.users).look
        from ..devices import cuda_uuid
        from .gpu import Gpu, open_nvml, sees_pids

        nvml, handle = open_nvml(cuda_uuid(device))
        counts = partial(is_of, users=self.users)
        return Gpu(nvml, handle, family_pids, runs, counts, self.memory, self.load, sees_pids()).look
