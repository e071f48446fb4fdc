"""All members get the same control records of a step and so decide alike: when to commit, when to stop."""

from __future__ import annotations

from typing import Any

import pytest
from easyscale.coordinator import ranges
from easyscale.pipeline import messages
from easyscale.pipeline.session import DEFAULT_COMMIT_SECONDS, Control, Decision, Session
from hypothesis import given
from hypothesis import strategies as st

GO_ON = Decision(commit=False, stop=None, final=False)


def session(slot: int = 0, members: int = 3, **settings: Any) -> Session:
    everybody = ranges.even(members, [f"w{i}" for i in range(members)])
    run = messages.Run(generation=4, members=everybody, slot=slot, step=0, base=messages.Base())
    return Session(run, **{"total": 100, "commit_every": 10, **settings})


def controls(*, members: int = 3, **said_by_slot_1: Any) -> list[Control]:
    return [Control(slot=slot, **(said_by_slot_1 if slot == 1 else {})) for slot in range(members)]


def test_a_step_like_any_other_goes_on() -> None:
    assert session().decide(5, controls(), 0.0) == GO_ON


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ({"pausing": True}, Decision(commit=True, stop="pause", final=True)),
        ({"leaving": True}, Decision(commit=False, stop="leave", final=False)),
        ({"next_generation": 5}, Decision(commit=False, stop="yield", final=False)),
        ({"next_generation": 4}, GO_ON),
        ({"commit": True}, Decision(commit=True, stop=None, final=False)),
        ({"leaving": True, "next_generation": 5}, Decision(commit=False, stop="leave", final=False)),
        ({"leaving": True, "pausing": True}, Decision(commit=True, stop="pause", final=True)),
    ],
)
def test_one_members_word_binds_everybody(said: dict[str, Any], decision: Decision) -> None:
    for slot in range(3):
        assert session(slot).decide(5, controls(**said), 0.0) == decision


def test_when_all_leave_the_state_is_committed_before_the_last_one_goes() -> None:
    everybody = [Control(slot=slot, leaving=True) for slot in range(3)]
    assert session().decide(5, everybody, 0.0) == Decision(commit=True, stop="leave", final=True)


def test_the_last_step_ends_the_job_whatever_else_is_wished() -> None:
    done = Decision(commit=True, stop="done", final=True)
    assert session().decide(100, controls(), 0.0) == done
    assert session().decide(100, controls(leaving=True, pausing=True, next_generation=9), 0.0) == done


@given(
    st.lists(
        st.builds(Control, slot=st.just(0), leaving=st.booleans(), pausing=st.booleans(), commit=st.booleans(),
                  next_generation=st.integers(0, 6)),
        min_size=3, max_size=3,
    ),
    st.integers(1, 100),
)  # fmt: skip
def test_members_decide_alike_whatever_each_of_them_wishes(said: list[Control], step: int) -> None:
    decisions = []
    for slot in range(3):
        member = session(slot)
        member.hear(messages.Leave() if slot else messages.Yield(generation=9))
        decisions.append(member.decide(step, said, 0.0))
    assert decisions[0] == decisions[1] == decisions[2]


def test_what_the_agent_says_is_told_to_the_others() -> None:
    member = session(1)
    assert member.control(5, 0.0, committer_idle=True) == Control(slot=1)
    member.hear(messages.Leave())
    assert member.control(5, 0.0, committer_idle=True) == Control(slot=1, leaving=True)
    member.hear(messages.Pause())
    member.hear(messages.Yield(generation=6))
    member.hear(messages.Yield(generation=5))
    said = Control(slot=1, leaving=True, pausing=True, next_generation=6)
    assert member.control(5, 0.0, committer_idle=True) == said, "the newest generation counts"


def test_a_newer_generation_alone_breaks_no_step() -> None:
    member = session()
    member.hear(messages.Yield(generation=5))
    assert not member.broken
    assert member.superseded


def test_a_lost_member_breaks_the_step_and_stays_lost() -> None:
    member = session()
    member.hear(messages.Yield(generation=5, lost=(2,)))
    member.hear(messages.Yield(generation=6))
    assert member.broken
    assert member.lost == {2}


def test_an_order_to_drop_breaks_the_step_and_cannot_be_taken_back() -> None:
    member = session()
    member.hear(messages.Yield(generation=4, drop=True))
    member.hear(messages.Yield(generation=4))
    assert member.broken
    assert member.superseded


def test_commits_by_steps_fall_on_multiples_wherever_a_generation_began() -> None:
    member = session(commit_every=10)
    due = [t + 1 for t in range(3, 40) if member.control(t, 0.0, committer_idle=True).commit]
    assert due == [10, 20, 30, 40]


def test_only_slot_0_calls_for_commits_and_only_when_the_last_one_is_written() -> None:
    assert not session(1).control(9, 0.0, committer_idle=True).commit
    assert not session(0).control(9, 0.0, committer_idle=False).commit
    assert session(0).control(9, 0.0, committer_idle=True).commit


@pytest.mark.parametrize("seconds", [None, 3.0])
def test_commits_by_seconds_count_from_the_last_one(seconds: float | None) -> None:
    every = seconds or DEFAULT_COMMIT_SECONDS
    member = session(commit_every=None, commit_seconds=seconds)
    member.began(1000.0)
    assert not member.control(1, 1000.0 + every - 0.1, committer_idle=True).commit
    assert member.control(1, 1000.0 + every, committer_idle=True).commit
    member.decide(2, controls(commit=True), 1000.0 + every)
    assert not member.control(2, 1000.0 + 2 * every - 0.1, committer_idle=True).commit
    assert member.control(2, 1000.0 + 2 * every, committer_idle=True).commit
