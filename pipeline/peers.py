"""The lane between peers: partials go straight from one runner's memory to another's.

What is said in a step is left to `exchange.py`; this is about members that meet, wait, are called away, and are lost.
Steps are exchanged by the thread that trains, which has nothing better to do and need not be woken up by another one.
It waits for as long as it takes; `interrupt` calls it away from a peer that has stopped. Meeting and states are left to
a helper thread. A connection that breaks names its peer at once.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
import torch

from ..errors import LaneBrokenError
from . import parcels
from .exchange import SHARED, STATE, Exchange
from .links import Links, OutOfPatience, PeerLost
from .nccl import Nccl, all_distinct
from .parcels import Damaged
from .rendezvous import MEET_SECONDS, Meeting
from .shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .contribution import Contribution
    from .messages import Run
    from .protocols import Parcel
    from .session import Control

log = structlog.get_logger()

POLL_SECONDS = 0.02
"""How long a call waits for an answer; messages from the agent are looked at in between."""

GATHER_SECONDS = 0.05
"""From the first broken connection to the verdict: those who die together are named together."""

WAITING_SECONDS = 0.05
"""A wait that is longer is told of, within twice the time: it is none of the job's code."""


class _Answer(NamedTuple):
    """What the helper thread tells: an answer to a question, or of a lost peer."""

    to: str
    value: Any


class PeerLane:
    """One member's lane to its peers, for one generation.

    Args:
        job, run: which generation. ests: N.
        host: of this worker: see `Rendezvous`. device: where contributions lie.
        patience: seconds for a part of a step; after that the lane breaks without naming anybody.
        on_wait: told of a wait that takes long; from another thread, but not once `poll` has returned.
    """

    kind = "peer"
    waits = True

    def __init__(
        self,
        job: str,
        run: Run,
        ests: int,
        host: str,
        device: str,
        patience: float,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._ests, self._host, self._device = run, ests, host, torch.device(device)
        self._patience, self._on_wait = patience, on_wait
        self._since: float | None = None
        self._telling = threading.Lock()
        self._interrupted = self._ran_out = self._under_way = False
        self._pending: Callable[[], list[tuple[Control, Any]]] | None = None
        self._asked: dict[str, float] = {}
        self._step = -1
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._heard: dict[str, Any] = {}
        self._lost: dict[int, str] = {}
        self._verdict_at = float("inf")
        self._links: Links | None = None
        self._nccl: Nccl | None = None
        self._shared: Shared | None = None
        self._exchange: Exchange | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._questions: queue.SimpleQueue[tuple[str, Callable[[Links], Any]] | None] = queue.SimpleQueue()
        self._meeting = Meeting(job, run, host, lambda: self._closed)
        self._thread = threading.Thread(target=self._work, name="easyscale-peers", daemon=True)
        self._thread.start()

    # ---- the member's side

    @property
    def sent(self) -> int:
        """Bytes sent to peers so far."""
        return sum(one.sent for one in (self._links, self._nccl, self._shared) if one is not None)

    @property
    def ran_out(self) -> bool:
        """See `protocols.Lane`."""
        return self._ran_out

    def meet(self) -> bool:
        """See `protocols.Lane`."""
        self._asked.setdefault("meet", time.monotonic())
        if self._listen("meet") is not None:
            return True
        if time.monotonic() - self._asked["meet"] > 3 * MEET_SECONDS:  # who is stopped answers nothing at all
            missing = self._meeting.missing
            raise LaneBrokenError(missing, f"slots {list(missing)} were not met")
        return False

    def give(self, slots: Sequence[int], parcel: Parcel) -> bool:
        """See `protocols.Lane`."""

        def give(links: Links) -> bool:
            parcels.give(links, STATE, slots, parcel)
            return True

        self._ask("give", give)
        return self._listen("give") is not None

    def take(self, slot: int) -> Parcel | None:
        """See `protocols.Lane`."""
        self._ask("take", lambda links: parcels.take(links, STATE, slot))
        taken: Parcel | None = self._listen("take")
        return taken

    def send(self, step: int, control: Control, contribution: Contribution | None) -> None:
        """See `protocols.Lane`. The contribution's memory is used until `poll` has answered, or `close` returned."""
        self._step = step
        assert self._exchange is not None, "members meet before they send"
        self._under_way = contribution is not None
        try:
            self._pending = self._exchange.begin(step, control, contribution)
        except (PeerLost, OutOfPatience) as error:
            self._pending = partial(_raise, error)

    def poll(self, step: int) -> list[tuple[Control, Any]] | None:
        """See `protocols.Lane`. Waits for as long as it takes, or until `interrupt`.

        The first part has everybody's mean, in the memory of the contribution sent.
        """
        assert step == self._step
        if self._interrupted:
            return None  # whoever did it has said why
        assert self._pending is not None
        self._since = time.monotonic()
        try:
            gathered = self._pending()
        except OutOfPatience as silence:
            self._ran_out = True
            raise LaneBrokenError((), str(silence)) from silence
        except Damaged as damage:
            raise LaneBrokenError((damage.slot,), str(damage)) from damage
        except PeerLost as lost:
            if self._interrupted:
                return None
            self._take_in(_Answer("lost", (lost.slot, str(lost))))
            while True:  # until all who are lost are known
                self._listen("verdict")
        else:
            self._under_way = False
            return gathered
        finally:
            self._retire()
            with self._telling:
                self._since = None

    def _retire(self) -> None:
        """If the step is not whole, leave to peers what they may still be reading."""
        if self._under_way and self._shared is not None:
            self._shared.retire()
        self._under_way = False

    def interrupt(self) -> None:
        """End `poll` and let it answer None: what it waits for will not come, or is not wanted. From any thread."""
        self._interrupted = True
        if self._links is not None:
            self._links.cut()
            if self._shared is not None:
                self._shared.wires.cut()
            if self._nccl is not None:
                self._nccl.abort()

    def part(self) -> None:
        """See `protocols.Lane`."""
        if self._links is not None and not self._lost:
            self._links.part()

    def close(self, *, finished: bool = True) -> None:  # noqa: ARG002 - nothing of mine lies anywhere
        """See `protocols.Lane`."""
        with self._closing:
            self._closed = True
        self._questions.put(None)
        if self._links is not None:
            self._links.close()
            if self._nccl is not None:
                self._nccl.abort()
            self._thread.join()
        self._retire()
        self._exchange = self._pending = None  # now, and not when garbage is collected: it has memory of dead peers
        if self._shared is not None:
            self._shared.close()

    def _ask(self, question: str, do: Callable[[Links], Any]) -> None:
        """Have the helper do something, once."""
        if question not in self._asked:
            self._asked = {question: time.monotonic()}
            self._questions.put((question, do))

    def _listen(self, question: str) -> Any:
        """The answer to a question, or None while it is not there.

        Raises:
            LaneBrokenError: it never will be.
        """
        with suppress(queue.Empty):
            if question not in self._heard:
                self._take_in(self._answers.get(timeout=POLL_SECONDS))
            while True:
                self._take_in(self._answers.get_nowait())
        if question in self._heard:  # first: who sent all there was may have gone since
            return self._heard.pop(question)
        if time.monotonic() >= self._verdict_at:
            why = "; ".join(
                f"slot {slot} ({self._run.members[slot].worker}): {self._lost[slot]}" for slot in self._lost
            )
            raise LaneBrokenError(tuple(sorted(self._lost)), f"the connection broke to {why}")
        return None

    def _take_in(self, answer: _Answer) -> None:
        if answer.to == "lost":
            slot, why = answer.value
            self._lost.setdefault(slot, why)
            self._verdict_at = min(self._verdict_at, time.monotonic() + GATHER_SECONDS)
        elif answer.to == "failed":
            raise answer.value
        else:
            self._heard[answer.to] = answer.value

    # ---- the helper's side

    def _work(self) -> None:
        try:
            links = self._connect()
            if links is None:
                return
            self._answers.put(_Answer("meet", True))
            while (asked := self._next()) is not None:
                question, do = asked
                self._answers.put(_Answer(question, do(links)))
        except PeerLost as lost:
            self._answers.put(_Answer("lost", (lost.slot, str(lost))))
        except Damaged as damage:
            self._answers.put(_Answer("failed", LaneBrokenError((damage.slot,), str(damage))))
        except OSError as error:
            self._answers.put(_Answer("failed", LaneBrokenError((), f"peers could not meet: {error}")))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the member must hear of it
            self._answers.put(_Answer("failed", error))

    def _next(self) -> tuple[str, Callable[[Links], Any]] | None:
        """The next thing to do. Until it comes, long waits of the thread that trains are told of."""
        told = None
        while True:
            with suppress(queue.Empty):
                return self._questions.get(timeout=WAITING_SECONDS)
            with self._telling:
                since = self._since
                if since is not None and since != told and time.monotonic() - since >= WAITING_SECONDS:
                    told = since
                    self._on_wait()

    def _connect(self) -> Links | None:
        group, store = self._meeting.connect()
        links = Links(
            group,
            self._run.slot,
            len(self._run.members),
            lambda slot, why: self._answers.put(_Answer("lost", (slot, why))),
            timedelta(seconds=self._patience),
        )
        with self._closing:
            if self._closed:
                links.close()
                return None
            self._links = links
            if all_distinct(self._run.gpus):
                self._nccl = Nccl(store, self._run.slot, len(self._run.members), self._device)
        if self._nccl is None:
            self._share(Shared.meet(links, SHARED, self._patience))
        self._exchange = Exchange(self._run, self._ests, links, self._shared, self._nccl, self._device)
        log.info("lane.peers", generation=self._run.generation, by=type(self._exchange.bulk).__name__.lower())
        return links

    def _share(self, shared: Shared | None) -> None:
        with self._closing:
            if not self._closed:
                self._shared = shared
            elif shared is not None:
                shared.close()


def _raise(error: Exception) -> list[tuple[Control, Any]]:
    raise error
