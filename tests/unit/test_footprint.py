"""What a runner takes of its device's memory, and what its agent makes of having run out of it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
import toys
from desk import READY, Desk
from easyscale.coordinator import records
from easyscale.pipeline import determinism, footprint, messages
from easyscale.pipeline.devices import memory_bytes
from easyscale.pipeline.training import Training
from pictures import SPEC, worker_record

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def one_thread() -> None:
    determinism.configure(1)


class Kept:
    """A user's object of which every EST has its own."""

    def __init__(self) -> None:
        self.state = {"tensor": torch.zeros(SIZE), "number": 7}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def with_buffer(**more: Any) -> Training:
    """A linear layer with a buffer of 4 MiB."""
    plain = toys.linear()
    plain.model.register_buffer("kept", torch.zeros(SIZE))
    return Training(model=plain.model, optimizer=plain.optimizer, dataset=plain.dataset, step=plain.step, **more)


@pytest.mark.parametrize(
    ("build", "settings", "est"),
    [
        (toys.linear, {}, 0),
        (with_buffer, {"buffers": "per_est"}, 4 * SIZE),
        (with_buffer, {"buffers": "rank0"}, 0),
    ],
)
def test_one_est_more_takes_the_buffers_that_it_has_of_its_own(
    build: Callable[[], Training], settings: dict[str, Any], est: int
) -> None:
    replica = toys.engine(build, toys.spec(ests=4, **settings))
    assert replica.footprint() is None, "it has computed nothing yet"
    for ests in (range(1), range(1, 4), range(2)):
        replica.compute(ests)
    found = replica.footprint()
    assert found is not None
    assert (found.ests, found.est) == (3, est)
    assert 0 <= footprint.peak_bytes(torch.device("cpu")) - found.peak < 1 << 20, "it was asked a moment later"


def test_what_a_user_keeps_per_est_counts() -> None:
    job = toys.spec(ests=2, buffers="per_est")
    replica = toys.engine(lambda: with_buffer(est_state={"kept": Kept()}), job)
    replica.compute(range(1))
    found = replica.footprint()
    assert found is not None
    assert found.est == 8 * SIZE


def test_the_peak_of_a_process_is_what_it_had_at_most() -> None:
    code = (
        "import torch; from easyscale.pipeline.footprint import peak_bytes; cpu = torch.device('cpu')\n"
        "before = peak_bytes(cpu); held = torch.ones(before // 4); after = peak_bytes(cpu); del held\n"
        "print(before, after, peak_bytes(cpu))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after, then = map(int, ran.stdout.split())
    assert before > 1 << 20
    assert after > 1.2 * before
    assert then > 0.9 * after, "also when it has been given back; the kernel counts pages roughly"


def test_a_device_that_does_not_say_what_is_taken_of_it_has_no_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 0)
    assert footprint.measured(torch.device("cuda:0"), 3, 5) is None
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 70)
    assert footprint.measured(torch.device("cuda:0"), 3, 5) == records.Footprint(peak=70, ests=3, est=5)


# ---- running out of it


def ran_out(desk: Desk, *others: str, est: int = GIB, memory: int = 16 * GIB) -> None:
    """The runner, member of a job of four ESTs, says so in the middle of a step."""
    desk.agent.me = worker_record("me", memory=memory)
    desk.running(*others)
    told = records.Footprint(peak=4 * GIB, ests=4, est=est)
    desk.tell(messages.Stepped(progress=records.Progress(step=4, generation=1, memory=told)))
    desk.tell(messages.Failed(cause="memory", step=5, message="out of memory at step 5"))
    desk.agent.on_exit("exited with status 1")
    desk.act()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_who_ran_out_of_memory_is_tried_again_with_half_of_its_ests(desk: Desk) -> None:
    ran_out(desk)
    me = desk.view().workers["me"].value
    assert (me.rooms, me.refusals) == ({SPEC: 2}, {})
    assert desk.look().reports["me"].value.cause == "memory"


@pytest.mark.parametrize(
    ("others", "told"),
    [(("a", "b", "c"), {}), ((), {"est": 0}), ((), {"est": 1 << 20})],
    ids=["it had only one", "ESTs take nothing", "ESTs take next to nothing"],
)
def test_where_fewer_ests_would_not_help_the_job_is_refused(
    desk: Desk, others: tuple[str, ...], told: dict[str, int]
) -> None:
    ran_out(desk, *others, **told)
    me = desk.view().workers["me"].value
    assert (me.rooms, me.refusals) == ({}, {SPEC: "out of memory at step 5"})


def test_who_runs_out_in_its_first_step_is_judged_by_what_it_took_while_it_prepared(desk: Desk) -> None:
    desk.agent.me = worker_record("me", memory=16 * GIB)
    desk.running()
    desk.tell(msgspec.structs.replace(READY, memory=records.Footprint(peak=2 * GIB, ests=1, est=GIB)))
    desk.tell(messages.Failed(cause="memory", step=0, message="out of memory at step 0"))
    desk.agent.on_exit("exited with status 1")
    desk.act()
    assert desk.view().workers["me"].value.rooms == {SPEC: 2}


def test_who_runs_out_while_it_prepares_refuses_the_job(desk: Desk) -> None:
    desk.prepared()
    desk.tell(READY)
    desk.tell(messages.Failed(cause="memory", step=0, message="out of memory at step 0"))
    desk.agent.on_exit("exited with status 1")
    desk.act()
    assert desk.view().workers["me"].value.refusals == {SPEC: "out of memory at step 0"}


# ---- devices


def test_a_device_without_a_driver_has_the_machines_memory() -> None:
    assert memory_bytes("cpu") > 1 << 20
    assert memory_bytes("cuda:99") == memory_bytes("cpu")
