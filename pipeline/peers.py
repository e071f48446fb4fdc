"""The lane between peers: partials go straight from one runner's memory to another's.

Part i of every flat gradient belongs to slot i: it gets that part of everybody's nodes, finishes the canonical tree on
it and sends the result to all. So a member of W with one node sends twice (W-1)/W of a gradient, as a ring would. Small
gradients go whole, in one message to each peer, and everybody finishes the tree: what counts then is how often members
wait for each other. Control records, losses, contexts and buffers go along, so each member can carry on alone.

Steps are exchanged by the thread that trains, which has nothing better to do and need not be woken up by another one.
It waits for as long as it takes; `interrupt` calls it away from a peer that has stopped. Meeting and states are left to
a helper thread. A connection that breaks names its peer at once.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
import torch

from ..errors import CorruptError, LaneBrokenError
from . import parcels
from .contribution import Contribution
from .links import GOODBYE, Links, OutOfPatience, PeerLost
from .nccl import Nccl, all_distinct
from .parcels import Damaged, Frames, room
from .reduction import fold, nodes_of
from .rendezvous import MEET_SECONDS, Meeting
from .session import Control  # noqa: TC001 - msgspec reads the type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from .messages import Run
    from .protocols import Parcel
    from .reduction import Node, Value

log = structlog.get_logger()

POLL_SECONDS = 0.02
"""How long a call waits for an answer; messages from the agent are looked at in between."""

GATHER_SECONDS = 0.05
"""From the first broken connection to the verdict: those who die together are named together."""

ALIGNMENT = 16
"""Elements. Parts begin at multiples of it, for the sake of vector instructions."""

WAITING_SECONDS = 0.05
"""A wait that is longer is told of, within twice the time: it is none of the job's code."""

SMALL = 1 << 20
"""Bytes of partials that are sent whole to every peer."""

NOTE, ROUND, PARTIALS, FINISHED, STATE = range(GOODBYE + 1, GOODBYE + 6)
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
        patience: seconds for a part of a step; after that the lane breaks without naming anybody.
        on_wait: told of a wait that takes long; from another thread, but not once `poll` has returned.
    """

    kind = "peer"
    waits = True

    def __init__(
        self,
        job: str,
        run: Run,
        ests: int,
        host: str,
        device: str,
        patience: float,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._ests, self._host, self._device = run, ests, host, torch.device(device)
        self._patience, self._on_wait = patience, on_wait
        self._since: float | None = None
        self._telling = threading.Lock()
        self._interrupted = self._ran_out = False
        self._whole: bool | None = None
        self._pending: Callable[[], list[tuple[Control, Any]]] | None = None
        self._memory: dict[int, dict[Node, Value]] = {}
        self._notes: Frames | None = None
        self._rounds: Frames | None = None
        self._asked: dict[str, float] = {}
        self._step = -1
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
        """See `protocols.Lane`."""
        return self._ran_out

    def meet(self) -> bool:
        """See `protocols.Lane`."""
        self._asked.setdefault("meet", time.monotonic())
        if self._listen("meet") is not None:
            return True
        if time.monotonic() - self._asked["meet"] > 3 * MEET_SECONDS:  # who is stopped answers nothing at all
            missing = self._meeting.missing
            raise LaneBrokenError(missing, f"slots {list(missing)} were not met")
        return False

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """See `protocols.Lane`."""

        def give(links: Links) -> bool:
            parcels.give(links, STATE, slots, parcel)
            return True

        self._ask("give", give)
        return self._listen("give") is not None

    def take(self, slot: int) -> Parcel | None:
        """See `protocols.Lane`."""
        self._ask("take", lambda links: parcels.take(links, STATE, slot))
        taken: Parcel | None = self._listen("take")
        return taken

    def send(self, step: int, control: Control, contribution: Contribution | None) -> None:
        """See `protocols.Lane`. The contribution's memory is used until `poll` has answered, or `close` returned."""
        links, self._step = self._links, step
        assert links is not None, "members meet before they send"
        try:
            self._pending = self._begin(links, step, control, contribution)
        except PeerLost as lost:
            self._pending = partial(_raise, lost)

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """See `protocols.Lane`. Waits for as long as it takes, or until `interrupt`.

        The first part has the finished root, in the memory of the contribution sent.
        """
        assert step == self._step
        if self._interrupted:
            return None  # whoever did it has said why
        assert self._pending is not None
        self._since = time.monotonic()
        try:
            return self._pending()
        except OutOfPatience as silence:
            self._ran_out = True
            raise LaneBrokenError((), str(silence)) from silence
        except Damaged as damage:
            raise LaneBrokenError((damage.slot,), str(damage)) from damage
        except PeerLost as lost:
            if self._interrupted:
                return None
            self._take_in(_Answer("lost", (lost.slot, str(lost))))
            while True:  # until all who are lost are known
                self._listen("verdict")
        finally:
            with self._telling:
                self._since = None

    def interrupt(self) -> None:
        """End `poll` and let it answer None: what it waits for will not come, or is not wanted. From any thread."""
        self._interrupted = True
        if self._links is not None:
            self._links.cut()
            if self._nccl is not None:
                self._nccl.abort()

    def part(self) -> None:
        """See `protocols.Lane`."""
        if self._links is not None and not self._lost:
            self._links.part()

    def close(self, *, finished: bool = True) -> None:  # noqa: ARG002 - nothing of mine lies anywhere
        """See `protocols.Lane`."""
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
        try:
            links = self._connect()
            if links is None:
                return
            self._answers.put(_Answer("meet", True))
            while (asked := self._next()) is not None:
                question, do = asked
                self._answers.put(_Answer(question, do(links)))
        except PeerLost as lost:
            self._answers.put(_Answer("lost", (lost.slot, str(lost))))
        except Damaged as damage:
            self._answers.put(_Answer("failed", LaneBrokenError((damage.slot,), str(damage))))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the member must hear of it
            self._answers.put(_Answer("failed", error))

    def _next(self) -> tuple[str, Callable[[Links], Any]] | None:
        """The next thing to do. Until it comes, long waits of the thread that trains are told of."""
        told = None
        while True:
            with suppress(queue.Empty):
                return self._questions.get(timeout=WAITING_SECONDS)
            with self._telling:
                since = self._since
                if since is not None and since != told and time.monotonic() - since >= WAITING_SECONDS:
                    told = since
                    self._on_wait()

    def _connect(self) -> Links | None:
        group, store = self._meeting.connect()
        links = Links(
            group,
            self._run.slot,
            len(self._run.members),
            lambda slot, why: self._answers.put(_Answer("lost", (slot, why))),
            timedelta(seconds=self._patience),
        )
        with self._closing:
            if not self._closed:
                if all_distinct(self._run.gpus):
                    self._nccl = Nccl(store, self._run.slot, len(self._run.members), self._device)
                self._links = links
                return links
        links.close()
        return None

    def _begin(
        self, links: Links, step: int, control: Control, contribution: Contribution | None
    ) -> Callable[[], list[tuple[Control, Any]]]:
        """Send what I have to everybody; what is returned waits for theirs."""
        if contribution is None:
            nothing = Contribution(step, {}, b"")
            self._rounds = self._rounds or Frames(links, ROUND)
            self._rounds.expect(links.peers)
            self._rounds.send(links.peers, _encoder.encode(_note(step, control, nothing)))
            return lambda: self._confer(links, step, control, nothing)
        mine = self._staged(contribution)
        note = _encoder.encode(_note(step, control, mine))
        if self._whole is None:  # of the first step; all of a generation are alike
            self._prepare(links, _root(mine))
        assert self._notes is not None
        self._notes.expect(links.peers)
        if self._whole:
            self._notes.send(links.peers, note, _all(mine.nodes.values()))
            return lambda: self._finish_whole(links, step, control, mine)
        bulk, root = self._nccl or links, _root(mine)
        # Finished parts may come to memory that is still being sent: nobody finishes one without having all of it.
        bulk.expect(FINISHED, {peer: self._part(root, peer) for peer in links.peers})
        partials = {peer: _all(self._part(value, peer) for value in mine.nodes.values()) for peer in links.peers}
        moved = bulk.move(PARTIALS, partials)
        self._notes.send(links.peers, note)
        return lambda: self._finish_parts(links, step, control, mine, moved)

    def _prepare(self, links: Links, root: Value) -> None:
        """Memory for what peers send in each step, and what that is: the same answer for all members."""
        members = self._run.members
        counts = [len(nodes_of(member.first, member.last, self._ests)) for member in members]
        size = sum(map(room, root))
        self._whole = not self._nccl and size * (len(members) - 1) * max(counts) <= SMALL
        cargo = {peer: counts[peer] * size for peer in links.peers} if self._whole else {}
        self._notes = Frames(links, NOTE, cargo)
        if not self._whole:
            self._expect_partials(self._nccl or links, root)

    def _confer(self, links: Links, step: int, control: Control, nothing: Contribution) -> list[tuple[Control, Any]]:
        """What everybody has said between two steps."""
        assert self._rounds is not None
        said = {peer: self._checked(self._rounds.receive(peer), peer, step, nothing)[0] for peer in links.peers}
        self._rounds.settle()
        said[links.slot] = control
        return [(said[slot], None) for slot in sorted(said)]

    def _finish_whole(self, links: Links, step: int, control: Control, mine: Contribution) -> list[tuple[Control, Any]]:
        """The root from everybody's partials."""
        assert self._notes is not None
        parts = {peer: self._checked(self._notes.receive(peer), peer, step, mine) for peer in links.peers}
        self._notes.settle()
        nodes, root = dict(mine.nodes), _root(mine)
        for peer in links.peers:
            member, cargo, at = self._run.members[peer], self._notes.cargo(peer), 0
            for node in nodes_of(member.first, member.last, self._ests):
                nodes[node] = []
                for flat in root:
                    nodes[node].append(cargo[at : at + flat.nbytes].view(flat.dtype))
                    at += room(flat)
        fold(nodes, self._ests, root)
        self._notes.expect(links.peers)  # of the next step: who comes first need not ask
        return self._gathered(parts, control, mine)

    def _finish_parts(
        self, links: Links, step: int, control: Control, mine: Contribution, moved: Callable[[], None]
    ) -> list[tuple[Control, Any]]:
        """My part of the root from what came, and everybody's part of it."""
        assert self._notes is not None
        parts = {peer: self._checked(self._notes.receive(peer), peer, step, mine) for peer in links.peers}
        self._notes.settle()
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
        return self._gathered(parts, control, mine)

    def _gathered(
        self, parts: dict[int, tuple[Control, Contribution]], control: Control, mine: Contribution
    ) -> list[tuple[Control, Any]]:
        """Everybody's parts in slot order; the first has the finished root."""
        parts[self._run.slot] = control, replace(mine, nodes={})
        first, contribution = parts[0]
        parts[0] = first, replace(contribution, nodes={(0, self._ests): _root(mine)})
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


def _raise(error: Exception) -> list[tuple[Control, Any]]:
    raise error


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
