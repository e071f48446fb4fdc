"""The values behind the keys: small, immutable, checked when read. JSON, so that `etcdctl get` shows them plainly.

Unknown fields are ignored when reading, so that an older worker can live beside a newer coordinator.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from ..errors import CorruptError

R = TypeVar("R")

Cause = Literal[
    "raised", "died", "memory", "hang", "diverged", "nonfinite", "inexact", "corrupt", "refused", "preempted"
]
"""Why an attempt ended. `preempted` is free; `memory` hands the work back; `corrupt` (its device was found to compute
or hold wrong bits) puts the device in quarantine; the others have their purses."""

FINAL: frozenset[Cause] = frozenset({"diverged", "nonfinite", "inexact"})
"""What another attempt would only repeat: the job fails at once."""

JobState = Literal["waiting", "running", "paused", "done", "failed", "cancelled"]
TERMINAL: frozenset[JobState] = frozenset({"done", "failed", "cancelled"})

WaitsFor = Literal["", "workers", "more", "ready", "willing"]
"""What a waiting job lacks: any worker; enough that are free; that those it has are ready; one that is willing."""


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner takes of its device's memory: see `pipeline/footprint.py`.

    Args:
        peak: bytes that it has taken at most. ests: the most ESTs that it has computed at a time by then, 1 or more.
        est: bytes that one EST more takes.
    """

    peak: int
    ests: int
    est: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a member last said of itself.

    Args:
        step: steps done, the step number of the state it holds.
        started: the step at which its generation began.
        lane, sent: how its generation exchanges partials (`local`: it is alone), and bytes sent in the last step.
        loss, lr: of the last step; `samples_per_second` over the last seconds; `step_seconds` of the last step.
        compute_seconds: what forward and backward passes of its own ESTs took of that, their batches included, until
            the device was done with them; exchange_seconds: from then until everybody's partials were there. The rest
            is the update. None: not told, or not a number.
        memory: None: not told.
    """

    step: int
    started: int = 0
    generation: int = 0
    epoch: int = 0
    loss: float | None = None
    lr: float | None = None
    samples_per_second: float = 0.0
    step_seconds: float = 0.0
    compute_seconds: float | None = None
    exchange_seconds: float | None = None
    lane: str = ""
    sent: int = 0
    memory: Footprint | None = None


LaneChoice = Literal["auto", "peer", "store"]

LaneKind = Literal["peer", "store"]
"""How the members of a generation exchange partials: directly, or through the object store. Never visible in bits."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A member's word that the exchange between peers broke in a generation.

    Args:
        lost: ids of the workers whose connections broke; empty if it cannot tell. why: for people.
    """

    generation: int
    lost: tuple[str, ...] = ()
    why: str = ""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it describes itself, under its lease.

    Args:
        id: name and boot nonce: a restarted worker is another worker.
        memory: bytes of the device, or what its owner gives of them.
        state: `idle`, `preparing` (its runner imports and builds), `ready`, `running`.
        job, generation: what it serves.
        beat: counts upward while the agent lives; a lease may outlive its holder, a beat cannot.
        away: why it serves nobody for now, since its device is its owner's; empty: it serves.
        only: the one job it serves; None: any.
        lane: what its owner allows: `peer` insists on direct exchanges, `store` rules them out.
        address: `host:port` where its runner is met by peers; empty: by the object store only.
        unreached: ids of workers whose address it could not connect to when it tried.
        broken: how its newest generation's exchange broke, if it did.
        trouble: why it cannot commit just now; it goes on trying.
        refusals: digest of a job's specification -> why this worker will not run it.
        rooms: digest of a job's specification -> the most ESTs that this worker will run of it: with more, its memory
            ran out.
        probes: digest of a job's specification -> seconds that one EST of it took here before any step; see
            `pipeline/warm.py`. None: not a number.
    """

    id: str
    name: str
    host: str
    pid: int
    device: str
    kind: str
    memory: int
    state: Literal["idle", "preparing", "ready", "running"] = "idle"
    job: str | None = None
    generation: int = 0
    leaving: bool = False
    away: str = ""
    only: str | None = None
    beat: int = 0
    lane: LaneChoice = "auto"
    address: str = ""
    unreached: tuple[str, ...] = ()
    broken: Broken | None = None
    trouble: str = ""
    refusals: dict[str, str] = {}
    rooms: dict[str, int] = {}
    probes: dict[str, float | None] = {}
    progress: Progress | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts may end badly, by cause, without progress in between (see `pipeline.spec.Retries`)."""

    died: int = 5
    raised: int = 0


Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
"""As `pipeline.spec.NAME_PATTERN`; checked when read where it becomes part of a key."""

JobKind = Literal["training", "function"]


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a pipeline. Its job is `PIPELINE.STAGE`. `inputs`: the earlier stages whose results it gets."""

    name: Name
    kind: JobKind = "training"
    inputs: tuple[Name, ...] = ()


class PipelineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What people are shown of a pipeline, also of stages that are no jobs yet. Nothing is decided by it.

    Args:
        stages: each comes after its inputs.
    """

    name: Name
    stages: tuple[StageRecord, ...]
    submitted: float = 0.0


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What scheduling needs to know of a job; the whole specification is a blob.

    Args:
        spec: blob digest of the `JobSpec`. code: blob digest of the code bundle.
        steps: the step at which the job is done.
        pipeline: of which it is a stage; empty: of none.
        forked: `JOB@STEP` of the commit that it began with; empty: it began with its first step.
        rewound: how often its head went back. A runner that was started before holds a state that does not count.
    """

    name: str
    spec: str
    code: str
    steps: int
    ests: int
    min_workers: int = 1
    max_workers: int | None = None
    guaranteed_workers: int = 0
    priority: int = 0
    tenant: str = ""
    numerics: str = "native"
    retries: Retry = Retry()
    pipeline: str = ""
    submitted: float = 0.0
    forked: str = ""
    rewound: int = 0


class Member(msgspec.Struct, frozen=True):
    """A worker and its contiguous range of ESTs, `first <= est < last`."""

    worker: str
    first: int
    last: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One membership of a job. Slot i belongs to `members[i]`; slot 0 publishes, and its runner is where peers meet."""

    generation: int
    lane: LaneKind = "store"
    members: tuple[Member, ...] = ()
    cause: str = ""

    def slot_of(self, worker_id: str) -> int | None:
        """The worker's slot, or None when it is no member."""
        for slot, member in enumerate(self.members):
            if member.worker == worker_id:
                return slot
        return None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that is over: see `past.py`.

    Args:
        first, last: the step at which it began, and the furthest that was heard of; None: it never began, as far as is
            known. Up to a second of steps after `last` are its own too.
        lane, members, cause: as in its plan.
    """

    generation: int
    first: int | None
    last: int | None
    lane: LaneKind = "store"
    members: tuple[Member, ...] = ()
    cause: str = ""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run one slot of one generation.

    Args:
        held: step of the state that the claimant holds.
        address: `host:port` where its runner is met by peers; empty: nowhere.
        gpu: UUID of the GPU it computes on; empty: another kind of device.
    """

    worker: str
    held: int
    address: str = ""
    gpu: str = ""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The newest published commit."""

    step: int
    manifest: str
    state_digest: str
    generation: int
    metrics: dict[str, float] = {}


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the first worker computed for the initial state and EST 0's first gradient, and in which class."""

    determinism: str
    digest: str
    description: dict[str, str] = {}
    worker: str = ""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """The commit `manifest` cannot be read whole; `usable_*` is its newest intact ancestor (None: the beginning)."""

    manifest: str
    usable_step: int
    usable_manifest: str | None
    found: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt of a worker ended. `device`: on what, as a quarantine names it."""

    worker: str
    generation: int
    cause: Cause
    step: int
    message: str = ""
    traceback: str = ""
    device: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed."""

    cause: Cause
    step: int
    worker: str
    message: str
    traceback: str = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One loss that a job got over.

    Args:
        seconds: from the last sign of life of whoever was lost (which comes about once a second) to the next finished
            step that was heard of.
        steps_recomputed: steps that had been done and were done again, the one under way included.
    """

    cause: str
    seconds: float
    steps_recomputed: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that the job has not got over yet: see `Recovery`.

    Args:
        generation: the one that ended by it. last_step: the furthest that anybody had told of.
        seconds: from the last sign of life of whoever was lost until it was noticed.
    """

    cause: str
    generation: int
    last_step: int
    seconds: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job so far.

    Args:
        reason: why, for people. waits_for: the same of a waiting job, for programs.
        attempts: ended attempts by cause, in all.
        streak: attempts ended by `died`, `hang` or `raised` since the job last got further than `streak_step`.
        recoveries: the newest ones; `recovered` counts all. loss: what it is getting over just now.
        damage: damaged objects that were found.
        quarantined: devices that the job keeps away from -> the evidence that they hold or compute wrong bits.
    """

    state: JobState = "waiting"
    reason: str = ""
    waits_for: WaitsFor = ""
    attempts: dict[str, int] = {}
    streak: dict[str, int] = {}
    streak_step: int = -1
    failure: Failure | None = None
    recoveries: tuple[Recovery, ...] = ()
    recovered: int = 0
    loss: Loss | None = None
    damage: tuple[str, ...] = ()
    quarantined: dict[str, str] = {}


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """How fast a kind of device is for a job, and what the job takes of its memory.

    Args:
        est: seconds of one EST. fixed: seconds of a step whatever the number of ESTs.
        memory: bytes whatever the number of ESTs; 0: not known. est_bytes: bytes that each EST takes besides.
    """

    est: float
    fixed: float = 0.0
    memory: int = 0
    est_bytes: int = 0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What has been learned of a job's speed: see `throughput.py`.

    Args:
        spec: digest of the specification that it was learned with.
        kinds: by kind of device.
        exchange: `<lane> <members>` -> seconds that an exchange takes once all have computed.
        factors: id of a worker -> how many times as long as its kind it takes, where that is much more or less; as its
            probe said, until its own steps say something else.
    """

    spec: str
    kinds: dict[str, Rate] = {}
    exchange: dict[str, float] = {}
    factors: dict[str, float] = {}


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Log chunks of one worker for one job in the object store, numbered from 0."""

    chunks: int


def cut(text: str, size: int, *, end: bool = False) -> str:
    """The beginning (or the end) of a text that fits into a value: at most `size` bytes once it is JSON."""
    text = text[-size:] if end else text[:size]
    while len(msgspec.json.encode(text)) > size + 2:  # a control character takes six bytes
        text = text[len(text) // 8 + 1 :] if end else text[: -(len(text) // 8) - 1]
    return text


def encode(record: msgspec.Struct) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(record, order="sorted")


def decode(value: bytes, kind: type[R], key: str = "") -> R:
    """Read a record.

    Raises:
        CorruptError: the value is not such a record; names the key.
    """
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(f"key {key!r} does not hold a {kind.__name__}: {error}") from error
