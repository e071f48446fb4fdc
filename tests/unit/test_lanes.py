"""Partials arrive whole, in slot order, of the step that was asked for, whatever the store does meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator import ranges
from easyscale.errors import CorruptError, OutcomeUnknownError, UnavailableError
from easyscale.pipeline import messages
from easyscale.pipeline.lanes import MAX_READS, LocalLane, StoreLane, pack, unpack
from easyscale.pipeline.session import Control
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from easyscale.storage.objects import Data


@dataclass(frozen=True)
class Part:
    text: str

    def to_bytes(self) -> bytes:
        return self.text.encode()

    @staticmethod
    def from_bytes(data: bytes) -> Part:
        return Part(data.decode())


class FaultyStore(MemoryStore):
    """Fails the calls that it is told to, once each, before or after doing what was asked."""

    def __init__(self) -> None:
        super().__init__("faulty")
        self.failing: list[str] = []

    def _fail(self, what: str) -> None:
        if what in self.failing:
            self.failing.remove(what)
            raise OutcomeUnknownError(what) if "unknown" in what else UnavailableError(what)

    def get(self, key: str) -> bytes:
        self._fail("get")
        return super().get(key)

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        assert not durable, "partials are transient"
        self._fail("put")
        super().put(key, data, durable=durable)
        self._fail("put unknown")

    def delete(self, key: str) -> None:
        self._fail("delete")
        super().delete(key)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


def lanes(store: MemoryStore, members: int = 2, generation: int = 1) -> list[StoreLane[Part]]:
    everybody = ranges.even(members, [f"w{i}" for i in range(members)])
    runs = [
        messages.Run(generation=generation, members=everybody, slot=slot, step=0, base=messages.Base())
        for slot in range(members)
    ]
    return [StoreLane(store, "job", run, Part.from_bytes) for run in runs]


def send(lane: StoreLane[Part], step: int, slot: int) -> None:
    lane.send(step, Control(slot=slot), Part(f"{step}/{slot}"))


def texts(received: list[tuple[Control, Part]] | None) -> list[str] | None:
    return None if received is None else [part.text for _, part in received]


def test_what_is_sent_to_oneself_is_received_once() -> None:
    lane: LocalLane[Part] = LocalLane()
    assert lane.poll(0) is None
    part = Part("x")
    lane.send(0, Control(slot=0, leaving=True), part)
    assert lane.poll(1) is None, "of another step"
    received = lane.poll(0)
    assert received == [(Control(slot=0, leaving=True), part)]
    assert received[0][1] is part, "no copy, no encoding"
    assert lane.poll(0) is None


def test_everybody_receives_everybodys_parts_in_slot_order(store: FaultyStore) -> None:
    three = lanes(store, 3)
    for step in range(4):
        for slot in (2, 0, 1):
            send(three[slot], step, slot)
        for lane in three:
            assert texts(lane.poll(step)) == [f"{step}/0", f"{step}/1", f"{step}/2"]


def test_nothing_is_received_before_all_is_there(store: FaultyStore) -> None:
    one, other = lanes(store)
    send(one, 0, 0)
    assert one.poll(0) is None
    send(other, 0, 1)
    assert texts(one.poll(0)) == ["0/0", "0/1"]
    assert texts(other.poll(0)) == ["0/0", "0/1"], "also by who sent last"


def test_control_records_travel_along(store: FaultyStore) -> None:
    one, other = lanes(store)
    said = Control(slot=1, leaving=True, pausing=True, next_generation=7, commit=True)
    send(one, 0, 0)
    other.send(0, said, Part("x"))
    received = one.poll(0)
    assert received is not None
    assert received[1][0] == said


def test_generations_do_not_hear_each_other(store: FaultyStore) -> None:
    (old, _), (_, new) = lanes(store, generation=1), lanes(store, generation=2)
    send(old, 0, 0)
    send(new, 0, 1)
    assert old.poll(0) is None
    assert new.poll(0) is None


@pytest.mark.parametrize("fault", ["put", "put unknown"])
def test_a_failed_send_never_yields_an_older_steps_parts(store: FaultyStore, fault: str) -> None:
    """A simulation found it: parts of step 0 were taken for those of step 1 when sending step 1 had failed."""
    one, other = lanes(store)
    send(one, 0, 0)
    send(other, 0, 1)
    assert texts(one.poll(0)) == ["0/0", "0/1"]
    store.failing = [fault]
    with pytest.raises(UnavailableError):
        send(one, 1, 0)
    assert one.poll(1) is None
    send(one, 1, 0)
    send(other, 1, 1)
    assert texts(one.poll(1)) == ["1/0", "1/1"]


def test_a_failed_poll_loses_nothing_that_had_arrived(store: FaultyStore) -> None:
    three = lanes(store, 3)
    for slot in range(3):
        send(three[slot], 0, slot)
    store.failing = ["get"]
    with pytest.raises(UnavailableError):
        three[0].poll(0)
    assert texts(three[0].poll(0)) == ["0/0", "0/1", "0/2"]


def test_parts_are_removed_two_steps_later_by_who_sent_them(store: FaultyStore) -> None:
    one, other = lanes(store)
    for step in range(6):
        send(one, step, 0)
        send(other, step, 1)
        assert one.poll(step) is not None
        assert other.poll(step) is not None
    left = sorted(store.list("jobs/job/lane/"))
    assert [key.split("/")[-2:] for key in left] == [[f"{s:012d}", f"{m:05d}"] for s in (4, 5) for m in (0, 1)]
    assert sorted(one.mine + other.mine) == left, "the rest is known, to be removed after the generation"


def test_the_last_part_stays_for_a_peer_that_is_a_step_behind(store: FaultyStore) -> None:
    one, other = lanes(store)
    for step in range(3):
        send(one, step, 0)
        send(other, step, 1)
        assert one.poll(step) is not None
        if step < 2:
            assert other.poll(step) is not None
    send(one, 3, 0)
    assert texts(other.poll(2)) == ["2/0", "2/1"]


def test_a_failed_clean_up_does_not_take_away_the_part_that_a_peer_still_needs(store: FaultyStore) -> None:
    one, other = lanes(store)
    for step in range(2):
        send(one, step, 0)
        send(other, step, 1)
        assert one.poll(step) is not None
    store.failing = ["delete"]
    try:
        send(one, 2, 0)
    except UnavailableError:
        send(one, 2, 0)
    slow = lanes(store)[1]
    slow.send(1, Control(slot=1), Part("1/1"))
    assert texts(slow.poll(1)) == ["1/0", "1/1"]


def test_what_could_not_be_removed_is_removed_later(store: FaultyStore) -> None:
    (one,) = lanes(store, 1)
    for step in range(6):
        store.failing = ["delete"] if step == 2 else []
        try:
            send(one, step, 0)
        except UnavailableError:
            send(one, step, 0)
    assert sorted(store.list("jobs/job/lane/")) == sorted(one.mine)


def test_packing_is_exact_and_damage_is_told() -> None:
    control = Control(slot=3, commit=True)
    for data in (b"", b"\x00\xff{}", bytes(range(256))):
        assert unpack(pack(control, data)) == (control, data)
    for damaged in (b"", b"\x05", pack(control, b"x")[4:], (10**9).to_bytes(8, "little") + b"{}"):
        with pytest.raises(CorruptError, match=r"a lane object .*is damaged"):
            unpack(damaged)


class FlippingStore(MemoryStore):
    """Flips the last bit of what it answers, so many times."""

    flips = 0

    def get(self, key: str) -> bytes:
        data = super().get(key)
        if self.flips:
            self.flips -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


def test_a_partial_with_a_flipped_bit_is_read_again_and_never_used() -> None:
    store = FlippingStore("flipping")
    first, second = lanes(store)
    send(first, 0, 0)
    send(second, 0, 1)
    store.flips = 2
    assert first.poll(0) is None
    assert first.poll(0) is None
    assert texts(first.poll(0)) == ["0/0", "0/1"]


def test_a_partial_that_stays_damaged_ends_the_attempt() -> None:
    store = FlippingStore("damaged")
    first, second = lanes(store)
    send(first, 0, 0)
    send(second, 0, 1)
    store.flips = 100
    for _ in range(MAX_READS - 1):
        assert first.poll(0) is None
    with pytest.raises(CorruptError, match="damaged"):
        first.poll(0)


def test_what_is_said_between_two_steps_is_control_records_alone_and_mixes_with_no_step(store: FaultyStore) -> None:
    two = lanes(store)
    for step in range(3):
        for slot, lane in enumerate(two):
            send(lane, step, slot)
        assert [texts(lane.poll(step)) for lane in two] == [[f"{step}/0", f"{step}/1"]] * 2
        for number in (2 * step + 1, 2 * step + 2):
            said = [Control(slot=slot, round=number, sums=bytes([number, slot])) for slot in range(2)]
            two[0].send(step + 1, said[0], None)
            assert two[0].poll(step + 1) is None
            store.failing = ["put unknown"]
            with pytest.raises(OutcomeUnknownError):
                two[1].send(step + 1, said[1], None)
            two[1].send(step + 1, said[1], None)
            assert [lane.poll(step + 1) for lane in two] == [[(said[0], None), (said[1], None)]] * 2
    assert len(store._objects) <= 8, "no more than what may still be wanted"
