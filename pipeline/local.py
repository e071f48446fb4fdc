"""Workers and a coordinator on this machine for as long as one command runs: what `easyscale run` stands on.

The workers are a crew (`crew.py`), the coordinator is a thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..coordinator.coordinator import Coordinator
from ..coordinator.kv import open_kv
from .crew import Crew

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from ..settings import Settings
    from .forkserver import ForkServer


class LocalCluster:
    """Workers for one command.

    Args:
        settings: addresses and folder.
        devices: one worker per entry.
        job: the only job that they serve, or the pipeline whose stages are.
        fork_server: where they come from.
        lane, address: of the workers: see the command.
        grace: seconds that a worker gets to leave.
    """

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[str],
        job: str,
        fork_server: ForkServer,
        *,
        lane: str = "auto",
        address: str | None = None,
        grace: float = 25.0,
    ) -> None:
        places = ["--kv", settings.kv, "--store", settings.store, "--folder", str(settings.folder)]
        common = [*places, "--only", job, "--lane", lane, *(["--address", address] if address else [])]
        workers = [["--name", f"local{i}", "--device", device, *common] for i, device in enumerate(devices)]
        self._settings = settings
        self._stop = threading.Event()
        self._kv = open_kv(settings.kv)
        self._crew = Crew(self._kv, fork_server, workers, settings.folder / "logs", grace=grace)
        self._failure: BaseException | None = None
        self._coordinator = threading.Thread(target=self._coordinate, name="easyscale-coordinator", daemon=True)

    def __enter__(self) -> LocalCluster:
        self._coordinator.start()
        self._crew.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.__exit__(kind, error, trace)
        self._stop.set()
        self._coordinator.join(5.0)
        self._kv.close()

    def _coordinate(self) -> None:
        try:
            Coordinator(open_kv(self._settings.kv)).run(self._stop)
        except BaseException as error:  # noqa: BLE001 - whatever it is, `watch_over` raises it
            self._failure = error

    def watch_over(self) -> None:
        """Replace workers that have died; raise what the coordinator died of. Call it now and then."""
        if self._failure is not None:
            raise self._failure
        self._crew.watch_over()
