"""Peers on one machine: what is offered stays as it was for who reads it late, and small messages lose nothing."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import LaneBrokenError
from easyscale.pipeline import shared
from easyscale.pipeline.links import OutOfPatience, PeerLost
from easyscale.pipeline.parcels import Damaged
from easyscale.pipeline.session import Control
from easyscale.pipeline.shared import Shared, SharedFrames
from easyscale.pipeline.wires import LONGEST, Door, Wires, knock

from tests import toys
from tests.unit.test_peers import PATIENCE, Crowd, part, until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from easyscale.pipeline.contribution import Contribution
    from torch import Tensor

NOTES = 7


def pair(patience: float = PATIENCE) -> tuple[Wires, Wires]:
    """Of slots 0 and 1."""
    door = Door()
    mine = knock(door.address, 0)
    theirs = door.accept(1)
    door.close()
    return Wires({1: mine}, patience), Wires(theirs, patience)


# ---- wires


def test_messages_of_a_tag_arrive_in_order_whatever_else_comes_between() -> None:
    a, b = pair()
    for number in range(3):
        a.send(1, 5, bytes([number]))
        a.send(1, 6, b"-" * number)
    a.send(1, 5, b"x" * LONGEST)
    assert [b.receive(0, 6) for _ in range(3)] == [b"", b"-", b"--"]
    assert [b.receive(0, 5) for _ in range(3)] == [b"\0", b"\1", b"\2"]
    assert len(b.receive(0, 5)) == LONGEST


def test_both_ends_may_send_before_either_reads() -> None:
    a, b = pair(1.0)
    for _ in range(8):  # more than a step has
        a.send(1, 5, b"x" * LONGEST)
        b.send(0, 5, b"x" * LONGEST)


def test_what_was_sent_before_the_end_arrives_although_something_is_left_unread() -> None:
    a, b = pair()
    b.send(0, 5, b"never read")
    a.send(1, 5, b"the last word")
    a.close()
    assert b.receive(0, 5) == b"the last word"
    with pytest.raises(PeerLost) as lost:
        b.receive(0, 5)
    assert lost.value.slot == 0
    with pytest.raises(PeerLost):
        b.send(0, 5, b"too late")


def test_a_wait_is_ended_by_cutting_or_when_patience_runs_out() -> None:
    a, b = pair()
    threading.Timer(0.1, b.cut).start()
    with pytest.raises(PeerLost):
        b.receive(0, 5)
    with pytest.raises(PeerLost):
        a.receive(1, 5)
    c, d = pair(0.05)
    with pytest.raises(OutOfPatience, match="slot 0 sent nothing"):
        d.receive(0, 5)
    with pytest.raises(OutOfPatience, match="slot 1 took nothing"):
        [c.send(1, 5, b"x" * LONGEST) for _ in range(1000)]


def test_nobody_comes_to_a_door_that_is_not_there() -> None:
    door = Door()
    door.close()
    with pytest.raises(ConnectionRefusedError):
        knock(door.address, 0)


# ---- frames


@pytest.mark.parametrize("length", [0, 1, LONGEST - 36, LONGEST - 35, 300_000])
def test_texts_of_any_length_come_with_their_tensors(length: int) -> None:
    a, b = pair()
    mine, theirs = Shared({1: os.getpid()}, a), Shared({0: os.getpid()}, b)
    out, into = SharedFrames(mine, NOTES, {}), SharedFrames(theirs, NOTES, {0: 64 + 128})
    for number in range(4):
        text = bytes([number]) * length
        out.send([1], text, [torch.tensor([number, 2.0]), torch.arange(20.0)])
        assert into.receive(0) == text
        assert into.cargo(0)[:8].view(torch.float32).tolist() == [number, 2.0]
        assert into.cargo(0)[64:144].view(torch.float32).tolist() == [*range(20)]
    assert mine.sent > 4 * (length + 192)


def test_pages_that_grow_are_not_taken_for_those_that_they_replace() -> None:
    a, b = pair()
    out = SharedFrames(Shared({1: os.getpid()}, a), NOTES)
    into = SharedFrames(Shared({0: os.getpid()}, b), NOTES)
    for number in range(40):
        text = bytes([number]) * (LONGEST + 100 * (number % 7))
        out.send([1], text)
        assert into.receive(0) == text


def test_a_text_stays_until_the_call_after_next() -> None:
    a, b = pair()
    out = SharedFrames(Shared({1: os.getpid()}, a), NOTES)
    into = SharedFrames(Shared({0: os.getpid()}, b), NOTES)
    first, second = b"1" * (2 * LONGEST), b"2" * (2 * LONGEST)
    out.send([1], first)
    out.send([1], second)
    assert into.receive(0) == first, "a slow reader of the last one is not overtaken by the next"
    assert into.receive(0) == second


def test_places_that_cannot_be_are_the_senders_fault() -> None:
    a, b = pair()
    mine, theirs = Shared({1: os.getpid()}, a), Shared({0: os.getpid()}, b)
    theirs.expect(3, {0: [torch.zeros(10)]})
    mine.move(3, {1: [torch.zeros(11)]})
    with pytest.raises(Damaged, match="offers 44 bytes"):
        theirs.move(3, {})()
    theirs.expect(3, {0: [torch.zeros(10)]})
    a.send(1, 3, b"\0")
    with pytest.raises(Damaged, match="something else than 1 tensors"):
        theirs.move(3, {})()
    theirs.expect(3, {0: [torch.zeros(10)]})
    a.send(1, 3, shared._PLACE.pack(999, 1, 0, 40))
    with pytest.raises(PeerLost, match="its memory cannot be read"):
        theirs.move(3, {})()


# ---- meeting


@pytest.fixture
def crowds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Crowd]]:
    """Whose gradients are all too large to go whole."""
    monkeypatch.setattr("easyscale.pipeline.exchange.SMALL", 0)
    made: list[Crowd] = []

    def make(*arguments: Any) -> Crowd:
        made.append(Crowd(*arguments))
        return made[-1]

    yield make
    for crowd in made:
        crowd.close()


def test_members_on_one_machine_share_their_memory(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1]).meet()
    assert all(lane._shared is not None for lane in crowd.lanes.values())


@pytest.mark.parametrize("what", ["machine", "memory", "door"])
def test_if_one_of_them_cannot_be_read_or_reached_nobody_shares(
    crowds: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another machine; the same with other users; the same with other networks."""
    turn = iter(range(100))
    if what == "machine":
        monkeypatch.setattr(shared, "_machine", lambda: "this" if next(turn) else "that")
    elif what == "memory":
        monkeypatch.setattr(shared, "_reads", lambda them: next(turn) > 0)
    else:

        def refused(address: str, slot: int) -> socket.socket:
            if next(turn) == 0:
                raise ConnectionRefusedError(111, "Connection refused")
            return knock(address, slot)

        monkeypatch.setattr(shared, "knock", refused)
    crowd = crowds([1, 1, 1]).meet()
    assert [lane._shared for lane in crowd.lanes.values()] == [None] * 3
    assert len(crowd.exchange(0, {slot: part(crowd, slot) for slot in crowd.lanes})) == 3


def test_a_machine_that_gives_no_more_sockets_breaks_the_lane_and_accuses_nobody(
    crowds: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Door:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(shared, "Door", refuse)
    crowd = crowds([1, 1])
    for lane in crowd.lanes.values():
        with pytest.raises(LaneBrokenError, match=r"could not meet: .* Too many open files") as broken:
            until(lane.meet)
        assert broken.value.lost == ()


# ---- what is offered


def flats(contribution: Contribution) -> list[Tensor]:
    """What is offered of it."""
    return [flat for value in contribution.nodes.values() for flat in value]


def computed(crowd: Crowd, replicas: list[Any]) -> dict[int, Contribution]:
    return {slot: replica.compute(crowd.ranges[slot]) for slot, replica in enumerate(replicas)}


def engines(sizes: list[int], **settings: Any) -> list[Any]:
    return [toys.engine(toys.cnn, toys.spec(ests=sum(sizes), **settings)) for _ in sizes]


def test_whoever_is_called_away_leaves_what_it_has_offered_as_it_was(crowds: Callable[..., Crowd]) -> None:
    """It goes on with other members while the one that it has left, stopped meanwhile, still reads."""
    crowd = crowds([1, 1]).meet()
    replicas = engines([1, 1])
    parts = computed(crowd, replicas)
    offered = flats(parts[0])
    before = [flat.clone() for flat in offered]
    crowd.lanes[0].send(0, Control(slot=0), parts[0])
    crowd.lanes[0].interrupt()
    assert crowd.lanes[0].poll(0) is None
    for _ in range(3):
        replicas[0].run_local()
    assert all(torch.equal(a, b) for a, b in zip(before, offered, strict=True))


def test_who_is_lost_when_all_is_read_costs_the_others_nothing(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1]).meet()
    replicas = engines([1, 1])
    parts = computed(crowd, replicas)
    offered = flats(parts[0])
    dying = crowd.lanes[1]._shared
    assert dying is not None

    def die() -> None:
        dying.wires.cut()
        raise PeerLost(0, "dead")

    dying.release = die  # type: ignore[method-assign]
    gathered = crowd.exchange(0, parts)[0]
    assert len(gathered) == 2
    replicas[0].apply([contribution for _, contribution in gathered])
    alone = toys.engine(toys.cnn, toys.spec(ests=2))
    alone.run_local()
    assert toys.digest(replicas[0]) == toys.digest(alone)
    before = [flat.clone() for flat in offered]
    replicas[0].run_local()
    assert all(torch.equal(a, b) for a, b in zip(before, offered, strict=True)), "it may still be reading"


def test_whoever_goes_on_without_a_peer_that_may_still_read_changes_nothing_there(crowds: Callable[..., Crowd]) -> None:
    """Clipping works in place, on what the lane has given."""
    crowd = crowds([1, 1]).meet()
    replicas = engines([1, 1], clip_norm=1e-3)
    parts = computed(crowd, replicas)
    offered = flats(parts[0])
    dying = crowd.lanes[1]._shared
    assert dying is not None
    dying.release = dying.wires.cut  # type: ignore[method-assign]
    gathered = crowd.exchange(0, parts)[0]
    before = [flat.clone() for flat in offered]
    replicas[0].apply([contribution for _, contribution in gathered])
    assert all(torch.equal(a, b) for a, b in zip(before, offered, strict=True))
    alone = engines([2], clip_norm=1e-3)[0]
    alone.run_local()
    assert toys.digest(replicas[0]) == toys.digest(alone)


def test_a_lane_that_is_closed_keeps_nothing_of_its_peers(crowds: Callable[..., Crowd]) -> None:
    """Without waiting for the garbage collector: a dead peer's gradients may be large."""

    def files() -> set[int]:
        """Inodes: what earlier tests have left may go meanwhile."""
        paths = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return {path.stat().st_ino for path in paths if "memfd:easyscale" in str(path.readlink())}

    gc.collect()
    gc.disable()
    try:
        crowd = crowds([1, 1])
        parts = computed(crowd, engines([1, 1]))
        before = files()
        crowd.meet().exchange(0, parts)
        assert files() - before
        crowd.close()
        assert not files() - before
    finally:
        gc.enable()


def test_memory_is_used_again_once_all_have_read_it(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 2, 1]).meet()
    replicas = engines([1, 2, 1])
    seen: set[int] = set()
    for step in range(4):
        parts = computed(crowd, replicas)
        seen |= {flat.data_ptr() for one in parts.values() for flat in flats(one)}
        for slot, gathered in crowd.exchange(step, parts).items():
            replicas[slot].apply([contribution for _, contribution in gathered])
    assert len(seen) == sum(len(flats(one)) for one in parts.values())
