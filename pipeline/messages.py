"""What an agent and its runner say to each other: JSON lines over a socket pair that only the two of them hold.

The agent owns leases and claims, the runner owns the user's code and the state. End of file means the other is dead.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..coordinator.records import Cause, Footprint, LaneKind, Member, Progress  # noqa: TC001 - msgspec reads the types


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A commit to start from: its step and manifest digest; (0, None) is the initial state.

    `damaged`: the head that followed it is damaged, so what is in the store already may have to be sent again.
    """

    step: int = 0
    manifest: str | None = None
    damaged: bool = False


# ---- agent -> runner


class Prepare(Message, frozen=True, kw_only=True, tag=True):
    """Import the code, build the replica, compute the probe; answered by `Ready` or `Failed`.

    `forked`: the job cannot begin again with its first step, since it began with another job's commit.
    """

    job: str
    worker: str
    spec: str
    code: str
    forked: bool = False


class Run(Message, frozen=True, kw_only=True, tag=True):
    """Run steps from `step` on as one member of a generation.

    Args:
        members, slot: everybody's ranges, and which is mine.
        step: where all members begin. base: the commit to load when another state is held; parent of the next commit.
        held: by slot, step of the state that each member holds: with peers, who holds that of `step` gives it to who
            does not.
        lane: how partials travel. addresses: by slot, where runners are met by peers. gpus: by slot, UUIDs or empty.
    """

    generation: int
    members: tuple[Member, ...]
    slot: int
    step: int
    base: Base
    held: tuple[int, ...] = ()
    lane: LaneKind = "store"
    addresses: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


class Yield(Message, frozen=True, kw_only=True, tag=True):
    """Generation `generation` is over or about to be.

    Args:
        lost: slots whose partials will never come: stop waiting for them, drop the step.
        drop: stop at once, nothing of this generation is wanted any more.
    """

    generation: int
    lost: tuple[int, ...] = ()
    drop: bool = False


class Leave(Message, frozen=True, kw_only=True, tag=True):
    """This worker must go: finish the step, commit if nobody else carries on, say `Idle`."""


class Pause(Message, frozen=True, kw_only=True, tag=True):
    """The job pauses: finish the step together, commit, say `Idle`."""


class Commit(Message, frozen=True, kw_only=True, tag=True):
    """Commit the state held now (others need it to join, or nobody else will), then say `Committed`."""

    base: Base


class Published(Message, frozen=True, kw_only=True, tag=True):
    """The commit of this step is the job's head now."""

    base: Base


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """The publish was refused. `moved` names the head to build on; otherwise this worker is fenced off."""

    step: int
    reason: str
    moved: Base | None = None


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """Exit now."""


# ---- runner -> agent


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """The replica is built and holds the initial state.

    Args:
        determinism: id of this device's determinism class; `description` its parts.
        probe: digest of the initial state and EST 0's first gradient.
        address: `host:port` where this runner is met by peers; empty: nowhere. gpu: UUID of its GPU, or empty.
        memory: what it has taken of its device's memory so far; None: not known.
        est_seconds: what one EST takes, once the process has warmed up; None: not known.
    """

    determinism: str
    description: dict[str, str]
    probe: str
    address: str = ""
    gpu: str = ""
    memory: Footprint | None = None
    est_seconds: float | None = None


class Computing(Message, frozen=True, kw_only=True, tag=True):
    """Computation of a step (or an evaluation) begins: the hang deadline starts. `replay`: of all ESTs, once more.

    `function`: a call of a plain function, which takes as long as it takes: there is no deadline.
    """

    what: Literal["step", "evaluation", "load", "replay", "function"] = "step"


class Waiting(Message, frozen=True, kw_only=True, tag=True):
    """Waiting for somebody else: no hang deadline."""


class Stepped(Message, frozen=True, kw_only=True, tag=True):
    """A step is done."""

    progress: Progress


class Broken(Message, frozen=True, kw_only=True, tag=True):
    """The exchange between peers broke; an `Idle` follows.

    Args:
        lost: slots whose connections broke; empty if it cannot tell which. why: for people.
    """

    generation: int
    lost: tuple[int, ...] = ()
    why: str = ""


class Idle(Message, frozen=True, kw_only=True, tag=True):
    """Not running any more; holds the state of step `held`."""

    generation: int
    held: int
    reason: Literal["done", "yield", "leave", "pause"]


class Publish(Message, frozen=True, kw_only=True, tag=True):
    """Please make this commit the head."""

    step: int
    manifest: str
    state_digest: str
    parent: str | None
    metrics: dict[str, float] = {}


class Trouble(Message, frozen=True, kw_only=True, tag=True):
    """A commit cannot be written now (a full disk, a store that does not answer) and is tried again; steps go on."""

    what: str


class Committed(Message, frozen=True, kw_only=True, tag=True):
    """The commit asked for by `Commit`, or made on leaving, is published or was refused for good."""

    step: int
    published: bool


class Damaged(Message, frozen=True, kw_only=True, tag=True):
    """The commit `manifest` cannot be read whole; `usable` is its newest intact ancestor."""

    manifest: str
    usable: Base
    found: tuple[str, ...]


class Failed(Message, frozen=True, kw_only=True, tag=True):
    """The attempt ended; the runner exits after this."""

    cause: Cause
    step: int
    message: str
    traceback: str = ""


ToRunner = Prepare | Run | Yield | Leave | Pause | Commit | Published | Refused | Stop
FromRunner = Ready | Computing | Waiting | Stepped | Broken | Idle | Publish | Trouble | Committed | Damaged | Failed

_encoder = msgspec.json.Encoder()
_to_runner: msgspec.json.Decoder[ToRunner] = msgspec.json.Decoder(ToRunner)
_from_runner: msgspec.json.Decoder[FromRunner] = msgspec.json.Decoder(FromRunner)


def encode(message: ToRunner | FromRunner) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


def decode_to_runner(line: bytes) -> ToRunner:
    """Read a line that the agent wrote."""
    return _to_runner.decode(line)


def decode_from_runner(line: bytes) -> FromRunner:
    """Read a line that the runner wrote."""
    return _from_runner.decode(line)
