"""What a generation is run with, as protocols: the replica, the lane and the commits; and what it yields when it waits.

The runner has the real ones, tests and the simulation have others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import messages
    from .session import Control


class OverError(Exception):
    """This generation is over for us: the state held is whole, and its next members carry on."""


class Wait(NamedTuple):
    """A point where time may pass. `compute` marks the work of a step, for a simulator that has to charge it."""

    seconds: float = 0.0
    compute: bool = False


class StepReport(Protocol):
    """What a replica says about a step; `engine.StepReport` has more."""

    @property
    def loss(self) -> float | None:
        """Mean over all ESTs; None: there is none."""
        ...

    @property
    def lr(self) -> Sequence[float]:
        """Learning rates the step was made with, by parameter group."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch the step belongs to."""
        ...


class Replica(Protocol):
    """What holds `S(t)` and can move it on. `engine.Engine` is the real one."""

    @property
    def step(self) -> int:
        """t of the state held."""
        ...

    def state(self) -> Any:
        """The state held, as a tree; it may be read until the next `apply`."""
        ...

    def load_state(self, tree: Any) -> None:
        """Hold this state instead."""
        ...

    def compute(self, ests: range, watch: int | None = None) -> Any:
        """My part of a step; leaves the state as it is. `watched` in it are the gradient's sums of EST `watch`."""
        ...

    def gradient_sums(self, est: int) -> bytes:
        """Sums of what anybody's EST contributes to this step; leaves the state as it is."""
        ...

    @property
    def gradient_names(self) -> Sequence[str]:
        """Of what these are the sums."""
        ...

    def sums(self) -> bytes:
        """Sums of the state held: equal if the states are, and hardly ever otherwise."""
        ...

    def exact_sums(self) -> dict[str, str]:
        """The same by name, slow, and different only if the states are."""
        ...

    def run_local(self) -> StepReport:
        """A whole step, all ESTs, without the others."""
        ...

    def apply(self, contributions: Sequence[Any]) -> StepReport:
        """Everybody's parts: the state becomes the next one."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics of the state held."""
        ...


class Lane(Protocol):
    """How partials travel between the members of one generation. Never visible in the bits.

    All methods may raise `UnavailableError` (try again) and `LaneBrokenError` (this generation is over).
    """

    @property
    def kind(self) -> str:
        """`local`, `peer` or `store`."""
        ...

    @property
    def waits(self) -> bool:
        """Whether calls wait for what is not there yet, so that nobody needs to in between."""
        ...

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        ...

    @property
    def ran_out(self) -> bool:
        """Whether it broke only because nothing came for too long."""
        ...

    def part(self) -> None:
        """The generation ended by common decision: that I go now is no break."""
        ...

    def close(self, *, finished: bool) -> None:
        """Let go of everything. Afterwards nobody reads or writes what was sent or given.

        Args:
            finished: the others need nothing of mine any more.
        """
        ...

    def interrupt(self) -> None:
        """Let `poll` answer None, as the message that has just come says that it waits in vain; from any thread."""
        ...

    def meet(self) -> bool:
        """Whether all members are here; call again until they are. May wait for some milliseconds."""
        ...

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """Hand the state held to these members; call again until it is done, and leave the state as it is till then."""
        ...

    def take(self, slot: int) -> Parcel | None:
        """The state that this member gives me, or None while it is on its way."""
        ...

    def send(self, step: int, control: Control, contribution: Any | None) -> None:
        """Make my part of a step available to the others; None: only the control record, between two steps.

        All members agree on which it is. A `control.round` other than 0 says that it is between steps.
        """
        ...

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """All members' parts in slot order, or None while some are missing. May wait, until `interrupt`.

        A lane may have done sums on the way: together the parts have what `Replica.apply` needs.
        """
        ...


class Parcel(NamedTuple):
    """What a member that is behind needs to carry on.

    Args:
        state: tree of `S(t)`. history: step -> JSON line, since the newest commits: see `Committer.history`.
    """

    state: Any
    history: dict[int, bytes]


class Commits(Protocol):
    """Where commits are made, in the background."""

    @property
    def history(self) -> dict[int, bytes]:
        """What is remembered of the steps since the newest commits."""
        ...

    def adopt(self, history: dict[int, bytes]) -> None:
        """Another member's state was loaded: its history is ours."""
        ...

    @property
    def base(self) -> messages.Base:
        """The newest commit that is known to be the head."""
        ...

    @property
    def idle(self) -> bool:
        """Whether a new snapshot can be taken."""
        ...

    def record(self, report: Any) -> None:
        """Remember a step for the history that goes with the next commit."""
        ...

    def begin(self, metrics: dict[str, float], *, publish: bool, share: tuple[int, int]) -> None:
        """Take a snapshot of the state held; upload a share of it; publish it if asked."""
        ...

    def settled(self, step: int) -> bool:
        """Whether a commit of at least this step is the head, or we have been fenced off."""
        ...
