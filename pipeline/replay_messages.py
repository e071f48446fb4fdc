"""What a command and its replay process say to each other: JSON lines over a socket pair.

The command asks one thing at a time. The answer comes after any number of `Stepped`; `Failed` ends the process.
"""

from __future__ import annotations

import msgspec

from ..storage.differences import Difference  # noqa: TC001 - msgspec reads the types
from .messages import Base, Message
from .trace import Trace  # noqa: TC001 - msgspec reads the types


class Begin(Message, frozen=True, kw_only=True, tag=True):
    """Prepare a replica as a runner would; answered by `Begun`.

    Args:
        job: its name. spec, code: digests of the blobs. store: address. folder: for unpacked code. device: `cpu`,
            `cuda` or `cuda:N`. loaders: whether the job's loader processes may be used.
    """

    job: str
    spec: str
    code: str
    store: str
    folder: str
    device: str
    loaders: bool


class Recompute(Message, frozen=True, kw_only=True, tag=True):
    """Compute a span anew and compare it with what was committed; answered by `Recomputed`.

    Args:
        start: where it begins. If that state is held already, from the span before, it is not read again.
        held: state digest of the start. stop: the commit at its end, of state `digest`.
        history: digest of the blob with what was recorded, or None. whole: it must tell of all these steps; else some
            may be told of in a commit between the two that cannot be read.
    """

    start: Base
    held: str
    stop: Base
    digest: str
    history: str | None
    whole: bool


class Follow(Message, frozen=True, kw_only=True, tag=True):
    """Compute some steps from a commit on and say what each state was; answered by `Followed`."""

    start: Base
    until: int


class Record(Message, frozen=True, kw_only=True, tag=True):
    """Trace steps, each twice; answered by `Recorded`."""

    start: Base
    steps: tuple[int, ...]


class Name(Message, frozen=True, kw_only=True, tag=True):
    """Say under which names the model's `state_dict()` has its tensors; answered by `Named`."""


class Begun(Message, frozen=True, kw_only=True, tag=True):
    """Ready.

    Args:
        determinism: the class here. initial: digest of the initial state.
        same_data: whether the dataset is, by its fingerprint, the one that the job was submitted with.
    """

    determinism: dict[str, str]
    initial: str
    same_data: bool


class Stepped(Message, frozen=True, kw_only=True, tag=True):
    """This many steps are behind the replica."""

    step: int


class Recomputed(Message, frozen=True, kw_only=True, tag=True):
    """What became of a span.

    Args:
        digest: of the state at its end.
        step: the first step of which something else was recorded, or None; with what was recorded (empty: nothing) and
            what came out, JSON objects.
        differing: how many tensors and values of the state at the end differ; tensors: the first of them.
        unread: why the committed state could not be read for that.
    """

    digest: str
    step: int | None = None
    recorded: str = ""
    came_out: str = ""
    differing: int = 0
    tensors: tuple[Difference, ...] = ()
    unread: str = ""


class Followed(Message, frozen=True, kw_only=True, tag=True):
    """Digests of the states from the start on, and what would be recorded of each step, as JSON lines."""

    states: tuple[str, ...]
    lines: tuple[str, ...]


class Named(Message, frozen=True, kw_only=True, tag=True):
    """What the model's `state_dict()` has.

    Args:
        places: its names, in order -> where the tensor is in the job's state: `parameters/...` or `buffers/...`. One
            tensor may have several names.
        others: names of what is neither a parameter nor a buffer.
    """

    places: dict[str, str]
    others: tuple[str, ...] = ()


class Recorded(Message, frozen=True, kw_only=True, tag=True):
    """The traces, in the order they were asked for; none of a function, which is one step whatever it calls."""

    traces: tuple[Trace, ...]


class Failed(Message, frozen=True, kw_only=True, tag=True):
    """It cannot be done here. `cause` is as in `messages.Failed`."""

    cause: str
    message: str
    traceback: str = ""


Order = Begin | Recompute | Follow | Record | Name
Answer = Begun | Stepped | Recomputed | Followed | Recorded | Named | Failed
_orders = msgspec.json.Decoder(Order)
_answers = msgspec.json.Decoder(Answer)


def encode(message: Order | Answer) -> bytes:
    """As a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """In the replay process."""
    return _orders.decode(line)


def decode_answer(line: bytes) -> Answer:
    """In the command."""
    return _answers.decode(line)
