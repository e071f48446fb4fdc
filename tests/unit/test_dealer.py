"""Workers dealt out by a policy: who comes to an end soonest has them, of the right kind, and gives them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import records
from easyscale.coordinator.keys import rates as rates_key
from easyscale.coordinator.scheduling.market import Market
from easyscale.coordinator.scheduling.policies import named
from pictures import SOON, SPEC, Story, status_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from easyscale.coordinator.scheduling.jobs import Job
    from easyscale.coordinator.scheduling.policy import Plan

OTHER = "6" * 64


class Watched:
    """A policy that remembers what it was asked."""

    name, rigid, at_once, every = "watched", False, True, 600.0

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, int], list[Job]]] = []
        self._market = Market()

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        self.asked.append((dict(capacity), list(jobs)))
        return self._market.plan(capacity, jobs, now)


def told(policy: Any = None, **job: Any) -> Story:
    story = Story(policy=policy or Market())
    story.job(**job)
    return story


def assigned(story: Story, name: str = "job") -> set[str]:
    return {worker for worker, entry in story.view().assigned.items() if entry.value == name}


def learned(story: Story, name: str, spec: str, **est: float) -> None:
    found = {kind: records.Rate(seconds) for kind, seconds in est.items()}
    story.put(rates_key(name), records.Rates(spec=spec, kinds=found))


def test_a_job_has_what_makes_it_faster_and_no_more() -> None:
    story = told(ests=4)
    for worker in "abc":
        story.worker(worker, "idle", None)
    story.decide()
    assert assigned(story) == {"a", "b"}, "with three, the slowest would have two ESTs all the same"
    story.worker("d", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a", "b", "c", "d"}


def test_a_short_job_takes_the_workers_of_a_long_one_and_gives_them_back() -> None:
    story = told(steps=100_000)
    story.running("a", "b", held=10)
    story.job("short", spec=OTHER, steps=20)
    lines = story.decide(SOON)
    assert "a -> short" in lines
    assert "b -> short" in lines
    story.status("short", state="done")
    for worker in "ab":
        story.worker(worker, "ready", "job")
    story.decide(SOON)
    assert assigned(story) == {"a", "b"}


def test_a_job_of_higher_priority_has_all_that_it_can_use() -> None:
    story = told(steps=10)
    story.job("urgent", spec=OTHER, steps=100_000, priority=1, max_workers=1)
    for worker in "ab":
        story.worker(worker, "idle", None)
    story.decide()
    assert len(assigned(story, "urgent")) == 1
    assert len(assigned(story)) == 1


def test_what_is_guaranteed_to_a_job_is_its_own() -> None:
    story = told(steps=100_000, guaranteed_workers=1)
    story.job("short", spec=OTHER, steps=20)
    for worker in "ab":
        story.worker(worker, "idle", None)
    story.decide()
    assert len(assigned(story)) == len(assigned(story, "short")) == 1


def test_tenants_have_the_same_share() -> None:
    story = told(ests=4, steps=100_000, tenant="patient")
    for place in range(4):
        story.job(f"short{place}", spec=OTHER, ests=4, steps=100, tenant="busy")
    for worker in "abcd":
        story.worker(worker, "idle", None)
    story.decide()
    assert len(assigned(story)) == 2


def test_who_has_to_wait_says_why() -> None:
    story = told(steps=10)
    story.job("urgent", spec=OTHER, priority=1)
    story.worker("a", "idle", None)
    story.decide()
    assert status_of(story).waits_for == "more"
    why = "it is not its turn: by policy easyscale, the 1 worker(s) here serve other jobs first"
    assert status_of(story).reason == why


def test_who_waits_for_workers_that_would_never_serve_it_is_not_told_that_its_turn_will_come() -> None:
    story = told()
    story.worker("a", "idle", None, only="other")
    story.decide()
    why = "needs 1 worker(s), and 0 of the 1 here would serve it; a: it serves 'other' only (--only)"
    assert status_of(story).reason == why


def test_who_serves_a_pipeline_only_serves_its_stages_and_no_job_of_a_name_like_theirs() -> None:
    story = told(ests=1)
    story.worker("a", "idle", None, only="p")
    story.job("p.stage", ests=1, pipeline="p")
    story.job("p.like", ests=1)
    story.job("other.stage", ests=1, pipeline="other")
    story.decide()
    assert {worker: entry.value for worker, entry in story.view().assigned.items()} == {"a": "p.stage"}


def test_each_kind_goes_to_the_job_for_which_it_makes_a_difference() -> None:
    story = told(ests=1, steps=1000)
    story.job("indifferent", spec=OTHER, ests=1, steps=1000)
    learned(story, "job", SPEC, old=10.0, new=1.0)
    learned(story, "indifferent", OTHER, old=1.1, new=1.0)
    story.worker("a", "idle", None, kind="new")
    story.worker("b", "idle", None, kind="old")
    story.decide()
    assert assigned(story) == {"a"}
    assert assigned(story, "indifferent") == {"b"}


def test_a_job_of_which_nothing_is_known_is_taken_for_quick_so_that_it_is_measured() -> None:
    story = told(ests=2, steps=100_000)
    learned(story, "job", SPEC, cpu=0.01)
    story.running("a", "b", held=10)
    story.job("new", spec=OTHER, ests=2, steps=10_000)
    story.decide(SOON)
    assert assigned(story, "new") == {"a", "b"}
    learned(story, "new", OTHER, cpu=1.0)
    story.decide(SOON)
    assert assigned(story, "new") == set(), "it would take ten times as long"


def test_probes_tell_a_policy_which_kinds_are_faster_for_a_job_and_not_how_long_it_takes() -> None:
    policy = Watched()
    story = told(policy, ests=4, numerics="exact")
    learned(story, "job", SPEC, old=0.01)
    story.job("new", spec=OTHER, ests=4, numerics="exact")
    for worker, kind, seconds in (("a", "old", 8.0), ("b", "newer", 2.0)):
        story.worker(worker, "idle", None, kind=kind, probes={SPEC: seconds, OTHER: seconds / 2})
    story.decide()
    seen = {job.name: {kind: pace.est for kind, pace in job.shape.rates.paces} for job in policy.asked[-1][1]}
    assert seen == {"job": {"old": 0.01, "newer": 0.0025}, "new": {"old": 0.04, "newer": 0.01}}


@pytest.mark.parametrize(("numerics", "kinds"), [("native", 1), ("exact", 2)])
def test_devices_of_several_kinds_serve_one_job_only_if_its_bits_are_the_same_on_all(numerics: str, kinds: int) -> None:
    story = told(ests=4, numerics=numerics)
    learned(story, "job", SPEC, old=1.2, new=1.0)
    for worker, kind in (("a", "new"), ("b", "new"), ("c", "old"), ("d", "old")):
        story.worker(worker, "idle", None, kind=kind)
    story.decide()
    here = story.view().workers
    assert len({here[worker].value.kind for worker in assigned(story)}) == kinds


@pytest.mark.parametrize("policy", ["easyscale", "paper"])
@pytest.mark.parametrize("least", [1, 3])
def test_a_worker_that_serves_one_job_only_is_of_the_same_class_as_its_like(policy: str, least: int) -> None:
    story = told(named(policy), ests=3, numerics="native", steps=100_000, min_workers=least)
    story.job("other", spec=OTHER, ests=1, steps=10, max_workers=1)
    for worker, only in (("a", "job"), ("b", None), ("c", "job"), ("d", None)):
        story.worker(worker, "idle", None, only=only)
    story.decide()
    for _ in range(14):  # two rounds: in each, a job grows once
        story.beat()
        story.decide(10.0)
    assert len(assigned(story)) == 3
    if policy == "easyscale":  # the paper's knows nothing better than to take them as they come
        assert len(assigned(story, "other")) == 1


def test_a_job_has_as_many_devices_as_its_memory_takes_and_none_without_room() -> None:
    story = told(ests=8, steps=10)
    story.job("other", spec=OTHER, ests=1, steps=10_000)
    rate = records.Rate(1.0, 0.0, memory=1000, est_bytes=100)
    story.put(rates_key("job"), records.Rates(spec=SPEC, kinds={"big": rate, "small": rate}))
    story.worker("a", "idle", None, kind="big", memory=1500)
    story.worker("b", "idle", None, kind="big", memory=1500)
    story.worker("c", "idle", None, kind="small", memory=1000)
    story.decide()
    assert assigned(story) == set(), "two of them have room for six"
    assert len(assigned(story, "other")) == 1
    story.worker("d", "idle", None, kind="big", memory=1510)
    story.decide(SOON)
    assert assigned(story) == {"a", "b", "d"}, "they are all that have any"


def test_devices_of_a_model_with_different_memory_are_of_different_kinds() -> None:
    story = told(ests=8, steps=10, numerics="native")
    rate = records.Rate(1.0, 0.0, memory=1000, est_bytes=100)
    story.put(rates_key("job"), records.Rates(spec=SPEC, kinds={"cpu": rate}))
    story.worker("a", "idle", None, memory=1300)
    story.worker("b", "idle", None, memory=9000)
    story.decide()
    assert assigned(story) == {"a", "b"}, "the one with little memory says nothing of the other's, and is of its class"


def test_who_has_no_memory_for_a_job_does_not_count_as_waiting_for_its_turn() -> None:
    story = told(ests=8)
    rate = records.Rate(1.0, 0.0, memory=1000, est_bytes=100)
    story.put(rates_key("job"), records.Rates(spec=SPEC, kinds={"cpu": rate}))
    story.worker("a", "idle", None, memory=1500)
    story.worker("b", "idle", None, memory=1000)
    story.decide()
    why = "not enough memory for its 8 ESTs: a has room for 3 in 1.46 KiB, b has room for none in 1000 bytes"
    assert (status_of(story).waits_for, status_of(story).reason) == ("more", why)


def test_fewer_than_its_least_are_none() -> None:
    story = told(min_workers=3)
    story.worker("a", "idle", None)
    story.worker("b", "idle", None)
    story.decide()
    assert assigned(story) == set()
    story.worker("c", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a", "b", "c"}


def test_who_serves_one_job_only_serves_no_other() -> None:
    story = told(ests=2)
    story.job("other", spec=OTHER, ests=2, steps=10)
    story.worker("a", "idle", None, only="job")
    story.worker("b", "idle", None, refusals={OTHER: "it is another device"})
    story.decide()
    assert assigned(story) == {"a", "b"}
    assert assigned(story, "other") == set()


def test_it_is_asked_when_something_has_changed_and_tells_the_policy_what_it_sees() -> None:
    policy = Watched()
    story = told(policy, ests=2, steps=100)
    story.running("a", held=0)
    asked = len(policy.asked)
    for _ in range(20):
        story.beat()
        story.decide(SOON)
    assert len(policy.asked) == asked, "nothing has changed"
    story.worker("b", "idle", None, kind="other")
    story.progress(40)
    story.decide(SOON)
    (capacity, (seen,)) = policy.asked[-1]
    assert len(policy.asked) == asked + 1
    assert capacity == {"cpu": 1, "other": 1}
    assert (seen.name, seen.left, seen.given, seen.shape.ests) == ("job", 60.0, (("cpu", 1),), 2)
    assert seen.ran > 0


def test_who_takes_over_counts_from_when_it_first_looks_whatever_its_clock_says() -> None:
    policy = Watched()
    story = Story(policy=policy)
    story.now = 1e6  # seconds since that machine was started
    story.job(ests=2, steps=100)
    story.running("a", held=0)
    story.beat()
    story.worker("b", "idle", None)
    story.decide(SOON)
    (first,), (then,) = (jobs for _, jobs in policy.asked)
    assert (first.arrived, first.ran) == (1e6, 0.0)
    assert (then.arrived, then.ran) == (1e6, SOON), "else its turn would not come for as long as that machine has run"


def test_a_job_that_waits_has_its_policy_asked_again_after_a_while() -> None:
    policy = Watched()
    story = told(policy, min_workers=2)
    story.worker("a", "idle", None)
    story.decide()
    asked = len(policy.asked)
    for _ in range(130):
        story.beat()
        story.decide(5.0)
    assert len(policy.asked) == asked + 1


def test_the_papers_policy_looks_once_a_minute() -> None:
    story = told(named("paper"), ests=2)
    story.worker("a", "idle", None)
    story.decide()
    assert assigned(story) == {"a"}
    story.worker("b", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a"}
    for _ in range(7):
        story.beat()
        story.decide(10.0)
    assert assigned(story) == {"a", "b"}


def test_the_papers_policy_is_asked_at_once_when_what_it_dealt_out_is_not_there() -> None:
    story = told(named("paper"), ests=2)
    for worker in "ab":
        story.worker(worker, "idle", None)
    story.decide()
    for _ in range(7):
        story.beat()
        story.decide(10.0)
    assert assigned(story) == {"a", "b"}
    story.job("other", spec=OTHER)
    story.worker("a", "idle", None, refusals={OTHER: "it is another device"})  # so it is of another kind than before
    story.worker("b", "idle", None)
    story.decide(SOON)
    assert assigned(story) == {"a", "b"}
