"""The runner's end of the socket to its agent, when the user's code has closed it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from easyscale.pipeline.channel import CLOSED

if TYPE_CHECKING:
    from pathlib import Path

SAY = """
import os, sys
from easyscale.pipeline import messages
from easyscale.pipeline.channel import Channel
fd = int(sys.argv[1])
channel = Channel(fd)
os.close(fd)
if sys.argv[2:]:
    os.dup2(os.open(sys.argv[2], os.O_WRONLY), fd)
channel.say(messages.Committed(step=1, published=True))
"""


@pytest.mark.parametrize("taken", [False, True])
def test_a_connection_that_was_closed_from_inside_ends_the_runner_and_says_so(tmp_path: Path, *, taken: bool) -> None:
    """Regression: what had the number of the closed connection next was written to, and the agent waited for ever."""
    other = tmp_path / "other"
    other.touch()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(theirs.fileno()), *([str(other)] if taken else [])]
        command = [sys.executable, "-P", "-c", SAY, *arguments]
        ran = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, check=False, env=os.environ)
    assert ran.returncode == 1
    assert ran.stderr.decode() == CLOSED
    assert other.read_bytes() == b""
