"""Fault 25: collections beside commits that share blobs, come to the bits of states that were given up, and of each
other; stopped for hours and killed at any call of the store. Hypothesis writes the turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import tally
from collecting import Stage, Turn, one_thread, stage
from easyscale.errors import CorruptError, NotFoundError
from easyscale.storage import blobs, collection, commits
from easyscale.storage.collection import DEFAULT_AGE, SAFE_AGE, _Sweep
from easyscale.storage.retention import LEAST
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from easyscale.storage.objects import ObjectStore, Seen

__all__ = ["stage"]

TURNS = st.builds(
    Turn,
    who=st.integers(0, 5),
    calls=st.sampled_from([1, 1, 2, 5, 20, 40]),
    seconds=st.sampled_from([0.0, 0.0, 0.0, 1.0, 600.0, 5000.0, SAFE_AGE + 100.0]),
    killed=st.sampled_from([False] * 40 + [True]),
)
USUAL = settings(
    max_examples=500, deadline=None, derandomize=True, report_multiple_bugs=False,
    phases=[Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip
PLACE = st.integers(0, 6)
"""A place in a history, from its end."""

VALUES = st.lists(st.integers(0, 3), min_size=2, max_size=8)


def two_jobs_and_two_collections(ours: list[int], theirs: list[int], forked: int, rewound: int) -> Stage:
    """Jobs whose states are few, so that each comes to bits that the other, or itself, has had and given up. One is
    forked, and one goes back. Everything that there is at first is old."""
    stage = Stage()
    for job in ("a", "b"):
        stage.write(job, [0, 1, 2, 3, 0, 1])
    stage.now += DEFAULT_AGE

    def go_on(job: str, values: list[int]) -> None:
        for number, value in enumerate(values, 7):
            stage.commit(job, 10 * number, value)
            stage.give_way()

    stage.add(partial(go_on, "a", ours))
    stage.add(partial(go_on, "b", theirs))
    for _ in range(2):
        stage.add(lambda: stage.collect() and None)
    stage.add(partial(stage.fork, "a", forked, "fork"))
    stage.add(partial(stage.rewind, "b", rewound))
    return stage


def live(ours: list[int], theirs: list[int], forked: int, rewound: int, script: list[Turn]) -> None:
    stage = two_jobs_and_two_collections(ours, theirs, forked, rewound)
    stage.play(script)
    stage.require_heads()
    stage.now += DEFAULT_AGE
    stage.collect()
    stage.require_heads()
    for job in stage.heads:
        assert stage.whole(job)[2:] == shared_with_kept(stage, job), "what can go has gone"


def shared_with_kept(stage: Stage, job: str) -> list[int]:
    """Commits that no rule keeps, and whose packs are those of commits that are kept."""
    kept = set()
    for each in stage.heads:
        for number, (_, manifest) in enumerate(commits.chain(stage.store, stage.heads[each][1])):
            kept |= {pack.digest for pack in manifest.packs} if number < LEAST else set()
    chain = [manifest for _, manifest in commits.chain(stage.store, stage.heads[job][1])][LEAST:]
    return [manifest.step for manifest in chain if all(pack.digest in kept for pack in manifest.packs)]


@USUAL
@given(ours=VALUES, theirs=VALUES, forked=PLACE, rewound=PLACE, script=st.lists(TURNS, max_size=40))
def test_nothing_that_is_published_ever_loses_a_blob(
    ours: list[int], theirs: list[int], forked: int, rewound: int, script: list[Turn]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        one_thread(patch)
        live(ours, theirs, forked, rewound, script)


def require_found(planted: str) -> None:
    """The property finds a planted mistake."""
    with pytest.raises((AssertionError, NotFoundError), match=r"can be read|no object"):
        test_nothing_that_is_published_ever_loses_a_blob()
    tally.add("planted", planted)


def test_a_writer_that_relies_on_old_blobs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property can fail: what is there is never written again."""
    monkeypatch.setattr(blobs, "FRESH_SECONDS", float("inf"))
    require_found("a writer that relies on old blobs")


def test_a_collection_that_trusts_what_it_has_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property can fail: a blob is removed without another look."""

    def remove(self: _Sweep, seen: Seen) -> bool:
        self.store.get(seen.key) if self.store.exists(seen.key) else None
        self.store.delete(seen.key)
        return True

    monkeypatch.setattr(_Sweep, "_remove", remove)
    require_found("a collection that trusts what it has listed")


def test_a_collection_that_counts_ages_from_its_own_present_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property can fail: a collection that wakes after hours takes what was written while it slept."""

    class Naive(_Sweep):
        def __init__(self, store: ObjectStore, marked: frozenset[str], _: object, *rest: Any, **more: Any) -> None:
            super().__init__(store, marked, lambda: SAFE_AGE, *rest, **more)

    monkeypatch.setattr(collection, "_Sweep", Naive)
    one_thread(monkeypatch)
    with pytest.raises((AssertionError, NotFoundError, CorruptError), match=r"can be read|no object"):
        asleep_at_any_call()
    tally.add("planted", "a collection that counts ages from its own present")


def test_a_collection_that_sleeps_at_any_of_its_calls_takes_nothing_that_was_committed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_thread(monkeypatch)
    asleep_at_any_call()


def asleep_at_any_call() -> None:
    """A collection is stopped for hours, while a job commits states that it has given up before."""
    for calls in range(1, 150):
        live([2, 3], [1, 0], 0, 0, [Turn(2, calls), Turn(0, 100), Turn(2, 1, SAFE_AGE + 100.0)])
