"""Peers exchange what a lone worker would have in one place; whoever is lost is named; nobody is held up by it."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from easyscale.coordinator.records import Member
from easyscale.errors import LaneBrokenError
from easyscale.pipeline import exchange, messages, rendezvous
from easyscale.pipeline.contribution import Contribution
from easyscale.pipeline.exchange import NOTE, PARTIALS, Note
from easyscale.pipeline.nccl import all_distinct
from easyscale.pipeline.parcels import Frames
from easyscale.pipeline.peers import PeerLane
from easyscale.pipeline.protocols import Parcel
from easyscale.pipeline.reduction import finish, nodes_of
from easyscale.pipeline.rendezvous import Rendezvous
from easyscale.pipeline.session import Control
from easyscale.pipeline.shared import Shared

from tests import toys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
PATIENCE = 30.0


def until(call: Callable[[], Any]) -> Any:
    """Call until the answer is something."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := call()):
        assert time.monotonic() < deadline
    return answer


class Crowd:
    """The lanes of a generation's members, all in this process."""

    def __init__(self, sizes: list[int], present: list[int] | None = None) -> None:
        self.place, self.patience, self.flat = Rendezvous(HOST), 3600.0, (1003, 77)
        ranges = toys.ranges(sizes)
        members = tuple(Member(f"w{i}", part.start, part.stop) for i, part in enumerate(ranges))
        self.ests, self.ranges = sum(sizes), ranges
        self.runs = [
            messages.Run(
                generation=3,
                members=members,
                slot=slot,
                step=0,
                base=messages.Base(),
                lane="peer",
                addresses=(self.place.address,) * len(sizes),
                gpus=("",) * len(sizes),
            )
            for slot in range(len(sizes))
        ]
        self.lanes = {slot: self.lane(slot) for slot in (range(len(sizes)) if present is None else present)}

    def lane(self, slot: int) -> PeerLane:
        return PeerLane("job", self.runs[slot], self.ests, HOST, "cpu", self.patience)

    def meet(self) -> Crowd:
        for lane in self.lanes.values():
            until(lane.meet)
        return self

    def exchange(self, step: int, parts: dict[int, Contribution]) -> dict[int, list[tuple[Control, Contribution]]]:
        for slot, part in parts.items():
            self.lanes[slot].send(step, Control(slot=slot), part)
        return self.poll(step, *parts)

    def poll(self, step: int, *slots: int) -> dict[int, Any]:
        """What each of these gets, or the error that it meets: each waits in a thread of its own."""

        def poll(slot: int) -> Any:
            try:
                return self.lanes[slot].poll(step)
            except LaneBrokenError as error:
                return error

        with ThreadPoolExecutor(len(slots)) as threads:
            return dict(zip(slots, threads.map(poll, slots), strict=True))

    def lost(self, step: int, *slots: int) -> list[tuple[int, ...]]:
        """Whom each of these says it has lost."""
        return [found.lost for found in self.poll(step, *slots).values()]

    def kill(self, slot: int) -> None:
        """As if its process had died: all its connections end at once."""
        self.lanes.pop(slot).close()

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()


@pytest.fixture(params=["whole", "parts", "shared whole", "shared parts"])
def crowds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Crowd]]:
    """Whose gradients count as small or do not, and are sent or read where they are."""
    if request.param.endswith("parts"):
        monkeypatch.setattr(exchange, "SMALL", 0)
    if not request.param.startswith("shared"):
        monkeypatch.setattr(Shared, "meet", lambda links, tag, patience: None)
    made: list[Crowd] = []

    def make(*arguments: Any, **settings: Any) -> Crowd:
        made.append(Crowd(*arguments, **settings))
        return made[-1]

    yield make
    for crowd in made:
        crowd.close()


@pytest.mark.parametrize(
    ("build", "sizes", "settings"),
    [
        (toys.cnn, [2, 2], {}),
        (toys.cnn, [1, 3], {"buffers": "per_est"}),
        (toys.transformer, [1, 1, 1, 1], {}),
        (toys.transformer, [3, 1, 2], {"clip_norm": 0.5}),
        (toys.linear, [1, 1, 3, 1, 1], {"ema": 0.9}),
    ],
)
def test_the_bits_are_those_of_one_worker(
    crowds: Callable[..., Crowd], build: Any, sizes: list[int], settings: dict[str, Any]
) -> None:
    job = toys.spec(ests=sum(sizes), **settings)
    alone = toys.engine(build, job)
    for _ in range(7):  # past the end of an epoch
        alone.run_local()
    crowd = crowds(sizes).meet()
    replicas = [toys.engine(build, job) for _ in sizes]
    for step in range(7):
        parts = {slot: replica.compute(crowd.ranges[slot]) for slot, replica in enumerate(replicas)}
        for slot, gathered in crowd.exchange(step, parts).items():
            assert [control.slot for control, _ in gathered] == [*range(len(sizes))]
            replicas[slot].apply([part for _, part in gathered])
    assert {toys.digest(replica) for replica in replicas} == {toys.digest(alone)}


def part(crowd: Crowd, slot: int, step: int = 0, **settings: Any) -> Contribution:
    """Gradients of two dtypes, of a size that no number of slots divides evenly."""
    ranks = crowd.ranges[slot]
    nodes = {node: leaves(crowd, node) for node in nodes_of(ranks.start, ranks.stop, crowd.ests)}
    return Contribution(step, nodes, b"\1\0", {rank: rank + 0.5 for rank in ranks}, **settings)


def leaves(crowd: Crowd, node: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(node[0] * 100 + node[1])
    flat = [torch.randn(size, generator=generator) for size in crowd.flat]
    return [flat[0], flat[1].double()]


def everything(crowd: Crowd) -> dict[tuple[int, int], list[torch.Tensor]]:
    nodes: dict[tuple[int, int], list[torch.Tensor]] = {}
    for ranks in crowd.ranges:
        nodes |= {node: leaves(crowd, node) for node in nodes_of(ranks.start, ranks.stop, crowd.ests)}
    return nodes


@pytest.mark.parametrize("flat", [(1003, 77), (3, 0), (65, 1)])
@pytest.mark.parametrize("sizes", [[1, 1], [5, 2, 1], [1, 2, 1, 3]])
def test_every_dtype_and_every_size_is_summed_like_at_one_worker(
    crowds: Callable[..., Crowd], sizes: list[int], flat: tuple[int, int]
) -> None:
    crowd = crowds(sizes).meet()
    crowd.flat = flat
    whole = finish(everything(crowd), crowd.ests)
    for step in range(3):
        parts = {slot: part(crowd, slot, step) for slot in crowd.lanes}
        for gathered in crowd.exchange(step, parts).values():
            (mean,) = (c.mean for _, c in gathered if c.mean)
            assert mean.finite
            assert all(torch.equal(a, b / crowd.ests) for a, b in zip(mean.flat, whole, strict=True))
            assert {rank: loss for _, c in gathered for rank, loss in c.losses.items()} == {
                rank: rank + 0.5 for rank in range(crowd.ests)
            }


def test_a_balanced_step_sends_at_most_two_gradients(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1, 1]).meet()
    crowd.flat = (100_000, 16)  # too large to be sent whole to three others
    before = crowd.lanes[1].sent
    crowd.exchange(0, {slot: part(crowd, slot) for slot in crowd.lanes})
    assert crowd.lanes[1].sent - before <= 2.1 * (400_000 + 128)


def test_contexts_buffers_and_records_too_long_for_a_head_arrive_whole(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1]).meet()
    buffers = {"mean": torch.arange(10_000.0), "count": torch.tensor(7)}
    parts = {0: part(crowd, 0, buffers=buffers), 1: part(crowd, 1, contexts={1: {"seen": 3}})}
    for gathered in crowd.exchange(0, parts).values():
        (_, first), (_, second) = gathered
        assert first.buffers is not None
        assert all(torch.equal(first.buffers[name], buffers[name]) for name in buffers)
        assert second.contexts == {1: {"seen": 3}}
        assert second.buffers is None


# ---- states


def test_a_state_is_given_from_memory_to_memory_with_its_history(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 2]).meet()
    state = {
        "step": 12,
        "big": 1 << 2000,
        "nan": float("nan"),
        "tensors": [torch.arange(8).to(dtype) for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.complex64)],
        "none": torch.empty(0, 3),
        "one": torch.tensor(-0.0),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
    }
    history = {11: b"{}", 12: b'{"loss": 1}'}
    parcel = Parcel(state, history)
    takers = {slot: (lambda slot=slot: crowd.lanes[slot].take(0)) for slot in (1, 2)}
    crowd.lanes[0].give([1, 2], parcel)
    for take in takers.values():
        taken = until(take)
        assert toys.digest_of(taken.state) == toys.digest_of(state)
        assert taken.history == history
    assert until(lambda: crowd.lanes[0].give([1, 2], parcel))
    assert crowd.exchange(12, {slot: part(crowd, slot, 12) for slot in crowd.lanes}), "and then the steps go on"


def test_a_wait_that_takes_long_is_told_of_once_and_only_while_it_lasts(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1]).meet()
    told = threading.Event()
    crowd.lanes[0]._on_wait = told.set
    crowd.lanes[0].send(0, Control(slot=0), part(crowd, 0))

    def late() -> None:
        assert told.wait(PATIENCE)
        crowd.lanes[1].send(0, Control(slot=1), part(crowd, 1))
        crowd.lanes[1].poll(0)

    other = threading.Thread(target=late)
    other.start()
    assert crowd.lanes[0].poll(0) is not None
    other.join()
    assert crowd.lanes[0]._since is None


# ---- losses


def lost(call: Callable[[], Any]) -> tuple[int, ...]:
    """Whom a call that ends in a break says it has lost."""
    with pytest.raises(LaneBrokenError) as error:
        until(call)
    return error.value.lost


def test_who_dies_while_others_wait_is_named_by_all_and_nobody_else_is(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1, 1]).meet()
    for slot in (0, 1, 3):
        crowd.lanes[slot].send(0, Control(slot=slot), part(crowd, slot))
    threading.Timer(0.2, lambda: crowd.kill(2)).start()
    assert crowd.lost(0, 0, 1, 3) == [(2,)] * 3


def test_two_who_die_together_are_named_together(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1, 1]).meet()
    for slot in (1, 2):
        crowd.lanes[slot].send(0, Control(slot=slot), part(crowd, slot))
    crowd.kill(0)
    crowd.kill(3)
    assert crowd.lost(0, 1, 2) == [(0, 3)] * 2


def test_who_dies_between_partials_and_finished_parts_is_named_by_all(
    crowds: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Member 1 has everybody's partials, but waits for 0's finished part, which 0 cannot have without 2."""
    monkeypatch.setattr(exchange, "SMALL", 0)
    crowd = crowds([1, 1, 1]).meet()
    for slot in (0, 1):
        crowd.lanes[slot].send(0, Control(slot=slot), part(crowd, slot))
    exchange_of_2 = crowd.lanes[2]._exchange
    assert exchange_of_2 is not None
    note = encoded_note(0, 2, part(crowd, 2))
    frames = exchange_of_2.frames(NOTE)
    frames.send([1], note)
    exchange_of_2.bulk.move(PARTIALS, {1: exchange_of_2.part(leaves(crowd, (2, 3)), 1)})()
    frames.settle()
    crowd.kill(2)
    found: dict[int, Any] = {}
    waiting = [threading.Thread(target=lambda s=slot: found.update(crowd.poll(0, s)), daemon=True) for slot in (0, 1)]
    for thread in waiting:
        thread.start()
    waiting[0].join(PATIENCE)
    assert found[0].lost == (2,)
    crowd.lanes[1].interrupt()  # as the plan without 2 does, which 0 has asked for
    waiting[1].join(PATIENCE)
    assert found[1] is None or found[1].lost == (2,)


def test_who_dies_while_a_state_is_given_is_named(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1]).meet()
    parcel = Parcel({"step": 1, "w": torch.zeros(5_000_000)}, {})
    assert not crowd.lanes[0].give([1], parcel), "nobody takes it"
    crowd.kill(1)
    assert lost(lambda: crowd.lanes[0].give([1], parcel)) == (1,)
    other = crowds([1, 1]).meet()
    assert other.lanes[1].take(0) is None
    other.kill(0)
    assert lost(lambda: other.lanes[1].take(0)) == (0,)


def test_who_does_not_come_to_the_meeting_is_named(
    crowds: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "MEET_SECONDS", 0.3)
    crowd = crowds([1, 1, 1, 1], present=[0, 2])
    assert [lost(lane.meet) for lane in crowd.lanes.values()] == [(1, 3)] * 2


def test_a_place_of_meeting_that_is_gone_is_named_at_once(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1], present=[])
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    crowd.runs = [msgspec.structs.replace(run, addresses=(f"{HOST}:{port}",) * 3) for run in crowd.runs]
    crowd.lanes = {slot: crowd.lane(slot) for slot in (1, 2)}
    assert [lost(lane.meet) for lane in crowd.lanes.values()] == [(0,)] * 2


def test_a_place_that_goes_away_while_peers_meet_is_named(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1], present=[1, 2])
    assert not any(lane.meet() for lane in crowd.lanes.values())
    crowd.place.close()
    assert [lost(lane.meet) for lane in crowd.lanes.values()] == [(0,)] * 2


def test_who_is_stopped_holds_nobody_up_once_the_generation_is_dropped(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1]).meet()
    mine = part(crowd, 0)
    crowd.lanes[0].send(0, Control(slot=0), mine)
    crowd.lanes[1].send(0, Control(slot=1), part(crowd, 1))
    threading.Timer(0.2, crowd.lanes[0].interrupt).start()
    assert crowd.lanes[0].poll(0) is None, "2 is silent, and nobody is accused"
    assert crowd.lanes[0].poll(0) is None, "nor is anything waited for any more"
    crowd.lanes.pop(0).close()
    frozen = {node: [flat.clone() for flat in value] for node, value in mine.nodes.items()}
    crowd.lanes[2].send(0, Control(slot=2), part(crowd, 2))
    assert 0 in crowd.lost(0, 2)[0], "it wakes up and finds that the others have gone"
    assert all(torch.equal(a, b) for node in frozen for a, b in zip(frozen[node], mine.nodes[node], strict=True))


def test_patience_that_runs_out_blames_nobody(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1], present=[])
    crowd.patience = 0.05
    crowd.lanes = {slot: crowd.lane(slot) for slot in (0, 1)}
    crowd.meet()
    crowd.lanes[0].send(0, Control(slot=0), part(crowd, 0))
    assert crowd.lost(0, 0) == [()]
    assert crowd.lanes[0].ran_out


def test_a_goodbye_is_no_break_and_takes_nothing_from_others(crowds: Callable[..., Crowd]) -> None:
    crowd = crowds([1, 1, 1]).meet()
    for slot in crowd.lanes:
        crowd.lanes[slot].send(0, Control(slot=slot), part(crowd, slot))
    lanes = dict(crowd.lanes)

    def finish(slot: int) -> int:
        gathered = lanes[slot].poll(0)
        lanes[slot].part()
        if slot == 2:
            crowd.lanes.pop(2).close()
        return len(gathered or [])

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(finish, lanes)] == [3, 3, 3]


def encoded_note(step: int, slot: int, mine: Contribution, **changes: Any) -> bytes:
    note = Note(step, Control(slot=slot), mine.used, mine.losses, b"")
    return msgspec.msgpack.encode(msgspec.structs.replace(note, **changes))


def cargo(mine: Contribution) -> list[torch.Tensor]:
    """What goes along with a note: all partials, if they are small."""
    return [flat for value in mine.nodes.values() for flat in value] if exchange.SMALL else []


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\xc1",
        encoded_note(1, 1, Contribution(0, {}, b"\1\0", {1: 0.5})),
        encoded_note(0, 0, Contribution(0, {}, b"\1\0", {1: 0.5})),
        encoded_note(0, 1, Contribution(0, {}, b"\1", {1: 0.5})),
        encoded_note(0, 1, Contribution(0, {}, b"\1\0", {0: 0.5})),
        encoded_note(0, 1, Contribution(0, {}, b"\1\0", {1: 0.5}), extra=b"junk"),
    ],
)
def test_a_note_that_cannot_be_names_its_sender(crowds: Callable[..., Crowd], note: bytes) -> None:
    crowd = crowds([1, 1]).meet()
    crowd.lanes[0].send(0, Control(slot=0), part(crowd, 0))
    theirs, mine = crowd.lanes[1]._exchange, part(crowd, 1)
    assert theirs is not None
    frames = theirs.frames(NOTE)  # a message is gone with whoever sends it
    frames.send([0], note, cargo(mine))
    assert crowd.lost(0, 0) == [(1,)]


@pytest.mark.parametrize("byte", [0, 5, 9, 14, 40])
def test_a_head_with_a_flipped_bit_names_its_sender(crowds: Callable[..., Crowd], byte: int) -> None:
    crowd = crowds([1, 1]).meet()
    crowd.lanes[0].send(0, Control(slot=0), part(crowd, 0))
    links, shared, theirs = crowd.lanes[1]._links, crowd.lanes[1]._shared, crowd.lanes[1]._exchange
    assert links is not None
    assert theirs is not None
    sent: list[Any] = []
    mine = part(crowd, 1)
    if shared is not None:
        send = shared.wires.send
        shared.wires.send = lambda _slot, _tag, data: sent.append(bytearray(data))  # type: ignore[method-assign]
        theirs.frames(NOTE).send([0], encoded_note(0, 1, mine), cargo(mine))
        sent[0][byte] ^= 64
        send(0, NOTE, bytes(sent[0]))
    else:
        keep = SimpleNamespace(send=lambda _slot, _tag, tensor: sent.append(tensor))
        Frames(keep, NOTE).send([0], encoded_note(0, 1, mine), cargo(mine))  # type: ignore[arg-type]
        sent[0][byte] ^= 64
        links.send(0, NOTE, sent[0]).wait()
    assert crowd.lost(0, 0) == [(1,)]


def test_nccl_is_for_distinct_gpus_only() -> None:
    assert all_distinct(("a", "b"))
    assert not all_distinct(("a", "a")), "it refuses two members on one GPU"
    assert not all_distinct(("a", "")), "one computes on something else"
    assert not all_distinct(())
