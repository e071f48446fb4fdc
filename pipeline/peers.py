"""The lane between peers: partials go straight from one runner's memory to another's.

Part i of every flat gradient belongs to slot i: it gets that part of everybody's nodes, finishes the canonical tree on
it and sends the result to all. So a member of W with one node sends twice (W-1)/W of a gradient, as a ring would.
Control records, losses, contexts and buffers go along from everybody to everybody, so each member can carry on alone.

A helper thread does all that may block, so the member can turn away from a peer that has stopped: whoever does, closes
the lane before it computes again. A connection that breaks names its peer at once.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
import torch

from ..errors import CorruptError, LaneBrokenError
from . import parcels
from .contribution import Contribution
from .links import GOODBYE, Links, PeerLost
from .nccl import Nccl, all_distinct
from .parcels import Damaged, Frames
from .reduction import fold, nodes_of
from .rendezvous import MEET_SECONDS, Meeting
from .session import Control  # noqa: TC001 - msgspec reads the type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .messages import Run
    from .reduction import Node, Value
    from .seams import Parcel

log = structlog.get_logger()

POLL_SECONDS = 0.02
"""How long a call waits for an answer; messages from the agent are looked at in between."""

GATHER_SECONDS = 0.05
"""From the first broken connection to the verdict: those who die together are named together."""

ALIGNMENT = 16
"""Elements. Parts begin at multiples of it, for the sake of vector instructions."""

NOTE, PARTIALS, FINISHED, STATE = range(GOODBYE + 1, GOODBYE + 5)
"""Tags of messages: see `links.py`. Messages of one tag arrive in the order they were sent."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a member sends besides gradients. `extra`: contexts and buffers as `Contribution.to_bytes`, if any."""

    step: int
    control: Control
    used: bytes
    losses: dict[int, float]
    extra: bytes


class _Answer(NamedTuple):
    """What the helper thread tells: an answer to a question, or of a lost peer."""

    to: str
    value: Any


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)


class PeerLane:
    """One member's lane to its peers, for one generation.

    Args:
        job, run: which generation. ests: N.
        host: of this worker: see `Rendezvous`. device: where contributions lie.
        patience: seconds for everybody's part of a step; after that the lane breaks without naming anybody.
    """

    kind = "peer"
    waits = True

    def __init__(self, job: str, run: Run, ests: int, host: str, device: str, patience: float) -> None:
        self._run, self._ests, self._host, self._device = run, ests, host, torch.device(device)
        self._patience = patience
        self._memory: dict[int, dict[Node, Value]] = {}
        self._notes: Frames | None = None
        self._asked: dict[str, float] = {}
        self._question = ""
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._heard: dict[str, Any] = {}
        self._lost: dict[int, str] = {}
        self._verdict_at = float("inf")
        self._links: Links | None = None
        self._nccl: Nccl | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._questions: queue.SimpleQueue[tuple[str, Callable[[Links], Any]] | None] = queue.SimpleQueue()
        self._meeting = Meeting(job, run, host, lambda: self._closed)
        self._thread = threading.Thread(target=self._work, name="easyscale-peers", daemon=True)
        self._thread.start()

    # ---- the member's side

    @property
    def sent(self) -> int:
        """Bytes sent to peers so far."""
        links, nccl = self._links, self._nccl
        return (links.sent if links else 0) + (nccl.sent if nccl else 0)

    @property
    def ran_out(self) -> bool:
        """See `seams.Lane`."""
        return self._verdict_at == 0.0

    def meet(self) -> bool:
        """See `seams.Lane`."""
        self._asked.setdefault("meet", time.monotonic())
        if self._listen("meet") is not None:
            return True
        if time.monotonic() - self._asked["meet"] > 3 * MEET_SECONDS:  # who is stopped answers nothing at all
            missing = self._meeting.missing
            raise LaneBrokenError(missing, f"slots {list(missing)} were not met")
        return False

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """See `seams.Lane`."""

        def give(links: Links) -> bool:
            parcels.give(links, STATE, slots, parcel)
            return True

        self._ask("give", give)
        return self._listen("give") is not None

    def take(self, slot: int) -> Parcel | None:
        """See `seams.Lane`."""
        self._ask("take", lambda links: parcels.take(links, STATE, slot))
        taken: Parcel | None = self._listen("take")
        return taken

    def send(self, step: int, control: Control, contribution: Contribution | None) -> None:
        """See `seams.Lane`. The contribution's memory is used until `poll` has answered, or `close` returned."""
        links, self._question = self._links, f"step {step} {control.round}"
        assert links is not None, "members meet before they send"
        if self._question in self._asked:
            return
        mine = self._staged(contribution) if contribution is not None else Contribution(step, {}, b"")
        try:  # from this thread, which has nothing better to do: the helper would have to wake up first
            moved = self._begin(links, step, control, mine)
        except PeerLost as lost:
            self._asked = {self._question: time.monotonic()}
            self._take_in(_Answer("lost", (lost.slot, str(lost))))
            return
        self._ask(self._question, lambda links: self._finish(links, step, control, mine, moved))

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """See `seams.Lane`. The first part has the finished root, in the memory of the contribution sent."""
        question = self._question
        assert question.startswith(f"step {step} "), f"step {step} was not sent, but {question}"
        gathered: list[tuple[Control, Any]] | None = self._listen(question)
        if gathered is None and time.monotonic() - self._asked[question] > self._patience:
            self._verdict_at = 0.0
            raise LaneBrokenError((), f"nothing has come from peers for {self._patience:.0f} s, nor did they go")
        return gathered

    def part(self) -> None:
        """See `seams.Lane`."""
        if self._links is not None and not self._lost:
            self._links.part()

    def close(self, *, finished: bool = True) -> None:  # noqa: ARG002 - nothing of mine lies anywhere
        """See `seams.Lane`."""
        with self._closing:
            self._closed = True
        self._questions.put(None)
        if self._links is not None:
            self._links.close()
            if self._nccl is not None:
                self._nccl.abort()
            self._thread.join()

    def _ask(self, question: str, do: Callable[[Links], Any]) -> None:
        """Have the helper do something, once."""
        if question not in self._asked:
            self._asked = {question: time.monotonic()}
            self._questions.put((question, do))

    def _listen(self, question: str) -> Any:
        """The answer to a question, or None while it is not there.

        Raises:
            LaneBrokenError: it never will be.
        """
        with suppress(queue.Empty):
            if question not in self._heard:
                self._take_in(self._answers.get(timeout=POLL_SECONDS))
            while True:
                self._take_in(self._answers.get_nowait())
        if question in self._heard:  # first: who sent all there was may have gone since
            return self._heard.pop(question)
        if time.monotonic() >= self._verdict_at:
            why = "; ".join(
                f"slot {slot} ({self._run.members[slot].worker}): {self._lost[slot]}" for slot in self._lost
            )
            raise LaneBrokenError(tuple(sorted(self._lost)), f"the connection broke to {why}")
        return None

    def _take_in(self, answer: _Answer) -> None:
        if answer.to == "lost":
            slot, why = answer.value
            self._lost.setdefault(slot, why)
            self._verdict_at = min(self._verdict_at, time.monotonic() + GATHER_SECONDS)
        elif answer.to == "failed":
            raise answer.value
        else:
            self._heard[answer.to] = answer.value

    def _staged(self, mine: Contribution) -> Contribution:
        """With gradients where the lane can send them from."""
        if self._nccl is not None:
            self._nccl.stage()
            return mine
        if self._device.type == "cpu":
            return mine
        return replace(mine, nodes={node: [flat.cpu() for flat in value] for node, value in mine.nodes.items()})

    # ---- the helper's side

    def _work(self) -> None:
        torch.set_flush_denormal(False)  # of each thread its own; partials are summed here
        try:
            links = self._connect()
            if links is None:
                return
            self._answers.put(_Answer("meet", True))
            while (asked := self._questions.get()) is not None:
                question, do = asked
                self._answers.put(_Answer(question, do(links)))
        except PeerLost as lost:
            self._answers.put(_Answer("lost", (lost.slot, str(lost))))
        except Damaged as damage:
            self._answers.put(_Answer("failed", LaneBrokenError((damage.slot,), str(damage))))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the member must hear of it
            self._answers.put(_Answer("failed", error))

    def _connect(self) -> Links | None:
        group, store = self._meeting.connect()
        links = Links(
            group,
            self._run.slot,
            len(self._run.members),
            lambda slot, why: self._answers.put(_Answer("lost", (slot, why))),
        )
        with self._closing:
            if not self._closed:
                if all_distinct(self._run.gpus):
                    self._nccl = Nccl(store, self._run.slot, len(self._run.members), self._device)
                self._links = links
                return links
        links.close()
        return None

    def _begin(self, links: Links, step: int, control: Control, mine: Contribution) -> Callable[[], None]:
        """Send my note and partials to everybody, and be ready for what becomes of them; what waits till it is done.

        The finished parts may come to memory that is still being sent: nobody finishes one without having all of it.
        """
        self._notes = self._notes or Frames(links, NOTE)
        self._notes.expect(links.peers)
        moved = None
        if mine.nodes:
            bulk, root = self._nccl or links, _root(mine)
            if not self._memory:
                self._expect_partials(bulk, root)
            bulk.expect(FINISHED, {peer: self._part(root, peer) for peer in links.peers})
            partials = {peer: _all(self._part(value, peer) for value in mine.nodes.values()) for peer in links.peers}
            moved = bulk.move(PARTIALS, partials)
        self._notes.send(links.peers, _encoder.encode(_note(step, control, mine)))
        return moved or (lambda: None)

    def _finish(
        self, links: Links, step: int, control: Control, mine: Contribution, moved: Callable[[], None]
    ) -> list[tuple[Control, Any]]:
        """What everybody has said; in a step also my part of the root from what came, and everybody's part of it."""
        assert self._notes is not None
        parts = {peer: self._checked(self._notes.receive(peer), peer, step, mine) for peer in links.peers}
        self._notes.settle()
        if not mine.nodes:
            said = {links.slot: control} | {peer: part[0] for peer, part in parts.items()}
            return [(said[slot], None) for slot in sorted(said)]
        moved()
        bulk, root = self._nccl or links, _root(mine)
        result = self._part(root, links.slot)
        nodes = {node: self._part(value, links.slot) for node, value in mine.nodes.items()}
        for others in self._memory.values():
            nodes |= others
        with self._nccl.computing() if self._nccl else nullcontext():
            fold(nodes, self._ests, result)
        moved = bulk.move(FINISHED, dict.fromkeys(links.peers, result))
        self._expect_partials(bulk, root)  # of the next step: who comes first need not ask
        moved()
        parts[links.slot] = control, replace(mine, nodes={})
        first, contribution = parts[0]
        parts[0] = first, replace(contribution, nodes={(0, self._ests): root})
        return [parts[slot] for slot in sorted(parts)]

    def _expect_partials(self, bulk: Links | Nccl, like: Value) -> None:
        """Be ready for my part of the others' nodes."""
        if not self._memory:
            part = self._part(like, self._run.slot)
            for slot, member in enumerate(self._run.members):
                if slot != self._run.slot:
                    nodes = nodes_of(member.first, member.last, self._ests)
                    self._memory[slot] = {node: [torch.empty_like(flat) for flat in part] for node in nodes}
        bulk.expect(PARTIALS, {peer: _all(nodes.values()) for peer, nodes in self._memory.items()})

    def _part(self, value: Value, slot: int) -> Value:
        """The part of flat gradients that belongs to a slot."""
        size = len(self._run.members)
        return [flat[_begin(slot, flat, size) : _begin(slot + 1, flat, size)] for flat in value]

    def _checked(self, data: bytes, peer: int, step: int, mine: Contribution) -> tuple[Control, Contribution]:
        """A peer's note, taken apart.

        Raises:
            Damaged: it is none, or is not about this step.
        """
        member = self._run.members[peer]
        try:
            note = _decoder.decode(data)
            extra = Contribution.from_bytes(note.extra) if note.extra else Contribution(step, {}, b"")
        except (msgspec.DecodeError, CorruptError) as error:
            raise Damaged(peer, f"slot {peer} ({member.worker}) sent a damaged note: {error}") from error
        ests, used = set(range(member.first, member.last)) if mine.nodes else set(), len(mine.used)
        if (note.step, note.control.slot, set(note.losses), len(note.used)) != (step, peer, ests, used):
            raise Damaged(peer, f"slot {peer} ({member.worker}) sent a note that is not its own for step {step}")
        return note.control, replace(extra, used=note.used, losses=note.losses)


def _root(mine: Contribution) -> Value:
    """Where the root of the tree will be: in memory of the member's own first node."""
    return next(iter(mine.nodes.values()))


def _all(values: Iterable[Value]) -> Value:
    return [flat for value in values for flat in value]


def _note(step: int, control: Control, mine: Contribution) -> Note:
    extra = b""
    if mine.contexts or mine.buffers:
        extra = replace(mine, nodes={}, used=b"", losses={}).to_bytes()
    return Note(step, control, mine.used, mine.losses, extra)


def _begin(slot: int, flat: Tensor, size: int) -> int:
    """Where the part of a slot begins in a flat gradient; `slot == size` gives its end."""
    end = flat.numel()
    return end if slot == size else end * slot // size // ALIGNMENT * ALIGNMENT
