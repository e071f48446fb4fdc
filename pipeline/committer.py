"""Commits in the background: a snapshot is taken between two steps, everything else happens in a thread.

Two snapshots exist at most (a double buffer): one being written, one whose buffers the next snapshot reuses. A commit
that fails for want of the store is repeated by whoever needs it; one that is fenced or diverges ends the matter.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ..errors import CorruptError, NonFiniteError, UnavailableError, listed
from ..storage import commits
from . import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from ..storage.objects import ObjectStore

log = structlog.get_logger()

Answer = messages.Published | messages.Refused

RETRY_SECONDS = 1.0
"""From a commit that could not be written to the next try."""

KEPT_BASES = 8
"""Commits whose history is kept in memory: if they turn out damaged, the next one follows what was before them."""

PATIENCE_SECONDS = 5.0
"""How long slot 0 waits for the others' shares of the upload before it sends them itself."""


@dataclass(frozen=True, slots=True)
class About:
    """What every manifest of a runner says: see `storage.manifests.Manifest`."""

    job: str
    spec: str
    code: str
    ests: int
    determinism: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    """A commit to be made: of which state, which share of it is ours, and whether to publish it."""

    snapshot: commits.Snapshot
    metrics: dict[str, float]
    share: tuple[int, int]
    publish: bool
    generation: int


class Committer:
    """One runner's commits.

    Args:
        store: where to.
        about: what every manifest says.
        take: `(reuse) -> Snapshot` of the state held now; called in the thread that trains.
        say: sends a message to the agent.
    """

    def __init__(
        self,
        store: ObjectStore,
        about: About,
        take: Callable[[commits.Snapshot | None], commits.Snapshot],
        say: Callable[[messages.FromRunner], None],
    ) -> None:
        self._store, self._about, self._take, self._say = store, about, take, say
        self._base = messages.Base()
        self._bases: deque[int] = deque([0], maxlen=KEPT_BASES)
        self._fenced_at = -1
        self._history: dict[int, bytes] = {}
        self._spare: commits.Snapshot | None = None
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._generation = 0
        self.failure: BaseException | None = None
        """What went wrong in the thread and must end the attempt (a divergence, a bug)."""
        self.heal = False
        """Damage was found: the next commit sends all its blobs, even those that seem to be there."""
        self._thread: threading.Thread | None = None

    @property
    def job(self) -> str:
        """Name of the job."""
        return self._about.job

    @property
    def idle(self) -> bool:
        """Whether a new snapshot can be taken."""
        return self._idle.is_set()

    @property
    def base(self) -> messages.Base:
        """The newest commit known to be the head: the parent of the next one."""
        return self._base

    def enter(self, generation: int, base: messages.Base) -> None:
        """A new generation begins, built on this commit; what was refused before may be tried again."""
        self._generation = generation
        self._fenced_at = -1
        self.rebase(base)

    def rebase(self, base: messages.Base) -> None:
        """Another commit is the head now."""
        if base.step > self._bases[-1]:
            self._bases.append(base.step)
        while len(self._bases) > 1 and self._bases[-1] > base.step:
            self._bases.pop()
        self._base = base
        self.heal |= base.damaged
        for step in [s for s in list(self._history) if s <= min(self._bases[0], base.step)]:
            self._history.pop(step, None)

    def record(self, report: Any) -> None:
        """Remember a step (t: from state t to t + 1) for the history that goes with the next commit."""
        self._history[report.step + 1] = msgspec.json.encode(report)

    @property
    def history(self) -> dict[int, bytes]:
        """What is remembered of the steps since the newest commits: a JSON line per step."""
        return dict(self._history)

    def adopt(self, history: dict[int, bytes]) -> None:
        """The state of another member was loaded, so what it remembers led here."""
        self._history = dict(history)

    def forget(self) -> None:
        """Another state was loaded: what was recorded did not lead to it."""
        self._history.clear()

    def settled(self, step: int) -> bool:
        """Whether a commit of at least this step is the head, or we have been fenced off."""
        return self._base.step >= step or self._fenced_at >= step

    def begin(self, metrics: dict[str, float], *, publish: bool, share: tuple[int, int]) -> None:
        """Take a snapshot of the state held and write it in the background. Only when idle."""
        assert self.idle
        reuse, self._spare = self._spare, None
        snapshot = self._take(reuse)
        self._idle.clear()
        self._launch(Order(snapshot, metrics, share, publish, self._generation))

    def answer(self, message: Answer) -> None:
        """The agent's answer to a `Publish`."""
        if isinstance(message, messages.Published):
            self.rebase(message.base)
        self._answers.put(message)

    def close(self) -> None:
        """End the thread after what it is doing."""
        self._orders.put(None)

    def _launch(self, order: Order) -> None:
        """Have an order carried out; a simulator does it on its own clock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="easyscale-commits", daemon=True)
            self._thread.start()
        self._orders.put(order)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                writing = self.writing(order)
                publish = next(writing, None)
                while publish is not None:
                    self._say(publish)
                    publish = advance(writing, self._answers.get())
            except BaseException as error:  # noqa: BLE001 - the trainer must hear of it, whatever it is
                if isinstance(error, UnavailableError):
                    time.sleep(RETRY_SECONDS)  # a full disk answers at once, and would be asked without end
                self.finished(order, error)
            else:
                self.finished(order)

    def finished(self, order: Order, error: BaseException | None = None) -> None:
        """An order is done with: the committer is idle again, and an error that matters is kept."""
        if isinstance(error, UnavailableError):
            self._say(messages.Trouble(what=f"commit {order.snapshot.step} cannot be written: {error}"))
            log.warning("commit.failed", job=self._about.job, step=order.snapshot.step, error=str(error))
        else:
            self.failure = error
        self._spare = order.snapshot
        self._idle.set()

    def writing(self, order: Order) -> Generator[messages.Publish, Answer, None]:
        """Write a commit; yields what must be published and takes the answer."""
        if not order.publish:
            commits.upload_share(self._store, order.snapshot, *order.share, overwrite=self.heal)
            self.heal = False
            return
        step = order.snapshot.step
        self._check_finite(order.snapshot)
        while not self.settled(step):
            base = self._base
            about = self._about
            written = commits.write_commit(
                self._store,
                order.snapshot,
                job=about.job,
                parent=base.manifest,
                spec=about.spec,
                code=about.code,
                ests=about.ests,
                determinism=about.determinism,
                generation=order.generation,
                metrics=order.metrics,
                history=self._lines(base.step, step),
                share=(0, 1) if self.heal else order.share,  # the others do not know which blobs are damaged either
                patience=PATIENCE_SECONDS,
                overwrite=self.heal,
            )
            self.heal = False
            answer = yield messages.Publish(
                step=step, manifest=written.manifest_digest, state_digest=written.state_digest,
                parent=base.manifest, metrics=order.metrics,
            )  # fmt: skip
            if isinstance(answer, messages.Refused):
                if answer.moved is None:
                    log.warning("commit.fenced", job=about.job, step=step, reason=answer.reason)
                    self._fenced_at = max(self._fenced_at, step)
                    return
                self.rebase(answer.moved)

    def _check_finite(self, snapshot: commits.Snapshot) -> None:
        """Here and not in the thread that trains, which need not wait for it. Nothing has been written yet."""
        found = commits.nonfinite(snapshot)
        if found:
            raise NonFiniteError(
                f"NaN or infinity in the state after {snapshot.step} steps: {listed(found)}\n"
                "  it was not committed; the newest commit is whole\n"
                "  run the job again with a lower learning rate, or with --set nonfinite=rewind --accept-changes"
            )

    def _lines(self, after: int, upto: int) -> bytes:
        """History of the steps (after, upto], JSON lines.

        Raises:
            CorruptError: some are not there: more commits than `KEPT_BASES` turned out damaged, or one that this
                state was loaded from. Only from an undamaged commit can the job go on.
        """
        lines = {step: line for step, line in sorted(self._history.items()) if after < step <= upto}
        if [*lines] != [*range(after + 1, upto + 1)]:
            raise CorruptError(
                f"the history of steps {after + 1} to {upto} cannot be told, since commits that held a part of it "
                f"are damaged; the state of step {upto} is given up, and the job goes on from step {after}"
            )
        return b"".join(line + b"\n" for line in lines.values())


def advance(writing: Generator[messages.Publish, Answer, None], answer: Answer) -> messages.Publish | None:
    """Give a commit in the making the answer it waits for; the next thing to publish, or None when it is done."""
    try:
        return writing.send(answer)
    except StopIteration:
        return None
