"""How the members of a generation come to the mean of one step: what each sends, and what it makes of what it gets.

Part i of every flat gradient belongs to slot i: it gets that part of everybody's nodes, makes the mean of it and sends
that to all. So a member of W with one node sends twice (W-1)/W of a gradient, as a ring would. Small gradients go
whole, in one message to each peer, and everybody makes the mean: what counts then is how often members wait for each
other. Control records, losses, contexts and buffers go along, so each member can carry on alone.

Large gradients go by NCCL if every member has a GPU of its own, else through shared memory if all are on one machine,
else over gloo like everything else.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch

from ..errors import CorruptError
from . import segments
from .contribution import Contribution, Mean
from .links import GOODBYE
from .parcels import Damaged, Frames, room
from .reduction import mean, nodes_of
from .session import Control  # noqa: TC001 - msgspec reads the type
from .shared import SharedFrames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from .links import Links
    from .messages import Run
    from .nccl import Nccl
    from .reduction import Value
    from .shared import Shared

    Gathered = list[tuple[Control, Any]]

ALIGNMENT = 16
"""Elements. Parts begin at multiples of it, for the sake of vector instructions."""

SMALL = 1 << 20
"""Bytes of partials that are sent whole to every peer."""

NOTE, ROUND, PARTIALS, FINISHED, STATE, SHARED = range(GOODBYE + 1, GOODBYE + 7)
"""Tags of messages: see `links.py`. Messages of one tag arrive in the order they were sent."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a member sends besides gradients. `extra`: contexts and buffers as `Contribution.to_bytes`, if any."""

    step: int
    control: Control
    used: bytes
    losses: dict[int, float]
    extra: bytes


class _Bulk(Protocol):
    """What carries large gradients: `Links`, `Shared` or `Nccl`."""

    @property
    def sent(self) -> int: ...

    def expect(self, tag: int, receives: Mapping[int, Sequence[Tensor]]) -> None: ...

    def move(self, tag: int, sends: Mapping[int, Sequence[Tensor]]) -> Callable[[], Mapping[int, Sequence[Tensor]]]: ...

    def release(self) -> None: ...


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)


class Exchange:
    """One member's part in the exchanges of a generation.

    Args:
        run: which generation. ests: N.
        links: to the peers. shared, nccl: to the same, if they are there.
        device: where contributions lie.
    """

    def __init__(
        self, run: Run, ests: int, links: Links, shared: Shared | None, nccl: Nccl | None, device: torch.device
    ) -> None:
        self._run, self._ests, self._device = run, ests, device
        self._links, self._shared, self._nccl = links, shared, nccl
        self.bulk: _Bulk = nccl or shared or links
        """What carries large gradients."""
        self._whole: bool | None = None
        self._memory: dict[int, Value] = {}
        self._finite = torch.empty(0)
        self._notes: Frames | SharedFrames | None = None
        self._rounds: Frames | SharedFrames | None = None

    def begin(self, step: int, control: Control, contribution: Contribution | None) -> Callable[[], Gathered]:
        """Send what I have to everybody; what is returned waits for theirs: see `protocols.Lane.poll`.

        Raises:
            PeerLost, OutOfPatience: it does not go. What is returned raises these, too, and Damaged.
        """
        if contribution is None:
            nothing = Contribution(step, {}, b"")
            self._rounds = self._rounds or self.frames(ROUND)
            self._rounds.expect(self._links.peers)
            self._rounds.send(self._links.peers, _encoder.encode(_note(step, control, nothing)))
            return lambda: self._confer(step, control, nothing)
        mine = self._staged(contribution)
        note = _encoder.encode(_note(step, control, mine))
        if self._whole is None:  # of the first step; all of a generation are alike
            self._prepare(_root(mine))
        assert self._notes is not None
        self._notes.expect(self._links.peers)
        if self._whole:
            self._notes.send(self._links.peers, note, _all(mine.nodes.values()))
            return lambda: self._finish_whole(step, control, mine)
        bulk, root = self.bulk, _root(mine)
        # Finished parts may come to memory that is still being sent: nobody finishes one without having all of it.
        bulk.expect(FINISHED, {peer: [*self.part(root, peer), self._finite[peer]] for peer in self._links.peers})
        partials = {peer: _all(self.part(value, peer) for value in mine.nodes.values()) for peer in self._links.peers}
        moved = bulk.move(PARTIALS, partials)
        self._notes.send(self._links.peers, note)
        return lambda: self._finish_parts(step, control, mine, moved)

    def frames(self, tag: int, cargo: Mapping[int, int] | None = None) -> Frames | SharedFrames:
        """For texts of a tag to and from the peers."""
        return SharedFrames(self._shared, tag, cargo) if self._shared else Frames(self._links, tag, cargo)

    def _staged(self, mine: Contribution) -> Contribution:
        """With gradients where the lane can send them from."""
        if self._nccl is not None:
            self._nccl.stage()
            return mine
        if self._device.type == "cpu":
            return mine
        return replace(mine, nodes={node: [flat.cpu() for flat in value] for node, value in mine.nodes.items()})

    def _prepare(self, root: Value) -> None:
        """Memory for what peers send in each step, and what that is: the same answer for all members."""
        members = self._run.members
        counts = [len(nodes_of(member.first, member.last, self._ests)) for member in members]
        size = sum(map(room, root))
        self._whole = not self._nccl and size * (len(members) - 1) * max(counts) <= SMALL
        self._finite = segments.zeros(len(members), torch.uint8).to(root[0].device).unsqueeze(1)
        cargo = {peer: counts[peer] * size for peer in self._links.peers} if self._whole else {}
        self._notes = self.frames(NOTE, cargo)
        if not self._whole:
            self._expect_partials(root)

    def _confer(self, step: int, control: Control, nothing: Contribution) -> Gathered:
        """What everybody has said between two steps."""
        assert self._rounds is not None
        said = {peer: self._checked(self._rounds.receive(peer), peer, step, nothing)[0] for peer in self._links.peers}
        self._rounds.settle()
        said[self._links.slot] = control
        return [(said[slot], None) for slot in sorted(said)]

    def _finish_whole(self, step: int, control: Control, mine: Contribution) -> Gathered:
        """The mean from everybody's partials."""
        assert self._notes is not None
        parts = {peer: self._checked(self._notes.receive(peer), peer, step, mine) for peer in self._links.peers}
        self._notes.settle()
        nodes, result = dict(mine.nodes), _root(mine)
        for peer in self._links.peers:
            member, cargo, at = self._run.members[peer], self._notes.cargo(peer), 0
            for node in nodes_of(member.first, member.last, self._ests):
                nodes[node] = []
                for flat in result:
                    nodes[node].append(cargo[at : at + flat.nbytes].view(flat.dtype))
                    at += room(flat)
        made = Mean(result, mean(nodes, self._ests, result))
        self._notes.expect(self._links.peers)  # of the next step: who comes first need not ask
        return self._gathered(parts, control, mine, made)

    def _finish_parts(
        self,
        step: int,
        control: Control,
        mine: Contribution,
        moved: Callable[[], Mapping[int, Sequence[Tensor]]],
    ) -> Gathered:
        """My part of the mean from what came, and everybody's part of it."""
        assert self._notes is not None
        parts = {peer: self._checked(self._notes.receive(peer), peer, step, mine) for peer in self._links.peers}
        self._notes.settle()
        came, bulk, root = moved(), self.bulk, _root(mine)
        result = self.part(root, self._links.slot)
        nodes = {node: self.part(value, self._links.slot) for node, value in mine.nodes.items()}
        for peer in self._links.peers:
            member = self._run.members[peer]
            for number, node in enumerate(nodes_of(member.first, member.last, self._ests)):
                nodes[node] = [*came[peer][number * len(root) : (number + 1) * len(root)]]
        with self._nccl.computing() if self._nccl else nullcontext():
            self._finite[self._links.slot] = mean(nodes, self._ests, result)
        finished = [*result, self._finite[self._links.slot]]
        moved = bulk.move(FINISHED, dict.fromkeys(self._links.peers, finished))
        self._expect_partials(root)  # of the next step: who comes first need not ask
        for peer, parts_of_it in moved().items():
            for here, there in zip([*self.part(root, peer), self._finite[peer]], parts_of_it, strict=True):
                if here.data_ptr() != there.data_ptr():
                    here.copy_(there)
        bulk.release()
        return self._gathered(parts, control, mine, Mean(root, bool(self._finite.all())))

    def _gathered(
        self, parts: dict[int, tuple[Control, Contribution]], control: Control, mine: Contribution, made: Mean
    ) -> Gathered:
        """Everybody's parts in slot order; the first has everybody's mean."""
        parts[self._run.slot] = control, replace(mine, nodes={})
        first, contribution = parts[0]
        parts[0] = first, replace(contribution, mean=made)
        return [parts[slot] for slot in sorted(parts)]

    def _expect_partials(self, like: Value) -> None:
        """Be ready for my part of the others' nodes."""
        if not self._memory:
            part = self.part(like, self._run.slot)
            for slot, member in enumerate(self._run.members):
                if slot != self._run.slot:
                    count = len(nodes_of(member.first, member.last, self._ests))
                    self._memory[slot] = [torch.empty_like(flat) for _ in range(count) for flat in part]
        self.bulk.expect(PARTIALS, self._memory)

    def part(self, value: Value, slot: int) -> Value:
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
    """Where the mean will be: in memory of the member's own first node."""
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
