"""Peers exchange what a lone worker would have in one place; whoever is lost is named; nobody is held up by it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator.records import Member
from easyscale.pipeline import messages
from easyscale.pipeline.peers import PeerLane
from easyscale.pipeline.rendezvous import Rendezvous
from easyscale.pipeline.session import Control

from tests import toys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from easyscale.pipeline.contribution import Contribution

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
        self.place, self.patience = Rendezvous(HOST), 3600.0
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
        return {slot: until(lambda lane=self.lanes[slot]: lane.poll(step)) for slot in parts}

    def kill(self, slot: int) -> None:
        """As if its process had died: all its connections end at once."""
        self.lanes.pop(slot).close()

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()


@pytest.fixture
def crowds() -> Iterator[Callable[..., Crowd]]:
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
