"""A commit becomes the head in one transaction that depends on plan, claim and head; whoever is fenced off hears so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from desk import Desk, sent
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Compare, Put, absent
from easyscale.pipeline import messages
from easyscale.pipeline.actions import Write

if TYPE_CHECKING:
    from easyscale.coordinator.transactions import Outcome


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- publishing


PUBLISH = messages.Publish(step=8, manifest="m8", state_digest="s8", parent=None, metrics={"accuracy": 0.5})


def test_a_publish_depends_on_the_plan_the_claim_and_the_head(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    job = desk.look()
    (write, *_) = desk.agent.decide("job", job, desk.now)
    assert isinstance(write, Write)
    assert job.plan is not None
    assert set(write.txn.compares) == {
        Compare(keys.plan("job"), "mod", job.plan.kv.mod_revision),
        Compare(keys.claim("job", 1, 0), "create", job.claims[0].kv.create_revision),
        absent(keys.head("job")),
    }
    head = records.Head(step=8, manifest="m8", state_digest="s8", generation=1, metrics={"accuracy": 0.5})
    assert write.txn.operations == (Put(keys.head("job"), records.encode(head)),)


@pytest.mark.parametrize("meanwhile", ["plan", "claim", "head"])
def test_a_publish_is_refused_by_the_store_if_any_of_them_changes_meanwhile(desk: Desk, meanwhile: str) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    (write, *_) = desk.agent.decide("job", desk.look(), desk.now)
    assert isinstance(write, Write)
    if meanwhile == "plan":
        desk.plan(2, "b")
    elif meanwhile == "claim":
        desk.delete(keys.claim("job", 1, 0))
        desk.claim(0, 0, worker="me")
    else:
        desk.head(4)
    assert not desk.kv.txn(write.txn.compares, write.txn.operations).succeeded


@pytest.mark.parametrize("outcome", ["yes", "unknown"])
def test_the_next_picture_tells_how_a_publish_ended(desk: Desk, outcome: Outcome) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.outcome = outcome
    assert desk.wrote(desk.act()) == ["publish"]
    desk.outcome = "yes"
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=8, manifest="m8"))]
    assert desk.act() == []


def test_a_publish_without_effect_is_tried_again(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.outcome = "no"
    for _ in range(3):
        assert desk.wrote(desk.act()) == ["publish"]
    desk.outcome = "yes"
    assert desk.wrote(desk.act()) == ["publish"]
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=8, manifest="m8"))]


def test_who_is_no_member_any_more_is_fenced_off(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.plan(2, "b")
    (told, refused) = sorted(sent(desk.act()), key=lambda message: isinstance(message, messages.Refused))
    assert isinstance(told, messages.Yield)
    assert refused == messages.Refused(step=8, reason="fenced: this worker has no claim in generation 2")
    assert desk.look().head is None


def test_who_lost_its_claim_with_its_lease_is_fenced_off(desk: Desk) -> None:
    desk.running("b")
    desk.lose_lease()
    desk.hold_lease()
    desk.tell(PUBLISH)
    assert sent(desk.act()) == [messages.Refused(step=8, reason="fenced: this worker has no claim in generation 1")]


def test_a_claim_of_somebody_else_in_my_slot_is_not_mine(desk: Desk) -> None:
    desk.running("b")
    desk.claim(0, 0, worker="impostor")
    desk.tell(PUBLISH)
    (refused,) = sent(desk.act())
    assert isinstance(refused, messages.Refused)


def test_a_member_of_a_newer_generation_publishes_under_it_once_it_has_claimed(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.plan(2, "me", "b")
    assert sent(desk.act()) == [messages.Yield(generation=2)]
    assert desk.wrote(desk.act()) == [], "it waits"
    desk.tell(messages.Idle(generation=1, held=9, reason="yield"))
    assert desk.wrote(desk.act()) == ["claim"]
    assert desk.wrote(desk.act()) == ["publish"]
    head = desk.look().head
    assert head is not None
    assert (head.value.step, head.value.generation) == (8, 2)


def test_a_head_that_moved_is_named_as_the_new_parent(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.head(4)
    moved = messages.Base(step=4, manifest="m4")
    assert sent(desk.act()) == [messages.Refused(step=8, reason="the head moved", moved=moved)]


@pytest.mark.parametrize(("step", "manifest"), [(8, "theirs"), (12, "m12")])
def test_what_somebody_else_published_meanwhile_is_good_enough(desk: Desk, step: int, manifest: str) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.head(step, manifest)
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=step, manifest=manifest))]


def test_a_damaged_head_is_replaced_by_a_commit_of_the_same_step(desk: Desk) -> None:
    desk.running("b")
    desk.head(8, "bad")
    desk.damage("bad", 0)
    desk.tell(PUBLISH)
    assert desk.wrote(desk.act()) == ["publish"]
    head = desk.look().head
    assert head is not None
    assert head.value.manifest == "m8"


def test_a_damaged_head_is_replaced_by_any_commit_newer_than_its_usable_ancestor(desk: Desk) -> None:
    """Waiting for the damaged step to come round again would leave the job without a head that can be read."""
    desk.running("b")
    desk.head(12, "bad")
    desk.damage("bad", 0)
    desk.tell(PUBLISH)
    assert desk.wrote(desk.act()) == ["publish"]
    assert sent(desk.act()) == [messages.Published(base=messages.Base(step=8, manifest="m8"))]


def test_a_commit_that_is_found_damaged_as_soon_as_it_is_the_head_is_made_again(desk: Desk) -> None:
    desk.running("b")
    desk.tell(PUBLISH)
    desk.head(8, "m8")
    desk.damage("m8", 0)
    moved = messages.Base(damaged=True)
    assert sent(desk.act()) == [messages.Refused(step=8, reason="the head moved", moved=moved)]


# ---- damage


def test_damage_is_written_for_the_coordinator_once(desk: Desk) -> None:
    desk.running("b")
    desk.head(8)
    usable = messages.Base(step=4, manifest="m4")
    desk.tell(messages.Damaged(manifest="m8", usable=usable, found=("pack gone",)))
    assert desk.wrote(desk.act()) == ["damage"]
    assert desk.look().base == (4, "m4")
    assert desk.act() == []


def test_damage_of_another_head_with_the_same_usable_ancestor_is_news(desk: Desk) -> None:
    """A head that was written again over a blob that stayed damaged: nobody must wait for it for ever."""
    desk.running("b")
    desk.head(8, "again")
    desk.damage("m8", 0)
    desk.tell(messages.Damaged(manifest="again", usable=messages.Base(), found=("pack gone",)))
    assert desk.wrote(desk.act()) == ["damage"]
    assert desk.look().base == (0, None)


def test_damage_of_what_is_not_the_head_any_more_is_forgotten(desk: Desk) -> None:
    desk.running("b")
    desk.head(12)
    desk.tell(messages.Damaged(manifest="m8", usable=messages.Base(), found=("pack gone",)))
    assert desk.act() == []
    assert desk.look().damage is None
