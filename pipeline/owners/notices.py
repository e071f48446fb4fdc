"""Notices that a machine will be taken away: clouds give them minutes or seconds before, in a file or on request."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

COMMAND_SECONDS = 4.0
"""What a command may take; then it has said nothing."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Looks for a notice.

    Args:
        file: is there once there is one. command: exits with 0 once there is one.
    """

    file: Path | None = None
    command: tuple[str, ...] = ()

    @staticmethod
    def of(file: Path | None, command: str | None) -> Notice:
        """From what a user wrote.

        Raises:
            UserError: the command is none.
        """
        try:
            parts = tuple(shlex.split(command)) if command is not None else ()
        except ValueError as error:
            raise UserError(
                f"--notice-command {command!r} cannot be read: {error}", "quote it as for a shell"
            ) from None
        if command is not None and not parts:
            raise UserError("--notice-command is empty", "give a command that exits with 0 once the machine will go")
        return Notice(file, parts)

    def look(self) -> str:
        """What says that the machine will go; "" as long as nothing does."""
        if self.file is not None and self.file.exists():
            return f"{self.file} is there"
        if self.command and self._asked():
            return f"`{shlex.join(self.command)}` says so"
        return ""

    def _asked(self) -> bool:
        try:
            done = subprocess.run(self.command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0
