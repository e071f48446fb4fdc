"""The lane between peers as it is played: connections that carry messages in order, break when an end dies, and tell
nobody when an end is stopped. It fails as `pipeline/peers.py` does: a break is known to exactly the two at its ends."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from easyscale.errors import LaneBrokenError
from easyscale.pipeline.protocols import Parcel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from easyscale.pipeline import messages

    from .actors import RunnerProcess
    from .training import Part
    from .world import World

MEET_SECONDS = 10.0
GATHER_SECONDS = 0.05
LINGER_SECONDS = 1.0

Turn = tuple[int, int]
"""Step and round: what an exchange is about."""

Group = dict[int, "PeerLane"]
"""Who has come to a meeting, by slot."""


class PeerLane:
    """One member's end, from its meeting to the next generation's.

    Args:
        runner: whose. run: which generation.
        patience: seconds in which something must come.
    """

    kind = "peer"
    waits = False
    sent = 0

    def __init__(self, runner: RunnerProcess, run: messages.Run, patience: float) -> None:
        self.world: World = runner.world
        self.runner, self.run, self.slot = runner, run, run.slot
        self.group: Group = self.world.groups.setdefault((runner.job, run.generation), {})
        self.others = [slot for slot in range(len(run.members)) if slot != run.slot]
        self.phase, self._turn = "meeting", (-1, 0)
        self.finished = -1
        """The newest step of which everything has come."""
        self.broken: dict[int, str] = {}
        self.ran_out = False
        self._patience, self._since = patience, -1.0
        self._verdict_at = float("inf")
        self._parted, self._closed = False, False
        self._goodbyes: set[int] = set()
        self._last: dict[int, float] = {}
        self._parts: dict[int, tuple[Any, Any]] = {}
        self._early: list[tuple[Turn, int, Any]] = []
        self._shards: dict[int, list[tuple[int, int]]] = {}
        self._giving: set[int] | None = None
        self._parcels: dict[int, Parcel] = {}

    # ---- protocols.Lane

    def meet(self) -> bool:
        now = self.world.hub.now
        if self._since < 0:
            self._since = now
        leader = next((r for r in self.world.runners if address(r) == self.run.addresses[0]), None)
        if leader is None or not leader.process.alive:
            raise LaneBrokenError((0,), "slot 0 is not met")
        if self.slot not in self.group:
            self.group[self.slot] = self
            self.runner.process.on_death.append(self._died)
            self._happens("meets")
        missing = tuple(s for s in self.others if s not in self.group or not self.group[s]._here)
        if missing and now - self._since > MEET_SECONDS:
            raise LaneBrokenError(missing, f"slots {missing} were not met")
        if not missing and self.phase == "meeting":
            if self.world.chance_of_loss(self.world.meeting_fails, "a meeting fails for one"):
                raise LaneBrokenError(self.world.rng.choice([(), tuple(self.others[:1])]), "could not connect")
            self.phase = "met"
            self._happens("has met")
        return not missing

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        if self._giving is None:
            self._giving = set(slots)
            for slot in slots:
                seconds = self.world.rng.uniform(0.02, 0.6)
                self.world.hub.at(self.world.hub.now + seconds, self._hand, slot, parcel)
            self._happens("gives")
        self._listen(not self._giving)
        return not self._giving

    def take(self, slot: int) -> Parcel | None:
        self.phase = "taking"
        parcel = self._parcels.pop(slot, None)
        self._listen(parcel is not None)
        return parcel

    def send(self, step: int, control: Any, contribution: Part | None) -> None:
        turn = step, control.round
        self.phase, self._turn, self._since = "exchanging", turn, self.world.hub.now
        self._parts, self._shards = {}, {}
        for slot in self.others:
            self._carry(slot, lambda other: other._receive(turn, self.slot, (control, contribution)))
        self._receive(turn, self.slot, (control, contribution))
        early, self._early = self._early, []
        for message in early:
            self._receive(*message)
        self._happens("has sent its part")

    def poll(self, step: int) -> list[tuple[Any, Any]] | None:
        size = len(self.run.members)
        between = self._turn[1] > 0
        whole = len(self._parts) == size and (between or len(self._shards) == size)
        if not whole:
            self._listen(False)
            if self.world.hub.now - self._since > self._patience:
                self.ran_out = True
                raise LaneBrokenError((), f"nothing has come from peers for {self._patience:g} s")
            return None
        if between:
            return [self._parts[slot] for slot in range(size)]
        self.finished = step
        self._happens("has everything of a step")
        root = tuple(sorted(pair for shard in self._shards.values() for pair in shard))
        return [
            (control, replace(part, values=root if slot == 0 else ()))
            for slot, (control, part) in sorted(self._parts.items())
        ]

    def interrupt(self) -> None:
        """Nothing waits here."""

    def part(self) -> None:
        """All that I need has come: my end is no break."""
        if not self.broken:
            self._parted = True
            for slot in self.others:
                self._carry(slot, lambda other: other._goodbyes.add(self.slot))

    def close(self, *, finished: bool) -> None:
        """Let go of the others, who have a second to take what was sent."""
        del finished
        hub = self.world.hub
        end = hub.now + LINGER_SECONDS
        while self._parted and hub.now < end and not all(s in self._goodbyes or s in self.broken for s in self.others):
            hub.sleep(0.02)
        self._closed = True
        self._hang_up()

    # ---- behind it

    @property
    def open(self) -> bool:
        """Whether its member lives and takes part."""
        return self._here and not self._parted

    @property
    def _here(self) -> bool:
        return self.runner.process.alive and not self._closed

    def _happens(self, what: str) -> None:
        self.world.at_lane(self, what)
        if not self.runner.process.alive:
            self.world.hub.sleep(0.0)  # it has just been killed

    def _listen(self, answered: bool) -> None:
        if not answered and self.world.hub.now >= self._verdict_at:
            raise LaneBrokenError(tuple(sorted(self.broken)), f"the connection broke to {sorted(self.broken)}")

    def _carry(self, slot: int, call: Callable[[PeerLane], None]) -> None:
        """A message on its way; what was sent arrives although its sender dies."""
        now = self.world.hub.now
        self._last[slot] = max(self._last.get(slot, 0.0) + 1e-6, now + self.world.rng.uniform(0.0005, 0.01))
        self.world.hub.at(self._last[slot], self._arrive, slot, call)

    def _arrive(self, slot: int, call: Callable[[PeerLane], None]) -> None:
        other = self.group.get(slot)
        if other is None or not other._here or slot in self.broken or self.slot in other.broken:
            return
        if other.runner.process.stopped_until > self.world.hub.now:
            self.world.hub.at(other.runner.process.stopped_until, self._arrive, slot, call)
        else:
            call(other)

    def _receive(self, turn: Turn, slot: int, part: tuple[Any, Any]) -> None:
        """A member's part; with the last one my share of the root is finished, and goes to everybody."""
        if turn != self._turn:
            self._early.append((turn, slot, part))
            return
        self._parts[slot] = part
        size = len(self.run.members)
        if len(self._parts) == size and not turn[1]:
            pairs = [pair for _, contribution in self._parts.values() for pair in contribution.values]
            shard = [(est, value) for est, value in pairs if est % size == self.slot]
            self._shards[self.slot] = shard
            for other in self.others:
                self.world.hub.at(
                    self.world.hub.now + self.world.rng.uniform(0.0, 0.02), self._finish, turn, other, shard
                )

    def _finish(self, turn: Turn, slot: int, shard: list[tuple[int, int]]) -> None:
        process = self.runner.process
        if not self._here:
            return  # it died, or turned away, when only some had got it
        if process.stopped_until > self.world.hub.now:
            self.world.hub.at(process.stopped_until, self._finish, turn, slot, shard)
            return
        self._carry(slot, lambda other: other._finished(turn, self.slot, shard))

    def _finished(self, turn: Turn, slot: int, shard: list[tuple[int, int]]) -> None:
        if turn == self._turn:
            self._shards[slot] = shard

    def _hand(self, slot: int, parcel: Parcel) -> None:
        """The last bytes of a state leave, straight from the giver's memory."""
        if not self._here or self._giving is None:
            return
        if self.runner.process.stopped_until > self.world.hub.now:
            self.world.hub.at(self.runner.process.stopped_until, self._hand, slot, parcel)
            return
        taken = Parcel(copy.deepcopy(parcel.state), dict(parcel.history))
        self._carry(slot, lambda other: other._parcels.__setitem__(self.slot, taken))
        self._giving.discard(slot)

    def _died(self) -> None:
        for kind in self._circumstances():
            self.world.fault(kind, self.runner.name)
        self._hang_up()

    def _circumstances(self) -> list[str]:
        """What is worth counting of a member's death while its exchange was open."""
        if self._closed or self._parted:
            return []
        world, all_here = self.world, [self, *(self.group[s] for s in self.others if s in self.group)]
        kinds = {
            "loss of the leader, with EST 0": self.slot == 0,
            "loss of a member that is not the leader": self.slot != 0,
            "loss while peers meet": self.phase == "meeting",
            "loss while a state is given": any(lane.phase == "taking" or lane._giving for lane in all_here),
            "loss during a commit": any(lane.runner.committing for lane in all_here),
            "loss after only some had everything of a step": len({lane.finished for lane in all_here}) > 1,
            "loss of two at once": world.hub.now - world.lost_at.get(self.run.generation, -1.0) < GATHER_SECONDS,
        }
        world.lost_at[self.run.generation] = world.hub.now
        return [kind for kind, holds in kinds.items() if holds]

    def _hang_up(self) -> None:
        for slot in self.others:
            if slot in self.group:
                # What was sent comes first.
                at = max(self._last.get(slot, 0.0), self.world.hub.now) + self.world.rng.uniform(0.0005, 0.005)
                self.world.hub.at(at, self.group[slot].lose, self.slot)

    def lose(self, slot: int) -> None:
        """The connection to a peer is broken, and this end learns of it."""
        if self._closed or slot in self._goodbyes or not self.runner.process.alive:
            return
        if self.runner.process.stopped_until > self.world.hub.now:
            self.world.hub.at(self.runner.process.stopped_until, self.lose, slot)
            return
        self.broken.setdefault(slot, "closed")
        self._verdict_at = min(self._verdict_at, self.world.hub.now + GATHER_SECONDS)


def address(runner: RunnerProcess) -> str:
    """Where a runner is met."""
    return f"{runner.name}:1"


def reached(world: World, where: str) -> bool:
    """Whether somebody listens there, for somebody who tries to connect. Some networks are not whole."""
    there = any(address(runner) == where and runner.process.alive for runner in world.runners)
    return there and not (world.lanes == "mixed" and world.rng.random() < 0.1)
