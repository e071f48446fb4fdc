"""One member's life in one generation, driven by hand: no clock, no threads, every wait seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from easyscale.coordinator import ranges, records
from easyscale.errors import UnavailableError
from easyscale.pipeline import messages
from easyscale.pipeline.generation import LAST_POLL_SECONDS, RETRY_SECONDS, Generation, Rate
from easyscale.pipeline.lanes import LocalLane, StoreLane
from easyscale.pipeline.protocols import Wait
from easyscale.pipeline.session import Session
from easyscale.storage.memory import MemoryStore


@dataclass(frozen=True)
class Part:
    """The ESTs of one member at one step."""

    step: int
    ests: tuple[int, ...]
    watched = sample = b""

    def to_bytes(self) -> bytes:
        return repr((self.step, self.ests)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Part:
        return Part(*eval(data))


@dataclass
class Report:
    step: int
    epoch: int = 0
    loss: float = 0.5
    lr: tuple[float, ...] = (0.1,)


class Replica:
    """Checks that every step gets every EST's part of that very step."""

    def __init__(self, step: int, ests: int) -> None:
        self.step, self._ests, self.evaluated = step, ests, []

    def compute(self, ests: range, watch: int | None = None) -> Part:
        return Part(self.step, tuple(ests))

    def apply(self, contributions: list[Part]) -> Report:
        assert {part.step for part in contributions} == {self.step}, "parts of another step"
        assert [est for part in contributions for est in part.ests] == list(range(self._ests))
        self.step += 1
        return Report(self.step - 1)

    def sums(self) -> bytes:
        return self.step.to_bytes(8)

    def state(self) -> int:
        return self.step

    def load_state(self, state: int) -> None:
        self.step = state

    def evaluate(self) -> dict[str, float]:
        self.evaluated.append(self.step)
        return {"accuracy": self.step / 100}


@dataclass
class Commits:
    """Plays the committer: what was begun, and whether it is finished and settled."""

    idle: bool = True
    settled_at: int = -1
    begun: list[tuple[dict[str, float], bool, tuple[int, int]]] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    history: dict[int, bytes] = field(default_factory=dict)
    on_begin: Any = None
    base: messages.Base = field(default_factory=messages.Base)

    def adopt(self, history: dict[int, bytes]) -> None:
        self.history = history

    def record(self, report: Report) -> None:
        self.recorded.append(report.step)

    def begin(self, metrics: dict[str, float], *, publish: bool, share: tuple[int, int]) -> None:
        assert self.idle, "a snapshot may be taken only when the last one is written"
        self.begun.append((metrics, publish, share))
        if self.on_begin:
            self.on_begin(self)

    def settled(self, step: int) -> bool:
        return self.settled_at >= step


class FaultyStore(MemoryStore):
    down = False

    def get(self, key: str) -> bytes:
        if self.down:
            raise UnavailableError("down")
        return super().get(key)

    def put(self, key: str, data: Any, *, durable: bool = True) -> None:
        if self.down:
            raise UnavailableError("down")
        super().put(key, data, durable=durable)


class SlowLane(StoreLane[Part]):
    """Meets and hands states over as peers do, and takes three calls for each."""

    def __init__(self, handed: dict[int, Any], slot: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._handed, self._slot, self.calls = handed, slot, {"meet": 0, "give": 0, "take": 0}

    def _slowly(self, what: str) -> bool:
        self.calls[what] += 1
        return self.calls[what] > 3

    def meet(self) -> bool:
        return self._slowly("meet")

    def give(self, slots: Any, parcel: Any) -> bool:
        self._handed.update(dict.fromkeys(slots, parcel))
        return self._slowly("give")

    def take(self, slot: int) -> Any:
        return self._handed.get(self._slot) if self._slowly("take") else None


class Member:
    """One member and its coroutine. `go` runs it until it waits, `idle` is its last word."""

    def __init__(self, crowd: Crowd, slot: int, members: int, step: int, total: int, **settings: Any) -> None:
        held = settings.pop("held", ())
        run = messages.Run(
            generation=1, members=ranges.even(4, [f"w{i}" for i in range(members)]), slot=slot, step=step,
            base=messages.Base(step=step), held=held, lane="peer" if held else "store",
        )  # fmt: skip
        every = settings.pop("evaluate_every", 0)
        self.crowd, self.said = crowd, []
        self.session = Session(run, total, **{"commit_every": 1000, **settings})
        self.replica, self.commits = Replica(held[slot] if held else step, 4), Commits()
        lane: Any = LocalLane() if members == 1 else StoreLane(crowd.store, "job", run, Part.from_bytes)
        if held:
            lane = SlowLane(crowd.handed, slot, crowd.store, "job", run, Part.from_bytes)
        self.lane = lane
        generation = Generation(
            self.session, self.replica, lane, self.commits, self.said.append, lambda: crowd.now, 8, no_need, every,
            footprint=lambda: records.Footprint(peak=self.replica.step, ests=4, est=1),
        )  # fmt: skip
        self._steps = generation.run()
        self.idle: messages.Idle | None = None

    def go(self) -> Wait | None:
        if self.idle is None:
            try:
                return next(self._steps)
            except StopIteration as end:
                self.idle = end.value
        return None

    def until(self, condition: Any) -> None:
        for _ in range(1000):
            if condition():
                return
            self.go()
        raise AssertionError("it does not come to that")

    def progress(self) -> list[messages.Progress]:
        return [message.progress for message in self.said if isinstance(message, messages.Stepped)]


class Crowd:
    """Members of one generation over one store, taking turns."""

    def __init__(self, members: int, step: int = 0, total: int = 50, **settings: Any) -> None:
        self.now = 100.0
        self.store = FaultyStore()
        self.handed: dict[int, Any] = {}
        self.members = [Member(self, slot, members, step, total, **settings) for slot in range(members)]

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            for member in self.members:
                member.go()
            self.now += 0.01

    def until_over(self) -> list[messages.Idle]:
        for _ in range(5000):
            self.turn()
            if all(member.idle for member in self.members):
                return [member.idle for member in self.members if member.idle]
        raise AssertionError([(member.replica.step, member.said[-2:]) for member in self.members])

    def reach(self, step: int) -> None:
        for _ in range(5000):
            if all(member.replica.step >= step for member in self.members):
                return
            self.turn()
        raise AssertionError("no progress")


def no_need(_: messages.Base) -> None:
    raise AssertionError("replicas that are equal need not be recomputed")


def settle(commits: Commits) -> None:
    commits.settled_at = 10**9


def idle(held: int, reason: Any) -> messages.Idle:
    return messages.Idle(generation=1, held=held, reason=reason)


@pytest.mark.parametrize("members", [1, 2, 4])
def test_members_come_to_the_end_together(members: int) -> None:
    crowd = Crowd(members, total=12)
    for member in crowd.members:
        member.commits.on_begin = settle
    assert crowd.until_over() == [idle(12, "done")] * members
    for slot, member in enumerate(crowd.members):
        assert member.commits.recorded == list(range(12))
        assert member.commits.begun == [({"accuracy": 0.12} if slot == 0 else {}, slot == 0, (slot, members))]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (messages.Leave(), "leave"),
        (messages.Pause(), "pause"),
        (messages.Yield(generation=2), "yield"),
    ],
)
@pytest.mark.parametrize("told", [0, 1, 2])
def test_a_wish_of_one_member_stops_all_after_the_same_step(order: Any, reason: str, told: int) -> None:
    crowd = Crowd(3)
    for member in crowd.members:
        member.commits.on_begin = settle
    crowd.reach(4)
    crowd.members[told].session.hear(order)
    ends = crowd.until_over()
    assert len({end.held for end in ends}) == 1
    assert {end.reason for end in ends} == {reason}
    assert ends[0].held <= 7, "the step under way, or the next"
    committed = [len(member.commits.begun) for member in crowd.members]
    assert committed == ([1, 1, 1] if reason == "pause" else [0, 0, 0])


@pytest.mark.parametrize("members", [1, 3])
def test_who_is_told_to_go_while_it_computes_a_step_leaves_after_that_very_step(members: int) -> None:
    crowd = Crowd(members)
    crowd.reach(4)
    leaver = crowd.members[0]
    for member in crowd.members:
        member.commits.on_begin = settle
    while (wait := leaver.go()) is None or not wait.compute:
        crowd.turn()
    step = leaver.replica.step
    leaver.session.hear(messages.Leave())
    assert crowd.until_over() == [idle(step + 1, "leave")] * members


@pytest.mark.parametrize(("slot", "what"), [(0, "meet"), (1, "meet"), (0, "give"), (1, "take")])
def test_who_is_told_to_go_while_members_meet_or_hand_over_the_state_does_one_step_with_them(
    slot: int, what: str
) -> None:
    """Without it they would be held up longer: by a break, or by another plan."""
    crowd = Crowd(3, step=7, held=(7, 0, 7))
    leaver = crowd.members[slot]
    leaver.until(lambda: leaver.lane.calls[what] == 2)
    assert not any(isinstance(message, messages.Computing) for message in leaver.said)
    leaver.session.hear(messages.Leave())
    assert crowd.until_over() == [idle(8, "leave")] * 3


def test_when_the_only_member_leaves_it_commits_first() -> None:
    crowd = Crowd(1)
    (member,) = crowd.members
    member.commits.on_begin = lambda commits: setattr(commits, "idle", False)
    crowd.reach(3)
    member.session.hear(messages.Leave())
    member.until(lambda: member.commits.begun)
    crowd.turn(50)
    assert member.idle is None, "it stays until the commit is settled"
    settle(member.commits)
    (end,) = crowd.until_over()
    assert end.reason == "leave"
    assert member.commits.begun == [({}, True, (0, 1))]


def test_a_lost_member_ends_the_step_of_those_who_wait_for_it() -> None:
    crowd = Crowd(3)
    crowd.reach(3)
    lost = crowd.members.pop()
    crowd.turn(20)
    held = {member.replica.step for member in crowd.members}
    assert len(held) == 1
    for member in crowd.members:
        member.session.hear(messages.Yield(generation=2, lost=(2,)))
    assert crowd.until_over() == [idle(held.pop(), "yield")] * 2
    assert lost.idle is None


def test_a_step_is_saved_if_the_lost_one_had_sent_its_part() -> None:
    crowd = Crowd(2)
    crowd.reach(3)
    survivor, lost = crowd.members
    lost.until(lambda: lost.replica.step == 3 and isinstance(lost.said[-1], messages.Waiting))
    survivor.until(lambda: isinstance(survivor.said[-1], messages.Computing))
    assert survivor.replica.step == 3
    survivor.session.hear(messages.Yield(generation=2, lost=(1,)))
    survivor.until(lambda: survivor.idle)
    assert survivor.idle == idle(4, "yield"), "it looked once more before giving up"


def test_an_order_to_drop_needs_no_other_member() -> None:
    crowd = Crowd(2)
    crowd.reach(2)
    one, _ = crowd.members
    one.session.hear(messages.Yield(generation=1, drop=True))
    one.until(lambda: one.idle)
    assert one.idle is not None
    assert one.idle.reason == "yield"


def test_an_outage_of_the_store_is_sat_out() -> None:
    crowd = Crowd(2, total=10)
    for member in crowd.members:
        member.commits.on_begin = settle
    crowd.reach(4)
    crowd.store.down = True
    seen = [wait for _ in range(30) for member in crowd.members if (wait := member.go()) is not None]
    assert Wait(RETRY_SECONDS) in seen
    assert all(isinstance(member.said[-1], messages.Waiting) for member in crowd.members), "waiting is no hang"
    at = [member.replica.step for member in crowd.members]
    crowd.turn(30)
    assert [member.replica.step for member in crowd.members] == at
    crowd.store.down = False
    assert crowd.until_over() == [idle(10, "done")] * 2


def test_an_outage_does_not_hold_a_member_in_a_generation_that_is_broken() -> None:
    crowd = Crowd(2)
    crowd.reach(4)
    crowd.store.down = True
    crowd.turn(10)
    held = [member.replica.step for member in crowd.members]
    for member in crowd.members:
        member.session.hear(messages.Yield(generation=2, lost=(0, 1)))
    assert crowd.until_over() == [idle(step, "yield") for step in held]


def test_waiting_gets_slower_up_to_a_bound_and_is_told_once() -> None:
    crowd = Crowd(2)
    one, _ = crowd.members
    waits = [wait for _ in range(40) if (wait := one.go()) is not None and not wait.compute]
    pauses = [wait.seconds for wait in waits[1:]]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_POLL_SECONDS
    assert sum(isinstance(message, messages.Waiting) for message in one.said) == 1


def test_commits_in_between_are_begun_by_all_and_waited_for_by_nobody() -> None:
    crowd = Crowd(2, total=100, commit_every=5)
    crowd.reach(11)
    assert [member.commits.begun for member in crowd.members] == [[({}, slot == 0, (slot, 2))] * 2 for slot in (0, 1)]


def test_a_member_that_still_writes_leaves_out_its_share() -> None:
    crowd = Crowd(2, total=100, commit_every=5)
    crowd.members[1].commits.idle = False
    crowd.reach(6)
    assert len(crowd.members[0].commits.begun) == 1
    assert crowd.members[1].commits.begun == []


def test_no_commit_is_called_for_while_the_last_one_is_written() -> None:
    crowd = Crowd(2, total=100, commit_every=5)
    crowd.members[0].commits.idle = False
    crowd.reach(11)
    assert [member.commits.begun for member in crowd.members] == [[], []]


def test_a_final_commit_that_fails_is_begun_again_until_it_is_settled() -> None:
    crowd = Crowd(1, total=3)
    (member,) = crowd.members
    commits = member.commits
    member.until(lambda: len(commits.begun) == 4)  # an outage: idle again each time, never settled
    commits.idle = False
    crowd.turn(20)
    assert len(commits.begun) == 4, "one that is being written is waited for"
    assert member.idle is None
    settle(commits)
    assert crowd.until_over() == [idle(3, "done")]


def test_a_member_that_does_not_publish_uploads_its_share_once_and_goes() -> None:
    crowd = Crowd(2, total=3)
    first, second = crowd.members
    first.commits.on_begin = second.commits.on_begin = lambda commits: setattr(commits, "idle", False)
    crowd.turn(60)
    assert second.idle is None, "its upload is under way"
    second.commits.idle = True
    crowd.turn(5)
    assert second.idle == idle(3, "done")
    assert second.commits.begun == [({}, False, (1, 2))]
    assert first.idle is None


@pytest.mark.parametrize("order", [messages.Yield(generation=2), messages.Yield(generation=1, drop=True)])
def test_nobody_insists_on_a_final_commit_in_a_generation_that_is_over(order: messages.Yield) -> None:
    crowd = Crowd(1, total=3)
    (member,) = crowd.members
    member.until(lambda: member.commits.begun)
    member.commits.idle = False
    member.session.hear(order)
    assert crowd.until_over() == [idle(3, "done")]


def test_a_generation_that_starts_at_the_end_only_commits() -> None:
    crowd = Crowd(1, step=50, total=50)
    (member,) = crowd.members
    member.commits.on_begin = settle
    assert crowd.until_over() == [idle(50, "done")]
    assert member.commits.begun == [({"accuracy": 0.5}, True, (0, 1))]
    assert member.progress() == []


def test_slot_0_evaluates_as_often_as_asked_and_at_the_end() -> None:
    crowd = Crowd(2, total=10, evaluate_every=4)
    for member in crowd.members:
        member.commits.on_begin = settle
    crowd.until_over()
    assert [member.replica.evaluated for member in crowd.members] == [[4, 8, 10], []]
    assert messages.Computing(what="evaluation") in crowd.members[0].said


def test_each_step_is_told_with_where_its_generation_began() -> None:
    crowd = Crowd(1, step=7, total=10)
    (member,) = crowd.members
    member.commits.on_begin = settle
    crowd.until_over()
    told = member.progress()
    assert [(p.step, p.started, p.generation, p.loss, p.lr) for p in told] == [(t, 7, 1, 0.5, 0.1) for t in (8, 9, 10)]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate(samples=10, window=2.0)
    assert rate.step(100.0) == 0.0
    assert rate.step(101.0) == 10.0
    assert [rate.step(101.0 + t / 4) for t in range(1, 4)] == [10.0] * 3, "until a window is over"
    assert rate.step(102.0) == 25.0


def test_each_member_tells_how_long_its_own_ests_took_and_how_long_it_waited_for_others() -> None:
    crowd = Crowd(2)
    ahead, other = crowd.members
    compute = ahead.replica.compute

    def slowly(*arguments: Any) -> Any:
        crowd.now += 1.0
        return compute(*arguments)

    ahead.replica.compute = slowly  # type: ignore[method-assign]
    crowd.reach(2)
    for _ in range(20):
        ahead.go()
    crowd.now += 3.0
    crowd.reach(3)
    told, theirs = ahead.progress()[2], other.progress()[2]
    assert (told.compute_seconds, theirs.compute_seconds) == (1.0, 0.0)
    assert told.exchange_seconds is not None
    assert theirs.exchange_seconds is not None
    assert theirs.exchange_seconds < 0.1 < 3.0 <= told.exchange_seconds
    assert told.step_seconds >= told.compute_seconds + told.exchange_seconds


def test_what_is_taken_of_memory_is_told_from_the_first_step_on_and_looked_at_once_a_second() -> None:
    crowd = Crowd(1, total=200)
    crowd.reach(90)
    told = [progress.memory.peak for progress in crowd.members[0].progress() if progress.memory]
    assert len(told) == len(crowd.members[0].progress()) >= 89
    assert told[0] == 1
    assert 1 < len(set(told)) < 10
    assert told == sorted(told)
