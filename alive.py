"""A file that a process touches as long as its loop turns, for whoever watches over it: a liveness probe, a cron job.

It says that decisions are still made, and nothing about the stores: a process that waits for etcd is alive, and may
hold in memory what nobody else has. Whether it is of use, `easyscale workers` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger()

BEAT_SECONDS = 1.0
"""Between two touches. A watcher should allow a minute: an answer of a store may be waited for in between."""


class AliveFile:
    """The file, made at once.

    Args:
        path: of a file in a folder that exists; a file that is there is kept, and touched. None: nobody watches.

    Raises:
        UserError: it cannot be made or touched.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._due = float("-inf")
        if path is None:
            return
        try:
            path.touch()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(
                f"--alive-file {str(path)!r} cannot be touched: {why}", "name a file in a folder that you can write"
            ) from error

    def beat(self, now: float) -> None:
        """Say that the loop turns.

        Args:
            now: seconds of a monotonic clock.
        """
        if self._path is None or now < self._due:
            return
        self._due = now + BEAT_SECONDS
        try:
            self._path.touch()
        except OSError as error:  # the watcher will find out; a step is not worth losing for it here
            log.warning("alive_file.not_touched", path=str(self._path), error=str(error))
