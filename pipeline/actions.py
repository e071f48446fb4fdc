"""What an agent can decide to do. Data; `worker.py` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..coordinator.transactions import Txn
    from . import messages


@dataclass(frozen=True, slots=True)
class Start:
    """Start a runner and send it this."""

    prepare: messages.Prepare


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the runner."""

    message: messages.ToRunner


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the runner's process group; `stacks` asks it to write its stacks to its log first."""

    kind: Literal["stacks", "term", "kill"]


@dataclass(frozen=True, slots=True)
class Write:
    """Apply a transaction and report the outcome with `on_outcome`."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class Exit:
    """All is handed over: the agent may end."""


Action = Start | Send | Signal | Write | Exit
