"""One flipped bit in one of several replicas: found, traced to its holder, and gone from the bits; real engines, played
workers, an object store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
import toys
from easyscale.coordinator import ranges
from easyscale.errors import DivergenceError, UnavailableError, WrongReplicaError
from easyscale.pipeline import determinism, messages
from easyscale.pipeline.contribution import Contribution
from easyscale.pipeline.generation import Generation
from easyscale.pipeline.lanes import StoreLane
from easyscale.pipeline.session import Session
from easyscale.storage import sums
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from easyscale.pipeline.engine import Engine

SPEC = toys.spec(ests=4, batch_size=3, buffers="rank0", ema=0.9)
CHECK, TOTAL = 5, 24


class Commits:
    """What is remembered of steps; the initial state is the only commit."""

    def __init__(self) -> None:
        self.base, self.idle, self.history, self.begun = messages.Base(), True, {}, []

    def record(self, report: Any) -> None:
        self.history[report.step + 1] = msgspec.json.encode(report)

    def begin(self, metrics: dict[str, float], *, publish: bool, share: tuple[int, int]) -> None:
        self.begun.append(share)

    def settled(self, step: int) -> bool:
        return True


class Member:
    """A replica and its generation. `spoil(engine)` is called whenever it is about to wait for something."""

    def __init__(
        self, store: MemoryStore, slot: int, members: int, spoil: Callable[[Engine], None] | None, audit_every: int
    ) -> None:
        run = messages.Run(
            generation=1, members=ranges.even(4, [f"w{i}" for i in range(members)]), slot=slot, step=0,
            base=messages.Base(),
        )  # fmt: skip
        self.engine, self.commits, self.spoil, self.restored = toys.engine(toys.cnn, SPEC), Commits(), spoil, 0
        self.said: list[messages.FromRunner] = []
        self.away = 0
        lane = StoreLane(store, "job", run, Contribution.from_bytes)
        session = Session(run, TOTAL, commit_every=1000, check_every=CHECK, audit_every=audit_every)
        self.generation = Generation(
            session, self.engine, lane, self.commits, self.said.append, lambda: 0.0, 12, self.restore
        )
        self.steps = self.generation.run()
        self.end: Any = None

    def restore(self, base: messages.Base, doubted: int) -> None:
        assert doubted == self.engine.step
        if self.away:
            self.away -= 1
            raise UnavailableError("the store is away")
        assert base == messages.Base()
        self.restored += 1
        self.engine.load_state(toys.engine(toys.cnn, SPEC).state())

    def go(self) -> None:
        if self.end is not None:
            return
        if self.spoil:
            self.spoil(self.engine)
        try:
            next(self.steps)
        except StopIteration as end:
            self.end = end.value
        except (WrongReplicaError, DivergenceError) as error:
            self.end = error


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    determinism.configure(1)


def run(members: int, wrong: int | None, spoil: Callable[[Engine], None] | None, audit_every: int = 0) -> list[Member]:
    """All members to their ends; `spoil` happens to one of them."""
    store = MemoryStore()
    crowd = [Member(store, slot, members, spoil if slot == wrong else None, audit_every) for slot in range(members)]
    for _ in range(4000):
        for member in crowd:
            member.go()
        if all(member.end is not None for member in crowd):
            return crowd
    raise AssertionError([(member.engine.step, member.end) for member in crowd])


def undisturbed(step: int) -> str:
    """The digest of the state that so many steps lead to."""
    alone = toys.engine(toys.cnn, SPEC)
    for _ in range(step):
        alone.run_local()
    return toys.digest(alone)


def history(steps: int) -> list[bytes]:
    """What is recorded of these steps."""
    alone = toys.engine(toys.cnn, SPEC)
    return [msgspec.json.encode(alone.run_local()) for _ in range(steps)]


def flip(tensor: torch.Tensor, bit: int = 28) -> None:
    """One bit of the first element, in place."""
    tensor.detach().reshape(-1).view(torch.int32)[0] ^= 1 << bit


def once_at(step: int, find: Callable[[Engine], torch.Tensor]) -> Callable[[Engine], None]:
    """Flip a bit of what `find` gives, at the first wait in which this many steps are done."""
    done: list[int] = []

    def spoil(engine: Engine) -> None:
        if engine.step == step and not done:
            done.append(step)
            flip(find(engine))

    return spoil


def parameter(engine: Engine) -> torch.Tensor:
    return engine.state()["model"]["parameters"]["6.weight"]


def moment(engine: Engine) -> torch.Tensor:
    return next(iter(engine.state()["optimizer"]["state"].values()))["momentum_buffer"]


def average(engine: Engine) -> torch.Tensor:
    return engine.state()["ema"]["0.weight"]


def buffer(engine: Engine) -> torch.Tensor:
    return engine.state()["model"]["buffers"]["1.running_mean"]


def test_replicas_that_are_equal_come_to_the_end_and_recompute_nothing() -> None:
    crowd = run(3, None, None, audit_every=7)
    assert [member.end.reason for member in crowd] == ["done"] * 3
    assert [member.restored for member in crowd] == [0, 0, 0]
    assert {toys.digest(member.engine) for member in crowd} == {undisturbed(TOTAL)}


@pytest.mark.parametrize(
    ("members", "wrong", "find", "step"),  # step 6: long before it is found, when partials of it have spread
    [
        (2, 0, parameter, 6),
        (2, 1, moment, 6),
        (2, 0, average, 6),
        (2, 1, parameter, 10),
        (2, 0, moment, 10),
        (3, 1, parameter, 6),
        (3, 0, moment, 6),
        (3, 2, average, 10),
    ],
)
def test_fault_45_a_flipped_bit_is_found_traced_and_gone(
    members: int, wrong: int, find: Callable[[Engine], torch.Tensor], step: int
) -> None:
    crowd = run(members, wrong, once_at(step, find))
    culprit = crowd.pop(wrong)
    assert isinstance(culprit.end, WrongReplicaError), culprit.end
    assert "step 10: the states of" in str(culprit.end)
    if step == 10:
        kind = {parameter: "model/parameters/6.weight", moment: "optimizer/state/0/momentum_buffer"}
        assert f"{kind.get(find, 'ema/0.weight')}: " in str(culprit.end)
    for member in crowd:
        assert member.end == messages.Idle(generation=1, held=10, reason="yield")
        assert toys.digest(member.engine) == undisturbed(10), "right, although wrong partials had spread"
        assert [member.commits.history[t] for t in range(1, 11)] == history(10), "what is told of the steps, too"


def test_fault_45_a_flipped_buffer_is_found_before_it_is_used() -> None:
    crowd = run(2, 1, once_at(5, buffer))
    assert isinstance(crowd[1].end, WrongReplicaError)
    assert "model/buffers/1.running_mean: " in str(crowd[1].end)
    assert toys.digest(crowd[0].engine) == undisturbed(5)


def test_fault_45_what_flips_after_the_last_check_is_found_before_the_state_is_committed() -> None:
    crowd = run(2, 1, once_at(TOTAL - 1, parameter))
    assert isinstance(crowd[1].end, WrongReplicaError)
    assert crowd[0].end == messages.Idle(generation=1, held=TOTAL, reason="yield")
    assert toys.digest(crowd[0].engine) == undisturbed(TOTAL)
    assert [member.commits.begun for member in crowd] == [[], []]


def test_fault_45_the_averaged_gradient_of_one_worker() -> None:
    def spoil(engine: Engine) -> None:
        if engine.step == 7 and not hasattr(engine, "_scattered"):
            scatter = engine._scattered = engine._layout.scatter

            def spoiled(flat: Any, used: bytes) -> None:
                flip(flat.flat[0])
                engine._layout.scatter = scatter
                scatter(flat, used)

            engine._layout.scatter = spoiled

    crowd = run(3, 2, spoil)
    assert isinstance(crowd[2].end, WrongReplicaError)
    for member in crowd[:2]:
        assert toys.digest(member.engine) == undisturbed(10)


def wrong_gradients(times: int, from_step: int) -> Callable[[Engine], None]:
    """The first `times` backward passes from this step on come to something else."""
    left = [times]

    def spoil(engine: Engine) -> None:
        if engine.step < from_step or hasattr(engine, "_real"):
            return
        engine._real = engine._run

        def run(est: int, pieces: Any) -> Any:
            losses = engine._real(est, pieces)
            if left[0]:
                left[0] -= 1
                flip(engine._layout.parameters[0].grad)
            return losses

        engine._run = run

    return spoil


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_gradient_is_found_by_the_audit_before_it_is_applied(members: int, wrong: int) -> None:
    run_of = messages.Run(
        generation=1, members=ranges.even(4, ["a", "b", "c"][:members]), slot=0, step=0, base=messages.Base()
    )
    est = Session(run_of, TOTAL, audit_every=7).audited(wrong, 7)
    assert est is not None
    before = est - run_of.members[wrong].first
    crowd = run(members, wrong, wrong_gradients(before + 1, 7), audit_every=7)
    culprit = crowd.pop(wrong)
    assert isinstance(culprit.end, WrongReplicaError), culprit.end
    assert f"step 7: the gradient of EST {est} was computed with different results; 0.weight: " in str(culprit.end)
    for member in crowd:
        assert member.end == messages.Idle(generation=1, held=7, reason="yield")
        assert toys.digest(member.engine) == undisturbed(7)


def test_an_auditor_in_the_wrong_is_found_as_well() -> None:
    calls: list[int] = []

    def once(engine: Engine) -> None:
        if not hasattr(engine, "_theirs"):
            engine._theirs = engine.gradient_sums

            def wrongly(est: int) -> bytes:
                calls.append(est)
                right = engine._theirs(est)
                return bytes([right[0] ^ 1]) + right[1:] if len(calls) == 2 else right  # step 0's, step 7's, afresh

            engine.gradient_sums = wrongly

    crowd = run(2, 1, once, audit_every=7)
    assert len(calls) == 3
    assert isinstance(crowd[1].end, WrongReplicaError)
    assert crowd[0].end == messages.Idle(generation=1, held=7, reason="yield")


def wrong_updates(from_step: int) -> Callable[[Engine], None]:
    """Every averaged gradient from this step on is another, also when the step is computed again."""

    def spoil(engine: Engine) -> None:
        if engine.step < from_step or hasattr(engine, "_scattered"):
            return
        scatter = engine._scattered = engine._layout.scatter

        def spoiled(flat: Any, used: bytes) -> None:
            if engine.step >= from_step:
                flip(flat.flat[0])
            scatter(flat, used)

        engine._layout.scatter = spoiled

    return spoil


@pytest.mark.parametrize(("spoil", "audit_every"), [(wrong_updates(8), 0), (wrong_gradients(10**9, 8), 7)])
def test_of_two_that_differ_again_and_again_nobody_can_tell_who_is_right(
    spoil: Callable[[Engine], None], audit_every: int
) -> None:
    crowd = run(2, 1, spoil, audit_every)
    for member in crowd:
        assert isinstance(member.end, DivergenceError), member.end
        assert "nobody can tell which is right" in str(member.end)
    assert "0.weight" in str(crowd[0].end)
    assert str(crowd[0].end) == str(crowd[1].end)


def test_of_three_one_that_is_wrong_again_and_again_is_outvoted() -> None:
    crowd = run(3, 1, wrong_updates(8))
    assert isinstance(crowd[1].end, WrongReplicaError)
    for member in (crowd[0], crowd[2]):
        assert member.end == messages.Idle(generation=1, held=10, reason="yield")
        assert toys.digest(member.engine) == undisturbed(10)


def low_bit() -> Callable[[Engine], None]:
    """Of one weight: hardly a loss shows it, but it has spread to both states before they are compared."""
    done: list[int] = []

    def spoil(engine: Engine) -> None:
        if engine.step == 6 and not done:
            done.append(6)
            flip(parameter(engine), bit=14)

    return spoil


def test_a_low_bit_of_a_weight_is_traced_after_it_has_spread() -> None:
    crowd = run(2, 1, low_bit())
    assert isinstance(crowd[1].end, WrongReplicaError)
    assert crowd[0].end == messages.Idle(generation=1, held=10, reason="yield")
    assert toys.digest(crowd[0].engine) == undisturbed(10)


def test_what_cannot_be_traced_is_undone_all_the_same_and_nobody_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "sample_sum", lambda *_: b"")
    crowd = run(2, 1, low_bit())
    assert [(member.end.reason, member.restored) for member in crowd] == [("done", 1)] * 2
    assert {toys.digest(member.engine) for member in crowd} == {undisturbed(TOTAL)}


def test_gradients_of_states_that_were_undone_are_not_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "sample_sum", lambda *_: b"")
    crowd = run(2, 1, low_bit(), audit_every=10)
    assert [(member.end.reason, member.restored) for member in crowd] == [("done", 1)] * 2
    assert {toys.digest(member.engine) for member in crowd} == {undisturbed(TOTAL)}


def test_a_gradient_from_a_wrong_state_is_no_matter_for_the_audit() -> None:
    """The states are looked at first: else it would be two against two."""
    crowd = run(2, 1, once_at(6, parameter), audit_every=7)
    assert isinstance(crowd[1].end, WrongReplicaError)
    assert "step 7: the states of 2 workers differ" in str(crowd[1].end)
    assert toys.digest(crowd[0].engine) == undisturbed(7)


@pytest.mark.parametrize("seen", ["that states differ", "a commit"])
def test_who_knows_of_a_difference_recomputes_alone_when_the_others_are_lost_before_the_verdict(seen: str) -> None:
    store = MemoryStore()
    crowd = [Member(store, slot, 2, once_at(6, parameter) if slot == 0 else None, 0) for slot in range(2)]
    culprit, member = crowd
    for _ in range(4000):
        culprit.go()
        member.go()
        if messages.Computing(what="replay") in member.said and (seen == "that states differ" or member.restored):
            break
    assert member.restored == (seen == "a commit")
    member.generation.session.hear(messages.Yield(generation=2, lost=(0,)))
    while member.end is None:
        member.go()
    assert member.end == messages.Idle(generation=1, held=10, reason="yield")
    assert toys.digest(member.engine) == undisturbed(10)
    assert [member.commits.history[t] for t in range(1, 11)] == history(10)
    assert not member.generation.holding.own, "others may hold another state: this one is not to blame"


def test_a_store_that_is_away_while_the_commit_is_read_is_waited_for() -> None:
    store = MemoryStore()
    crowd = [Member(store, slot, 2, once_at(6, parameter) if slot == 0 else None, 0) for slot in range(2)]
    crowd[1].away = 3
    for _ in range(4000):
        for member in crowd:
            member.go()
    assert isinstance(crowd[0].end, WrongReplicaError)
    assert crowd[1].end == messages.Idle(generation=1, held=10, reason="yield")
    assert toys.digest(crowd[1].engine) == undisturbed(10)


def test_without_checks_the_first_step_of_a_generation_is_one() -> None:
    run_of = messages.Run(generation=1, members=ranges.even(4, ["a", "b"]), slot=0, step=3, base=messages.Base())
    assert [step for step in range(3, 30) if Session(run_of, TOTAL).checks(step)] == [3]


def test_sums_that_differ_where_the_states_do_not_are_no_difference() -> None:
    def spoil(engine: Engine) -> None:
        engine.sums = lambda: b"another NaN"  # type: ignore[method-assign]

    crowd = run(2, 1, spoil)
    assert [(member.end.reason, member.restored) for member in crowd] == [("done", 0)] * 2
