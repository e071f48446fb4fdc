"""Commits in the background: what is published on what, what a refusal leads to, and what their histories say."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import CorruptError, DivergenceError, NonFiniteError, UnavailableError
from easyscale.pipeline import messages
from easyscale.pipeline.committer import KEPT_BASES, About, Committer
from easyscale.storage import commits, manifests
from easyscale.storage.blobs import get_blob
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

ZERO = "0" * 64
SECONDS = 20.0
"""Patience of the tests with the thread of a committer."""


@dataclass
class StepReport:
    step: int
    loss: float = 0.5
    samples: list[int] = field(default_factory=list)


class FaultyStore(MemoryStore):
    down = False

    def put(self, key: str, data: Any, *, durable: bool = True) -> None:
        if self.down:
            raise UnavailableError("down")
        super().put(key, data, durable=durable)

    def exists(self, key: str) -> bool:
        if self.down:
            raise UnavailableError("down")
        return super().exists(key)


class Bench:
    """A committer over a memory store, and its agent's side of the talk."""

    def __init__(self, store: FaultyStore | None = None) -> None:
        self.store = store or FaultyStore()
        self.step = 0
        self.value = 0.0
        self.reused: list[Any] = []
        self.said: queue.SimpleQueue[messages.FromRunner] = queue.SimpleQueue()
        about = About("job", ZERO, ZERO, 4, {"class": "test"})
        self.committer = Committer(self.store, about, self._take, self.said.put)
        self.committer.enter(3, messages.Base())

    def _take(self, reuse: Any) -> commits.Snapshot:
        self.reused.append(reuse)
        tree = {"step": self.step, "model": {"parameters": {"w": torch.tensor([float(self.step), self.value])}}}
        return commits.Snapshot.take(self.step, tree, reuse)

    def train(self, upto: int) -> None:
        while self.step < upto:
            self.committer.record(StepReport(self.step, samples=[self.step]))
            self.step += 1

    def begin(self, *, publish: bool = True, share: tuple[int, int] = (0, 1)) -> None:
        self.committer.begin({"accuracy": 0.5}, publish=publish, share=share)

    def wanted(self) -> messages.Publish:
        """The next thing that it wants published."""
        message = self.said.get(timeout=SECONDS)
        assert isinstance(message, messages.Publish)
        return message

    def publish(self) -> messages.Publish:
        wanted = self.wanted()
        base = messages.Base(step=wanted.step, manifest=wanted.manifest)
        self.committer.answer(messages.Published(base=base))
        self.rest()
        return wanted

    def refuse(self, moved: messages.Base | None = None) -> messages.Publish:
        wanted = self.wanted()
        self.committer.answer(messages.Refused(step=wanted.step, reason="test", moved=moved))
        return wanted

    def rest(self) -> None:
        assert self.committer._idle.wait(SECONDS), "the committer does not come to rest"

    def history(self, wanted: messages.Publish) -> list[int]:
        manifest = manifests.read_manifest(self.store, wanted.manifest)
        assert manifest.parent == wanted.parent
        assert manifest.history is not None
        return [json.loads(line)["step"] + 1 for line in get_blob(self.store, manifest.history).splitlines()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.committer.close()
    if bench.committer._thread:
        bench.committer._thread.join(SECONDS)
        assert not bench.committer._thread.is_alive()


def test_commits_follow_each_other_and_their_histories_meet(bench: Bench) -> None:
    bench.train(4)
    bench.begin()
    first = bench.publish()
    assert (first.step, first.parent, first.metrics) == (4, None, {"accuracy": 0.5})
    assert bench.history(first) == [1, 2, 3, 4]
    bench.train(7)
    bench.begin()
    second = bench.publish()
    assert (second.step, second.parent) == (7, first.manifest)
    assert bench.history(second) == [5, 6, 7]
    assert bench.committer.settled(7)
    assert not bench.committer.settled(8)
    manifest, tree = commits.read_commit(bench.store, second.manifest)
    assert (manifest.generation, manifest.job, tree["step"]) == (3, "job", 7)


def test_steps_made_while_a_commit_is_written_go_into_the_next_one(bench: Bench) -> None:
    bench.train(4)
    bench.begin()
    wanted = bench.wanted()
    assert not bench.committer.idle
    bench.train(6)
    bench.committer.answer(messages.Published(base=messages.Base(step=4, manifest=wanted.manifest)))
    bench.rest()
    assert bench.history(wanted) == [1, 2, 3, 4]
    bench.begin()
    assert bench.history(bench.publish()) == [5, 6]


def test_a_fenced_commit_is_given_up_and_may_be_tried_again_in_another_generation(bench: Bench) -> None:
    bench.train(4)
    bench.begin()
    bench.refuse()
    bench.rest()
    assert bench.committer.settled(4), "nobody need wait for it"
    assert bench.committer.base == messages.Base()
    assert bench.committer.failure is None
    bench.committer.enter(4, messages.Base())
    assert not bench.committer.settled(4)
    bench.begin()
    assert bench.history(bench.publish()) == [1, 2, 3, 4]


def test_a_commit_whose_parent_moved_on_is_built_on_the_new_head(bench: Bench) -> None:
    other = Bench(bench.store)
    other.train(2)
    other.begin()
    head = other.publish()
    other.committer.close()
    bench.train(5)
    bench.begin()
    stale = bench.refuse(moved=messages.Base(step=2, manifest=head.manifest))
    assert bench.history(stale) == [1, 2, 3, 4, 5]
    again = bench.publish()
    assert (again.step, again.parent) == (5, head.manifest)
    assert bench.history(again) == [3, 4, 5]


def test_a_commit_whose_parent_turned_out_damaged_gets_the_longer_history(bench: Bench) -> None:
    bench.train(2)
    bench.begin()
    first = bench.publish()
    bench.train(4)
    bench.begin()
    bench.publish()
    bench.train(6)
    bench.begin()
    bench.refuse(moved=messages.Base(step=2, manifest=first.manifest))
    again = bench.publish()
    assert again.parent == first.manifest
    assert bench.history(again) == [3, 4, 5, 6]


def test_a_commit_whose_ancestors_turned_out_damaged_one_and_all_gets_the_whole_history(bench: Bench) -> None:
    for step in range(2, 2 * KEPT_BASES, 2):
        bench.train(step)
        bench.begin()
        bench.publish()
    bench.train(2 * KEPT_BASES)
    bench.begin()
    bench.refuse(moved=messages.Base())
    assert bench.history(bench.publish()) == [*range(1, 2 * KEPT_BASES + 1)]


def test_a_state_whose_history_is_damaged_is_given_up(bench: Bench) -> None:
    bench.committer.forget()  # it was loaded from commit 8
    bench.step = 8
    bench.committer.enter(4, messages.Base(step=8, manifest="a" * 64))
    bench.train(10)
    bench.begin()
    bench.refuse(moved=messages.Base(step=6, manifest="b" * 64, damaged=True))
    bench.rest()
    assert isinstance(bench.committer.failure, CorruptError)
    assert "steps 7 to 10" in str(bench.committer.failure)


def test_a_head_that_is_further_already_ends_the_matter(bench: Bench) -> None:
    bench.train(4)
    bench.begin()
    bench.refuse(moved=messages.Base(step=9, manifest="a" * 64))
    bench.rest()
    assert bench.committer.settled(4)
    assert bench.said.empty()


def test_history_of_a_state_that_was_left_is_forgotten(bench: Bench) -> None:
    bench.train(4)
    bench.committer.forget()
    bench.step = 8
    bench.committer.enter(4, messages.Base(step=8, manifest="a" * 64))
    bench.train(10)
    bench.begin()
    assert bench.history(bench.publish()) == [9, 10]


def test_a_recomputed_step_is_in_the_history_once(bench: Bench) -> None:
    bench.train(4)
    bench.step = 2
    bench.train(5)
    bench.begin()
    assert bench.history(bench.publish()) == [1, 2, 3, 4, 5]


def test_an_outage_leaves_the_committer_idle_and_nothing_settled(bench: Bench) -> None:
    bench.train(4)
    bench.store.down = True
    bench.begin()
    bench.rest()
    assert not bench.committer.settled(4)
    assert bench.committer.failure is None, "it is no reason to end the attempt"
    trouble = bench.said.get(timeout=SECONDS)
    assert trouble == messages.Trouble(what="commit 4 cannot be written: down"), "people must hear of it"
    bench.store.down = False
    bench.begin()
    assert bench.history(bench.publish()) == [1, 2, 3, 4]


def test_a_divergence_is_kept_for_the_trainer_with_both_manifests(bench: Bench) -> None:
    other = Bench(bench.store)
    other.train(4)
    other.begin()
    theirs = other.publish()
    other.committer.close()
    bench.value = 1.0
    bench.train(4)
    bench.begin()
    bench.rest()
    failure = bench.committer.failure
    assert isinstance(failure, DivergenceError)
    assert theirs.manifest in str(failure)
    assert "model/parameters/w" in str(failure)
    assert bench.said.empty(), "nothing is published"


def test_a_bug_in_writing_is_kept_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(commits, "write_commit", broken)
    bench.train(1)
    bench.begin()
    bench.rest()
    assert isinstance(bench.committer.failure, ZeroDivisionError)


def test_who_does_not_publish_uploads_its_share_and_says_nothing(bench: Bench) -> None:
    bench.train(4)
    bench.begin(publish=False, share=(0, 2))
    bench.rest()
    assert bench.said.empty()
    stored = list(bench.store.list(""))
    assert stored
    assert all(key.startswith("blobs/") for key in stored), "no manifest, no marker"
    assert not bench.committer.settled(4)


def test_the_buffers_of_the_last_snapshot_are_used_again(bench: Bench) -> None:
    for upto in (1, 2, 3):
        bench.train(upto)
        bench.begin()
        bench.publish()
    assert bench.reused[0] is None
    assert bench.reused[1] is not None
    _, tree = commits.read_commit(bench.store, bench.committer.base.manifest or "")
    assert tree["model"]["parameters"]["w"].tolist() == [3.0, 0.0]


def test_after_damage_the_next_commit_sends_everything_again_once(bench: Bench) -> None:
    bench.train(2)
    bench.begin()
    wanted = bench.publish()
    pack = manifests.read_manifest(bench.store, wanted.manifest).packs[0].digest
    bench.store._objects[f"blobs/{pack[:2]}/{pack}"] = b"damaged"
    bench.committer.enter(4, messages.Base())
    bench.committer.heal = True
    bench.begin()
    bench.publish()
    assert commits.read_commit(bench.store, wanted.manifest)[1]["step"] == 2
    assert not bench.committer.heal


def test_who_commits_after_damage_sends_everybodys_share_again(bench: Bench) -> None:
    """The members whose blobs are damaged may not be those who found it."""
    bench.train(2)
    bench.begin()
    wanted = bench.publish()
    pack = manifests.read_manifest(bench.store, wanted.manifest).packs[0].digest
    bench.store._objects[f"blobs/{pack[:2]}/{pack}"] = b"damaged"
    bench.committer.enter(4, messages.Base(damaged=True))
    bench.begin(share=(1, 2))
    bench.publish()
    assert commits.read_commit(bench.store, wanted.manifest)[1]["step"] == 2


def test_fault_40_a_state_with_a_nan_is_never_published_and_named(bench: Bench) -> None:
    bench.train(4)
    bench.begin()
    good = bench.publish()
    bench.train(8)
    bench.value = float("nan")
    before = dict(bench.store._objects)
    bench.begin()
    bench.rest()
    assert isinstance(bench.committer.failure, NonFiniteError)
    assert "in the state after 8 steps: model/parameters/w" in str(bench.committer.failure)
    assert bench.said.empty()
    assert bench.store._objects == before
    assert bench.committer.base.manifest == good.manifest
