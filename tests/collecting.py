"""Writers, forks and collections on one store and in one thread, which take turns at each call of the store.

Whose turn it is, a script says; time passes only as it says. A collection may be stopped for as long as it likes, and
killed; a writer takes no longer for a commit than it is allowed to (`collection.SLACK_SECONDS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import torch
from easyscale.errors import NotFoundError
from easyscale.pipeline.commit_checks import markers
from easyscale.pipeline.points import Point, refresh, require_there
from easyscale.storage import collection, commits, references, transfers
from easyscale.storage.blobs import put_blob
from easyscale.storage.collection import SAFE_AGE, SLACK_SECONDS, collect
from easyscale.storage.manifests import encode_manifest
from easyscale.storage.memory import MemoryStore
from easyscale.storage.references import Known
from easyscale.storage.retention import Policy
from greenlet import GreenletExit, getcurrent, greenlet
from sim.virtual import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from easyscale.storage.objects import Body, Data, Seen

SPEC, CODE = "5" * 64, "c" * 64


class Turn(NamedTuple):
    """Whose turn it is, for how many calls, how many seconds pass before it, and whether the actor is killed there."""

    who: int
    calls: int = 1
    seconds: float = 0.0
    killed: bool = False


class Shared(MemoryStore):
    """Whoever calls gives way first, but for a removal: it comes at once after the look that allows it, or is made
    again (`collection.PROMPT_SECONDS`); no store can do both in one."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("shared", clock=lambda: stage.now)
        self._stage = stage

    def get(self, key: str) -> bytes:
        self._stage.give_way()
        return super().get(key)

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:
        self._stage.give_way()
        super().put(key, data, durable=durable)

    def create(self, key: str, data: Data) -> bool:
        self._stage.give_way()
        return super().create(key, data)

    def look(self, key: str) -> Seen | None:
        self._stage.give_way()
        return super().look(key)

    def survey(self, prefix: str) -> Iterator[Seen]:
        self._stage.give_way()
        return super().survey(prefix)


class Stage:
    """The store, what is published, and the actors.

    `heads` stands for the key-value store: by job, step and manifest.
    """

    def __init__(self) -> None:
        self.now = 1e6
        self.store = Shared(self)
        self.heads: dict[str, tuple[int, str]] = {}
        self.since: dict[Any, float] = {}
        """When the writers that are at work began."""
        self.actors: list[greenlet] = []
        self._main = getcurrent()

    def give_way(self) -> None:
        if getcurrent() is not self._main:
            self._main.switch()

    def add(self, act: Callable[[], None]) -> None:
        self.actors.append(greenlet(act, self._main))

    def play(self, script: Sequence[Turn]) -> None:
        """The script, and then everybody in turn to the end."""
        for turn in script:
            latest = min(self.since.values(), default=float("inf")) + SLACK_SECONDS
            self.now = max(self.now, min(self.now + turn.seconds, latest))
            actor = self.actors[turn.who % len(self.actors)]
            if turn.killed and actor not in self.since:
                actor.throw(GreenletExit)
            for _ in range(turn.calls):
                if not actor.dead:
                    actor.switch()
        for actor in self.actors:
            while not actor.dead:
                self.now += 0.01
                actor.switch()

    # ---- actors

    def commit(self, job: str, step: int, value: int) -> None:
        """A commit of a state that others may have had before, and its publication."""
        actor = getcurrent()
        self.since[actor] = self.now
        parent = self.heads.get(job)
        tree = {
            "step": step,
            "model": {"parameters": {"w": torch.full((4,), value)}},
            "optimizer": {"m": torch.full((4,), value % 2)},
        }
        written = commits.write_commit(
            self.store, commits.Snapshot.take(step, tree), job=job, parent=parent[1] if parent else None, spec=SPEC,
            code=CODE, ests=1, determinism={}, generation=1, metrics={"value": value}, history=b"%d\n" % step,
            clock=lambda: self.now, sleep=lambda _: self.give_way(),
        )  # fmt: skip
        if self.heads.get(job) == parent:  # else it was rewound meanwhile, and nobody is told of this one
            self.heads[job] = step, written.manifest_digest
        del self.since[actor]

    def point(self, job: str, number: int) -> Point | None:
        """One of a job's commits, read and relied on from now on; None: it was collected."""
        self.since[getcurrent()] = self.now
        chain = [*commits.chain(self.store, self.heads[job][1])]
        point = Point(*chain[number % len(chain)])
        try:
            refresh(self.store, point)
            require_there(self.store, point)
        except NotFoundError:
            return None
        return point

    def fork(self, job: str, number: int, name: str) -> None:
        """As `forking.fork` does."""
        point = self.point(job, number)
        if point is not None:
            manifest = msgspec.structs.replace(point.manifest, job=name, parent=point.digest, history=None)
            digest = put_blob(self.store, encode_manifest(manifest))
            commits.mark(self.store, manifest, digest)
            self.heads[name] = manifest.step, digest
        del self.since[getcurrent()]

    def rewind(self, job: str, number: int) -> None:
        """As `forking.rewind` does."""
        point = self.point(job, number)
        if point is not None:
            step = point.manifest.step
            self.heads[job] = step, point.digest
            for later in [known for known in markers(self.store, job) if known > step]:
                self.store.delete(commits.marker_key(job, later))
        del self.since[getcurrent()]

    def write(self, job: str, values: Sequence[int]) -> None:
        """A job that commits one state after the other."""
        for number, value in enumerate(values, 1):
            self.commit(job, 10 * number, value)
            self.give_way()

    def known(self) -> list[Known]:
        return [Known(job, (manifest,), (SPEC, CODE), 1, over=False) for job, (_, manifest) in self.heads.items()]

    def collect(self, policy: Policy = Policy(last=2), **changes: Any) -> collection.Collected:  # noqa: B008 - immutable
        settings = {"min_age": SAFE_AGE, "delete": True, "clock": lambda: self.now} | changes
        return collect(self.store, self.known, policy, **settings)

    # ---- looking

    def whole(self, job: str) -> list[int]:
        """Steps of a job's commits that can be read, newest first."""
        found = []
        for digest, manifest in commits.chain(self.store, self.heads[job][1]):
            try:
                commits.read_commit(self.store, digest)
            except NotFoundError:
                continue
            found.append(manifest.step)
        return found

    def require_heads(self) -> None:
        """What is published can be read, and what it follows too."""
        for job, (step, manifest) in self.heads.items():
            whole = self.whole(job)
            steps = [it.step for _, it in commits.chain(self.store, manifest)]
            assert steps[:2] == whole[:2], f"{job} at {step}: {whole} of {steps} can be read"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """One thing after the other: the pools of the product use no threads."""
    one_thread(monkeypatch)
    return Stage()


def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (collection, references, transfers):
        monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
