"""Which lane a generation uses: peers wherever nothing speaks against it, and never a mixture."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from easyscale.coordinator import lanes
from pictures import Story, worker_record

APART = [frozenset("ab")]


def workers(**changes: dict[str, Any]) -> dict[str, Any]:
    """Workers a, b and c that reach each other, but for these changes."""
    return {w: worker_record(w, **({"address": f"{w}:1"} | changes.get(w, {}))) for w in "abc"}


def test_those_who_reach_each_other_exchange_directly() -> None:
    assert lanes.choose("abc", workers(), ()) == "peer"


@pytest.mark.parametrize("change", [{"address": ""}, {"lane": "store"}, {"unreached": ("c",)}], ids=str)
def test_one_that_cannot_be_reached_brings_all_to_the_store(change: dict[str, Any]) -> None:
    alive = workers(b=change)
    assert {lanes.choose(order, alive, ()) for order in itertools.permutations("abc")} == {"store"}
    assert lanes.choose("ac", alive, ()) == "peer", "those who are not there do not matter"


def test_a_connection_that_broke_a_short_while_ago_is_not_tried_again_yet() -> None:
    assert lanes.choose("abc", workers(), APART) == "store"
    assert lanes.choose("ac", workers(), APART) == "peer"


def test_who_insists_on_peers_does_without_one_whose_connection_broke_a_short_while_ago() -> None:
    alive = workers(a={"lane": "peer"})
    fit, obstacle = lanes.fitting("abc", alive, APART)
    assert fit == ["a", "c"]
    assert obstacle == (
        "a insists on exchanging with peers (--lane peer), but the connection of a and b broke a short while ago"
    )
    assert lanes.choose(fit, alive, APART) == "peer"


def test_who_insists_on_peers_is_not_put_together_with_one_who_cannot() -> None:
    alive = workers(a={"lane": "peer"}, b={"lane": "store"})
    assert lanes.fitting("abc", alive, ()) == (
        ["a", "c"],
        "a insists on exchanging with peers (--lane peer), but b uses the object store only (--lane store)",
    )
    assert lanes.fitting("bca", alive, ())[0] == ["b", "c"], "those who are members already stay"
    assert lanes.choose("bc", alive, ()) == "store"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"address": ""}, "b has no address where peers could reach it"),
        ({"unreached": ("a",)}, "b cannot connect to a"),
    ],
)
def test_who_insists_is_told_what_is_in_the_way(change: dict[str, Any], why: str) -> None:
    fit, obstacle = lanes.fitting("abc", workers(a={"lane": "peer"}, b=change), ())
    assert fit == ["a", "c"]
    assert obstacle == f"a insists on exchanging with peers (--lane peer), but {why}"


def test_who_insists_serves_alone_whatever_it_can_do() -> None:
    assert lanes.fitting("a", workers(a={"lane": "peer", "address": ""}), ()) == (["a"], "")


def test_the_plan_names_the_lane(story: Story) -> None:
    for worker in "ab":
        story.worker(worker, "ready", address=f"{worker}:1")
    story.decide()
    plan = story.look().plan
    assert plan is not None
    assert plan.value.lane == "peer"


def test_the_plan_names_the_store_when_one_is_not_reached(story: Story) -> None:
    story.worker("a", "ready", address="a:1")
    story.worker("b", "ready")
    story.decide()
    plan = story.look().plan
    assert plan is not None
    assert plan.value.lane == "store"
