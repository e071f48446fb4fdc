"""The runner as a child process, and what its agent may do to it when it is gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from easyscale.pipeline import messages
from easyscale.pipeline.process import RunnerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.pipeline.forkserver import ForkServer


def test_a_runner_that_is_gone_can_still_be_spoken_to_and_signalled(tmp_path: Path, fork_server: ForkServer) -> None:
    """Regression: the socket was closed under the agent, which died of writing to it."""
    ended = threading.Event()
    reasons: list[str] = []

    def on_exit(how: str) -> None:
        reasons.append(how)
        ended.set()

    process = RunnerProcess(
        fork_server,
        store="memory://x", device="cpu", folder=tmp_path, cache=False, host="", slowdown=1.0,
        log=tmp_path / "logs" / "log", on_message=lambda _: None, on_exit=on_exit,
    )  # fmt: skip
    process.signal("kill")
    assert ended.wait(30)
    process.send(messages.Stop())
    process.signal("stacks")
    process.signal("term")
    process.wait(1.0)
    assert "SIGKILL" in reasons[0]
