"""The runner process: runs one job's user code on one device, told by its agent what to do.

It holds the replica and the commits in the making; it holds no lease and makes no claim. When its agent dies it dies
too. Whatever the user's code does to the interpreter, the agent's lease does not suffer.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import queue
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ..errors import CorruptError, ProcessDiedError
from . import messages
from .channel import Channel
from .endings import describe
from .laps import Laps
from .session import Holding, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.objects import ObjectStore
    from .engine import Engine
    from .function import FunctionEngine
    from .protocols import Lane
    from .rendezvous import Rendezvous

log = structlog.get_logger()


PATIENCE_SECONDS = 60.0
"""For everybody's part of a step, before a connection is taken for one that fell silent without breaking."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent tells its runner on the command line, as JSON.

    Args:
        fd: file descriptor of the socket to the agent. store: address. folder: for unpacked code and cached blobs.
        cache: whether to cache blobs (not useful in front of a local folder).
        host: where peers reach this machine; empty: exchanges go through the object store only.
        slowdown: see `slowdown.py`.
    """

    fd: int
    store: str
    folder: str
    device: str
    cache: bool = True
    host: str = ""
    slowdown: float = 1.0


class _Stopped(BaseException):
    """The agent said `Stop`."""


class Runner:
    """One attempt of one worker at one job, from import to `Stop`."""

    def __init__(self, environment: Environment) -> None:
        self._env = environment
        self._channel = Channel(environment.fd)
        self._channel.on_message = self._glance
        self._rendezvous: Rendezvous | None = None
        self._lane: Lane | None = None
        self._patience = PATIENCE_SECONDS
        self._holding = Holding()
        self._ended = ""
        self._forked = False
        self._engine: Engine | FunctionEngine | None = None
        self._build: Callable[[], Engine | FunctionEngine]
        self._folder = Path(environment.folder)

    @property
    def step(self) -> int:
        """Step of the state held."""
        return self._engine.step if self._engine else 0

    def main(self) -> None:
        """Prepare, then do as told until `Stop`."""
        try:
            first = self._channel.inbox.get()
            assert isinstance(first, messages.Prepare)
            self._prepare(first)
            while True:
                self._handle(self._channel.inbox.get())
        except _Stopped:
            # One that leaves may go before the others have read its last partials.
            self._let_go(finished=self._ended in ("done", "pause"))
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
            self._channel.say(describe(error, self.step, self._folder))
            raise SystemExit(1) from None
        finally:
            self._kill_loaders()
            self._let_go(finished=False)

    @staticmethod
    def _kill_loaders() -> None:
        """At once, they hold nothing: who asks them to end waits until they have fetched what they are fetching."""
        for child in multiprocessing.active_children():
            child.kill()

    # ---- preparation

    def _prepare(self, message: messages.Prepare) -> None:
        from ..storage.objects import open_store
        from . import determinism, heap, preparation, replica, slowdown, switches, warm
        from .committer import About, Committer

        laps = Laps()
        self._forked = message.forked
        heap.keep()
        self._store = store = self._open(open_store)
        spec, self._folder = preparation.fetch(
            store, Path(self._env.folder), job=message.job, spec=message.spec, code=message.code
        )
        self._spec = spec
        laps.end("fetch")
        preparation.configure(spec, self._env.device)
        laps.end("configure")
        entry = preparation.load_build(self._folder, spec.script)
        laps.end("script")
        slow = self._env.slowdown
        self._build = lambda: slowdown.slowed(replica.make(entry, spec, store, self._env.device), slow)
        self._engine = self._build()
        # Exact jobs have other settings of their own, and look after them themselves.
        if spec.numerics == "native" and (moved := switches.put_back()):
            log.warning("runner.switches_put_back", job=message.job, were=moved)
        laps.end("build")
        parts = determinism.determinism_class(self._env.device, spec.threads, spec.numerics)
        about = About(message.job, message.spec, message.code, spec.ests, parts)
        probe, cold = self._probe()
        laps.end("probe")
        est_seconds = warm.est_seconds(self._engine.pass_seconds, cold)
        laps.end("warm")
        log.info("runner.prepared", job=message.job, device=self._env.device, **laps.seconds)
        self._committer = Committer(store, about, self._snapshot, self._channel.say)
        self._channel.on_answer = self._committer.answer
        address = self._listen()
        gpu = determinism.gpu_uuid(self._env.device)
        ready = messages.Ready(
            determinism=determinism.class_id(parts), description=parts, probe=probe, address=address, gpu=gpu,
            memory=self._engine.footprint(), est_seconds=est_seconds,
        )  # fmt: skip
        self._channel.say(ready)

    def _listen(self) -> str:
        """Where peers meet, if they do so at this runner.

        After the probe, which forks the loader processes: they must not hold connections of ours open.
        """
        if not self._env.host:
            return ""
        from .rendezvous import Rendezvous

        self._rendezvous = Rendezvous(self._env.host)
        return self._rendezvous.address

    def _open(self, open_store: Any) -> ObjectStore:
        store: ObjectStore = open_store(self._env.store)
        if self._env.cache:
            from ..storage.cache import CachedBlobs

            return CachedBlobs(store, Path(self._env.folder) / "blobs")
        return store

    def _probe(self) -> tuple[str, float]:
        """Hash of what another device must reproduce to take part; with exact numerics also of what operators give.

        And the seconds that EST 0 took.
        """
        assert self._engine is not None
        parts, cold = self._engine.probe()
        if self._spec.numerics == "exact":
            from .numerics.probe import probe

            parts.append(probe())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest(), cold

    def _snapshot(self, reuse: Any) -> Any:
        from ..storage.commits import Snapshot

        assert self._engine is not None
        snapshot = Snapshot.take(self._engine.step, self._engine.state(), reuse)
        self._engine.keep_until(snapshot.copied)
        return snapshot

    # ---- orders

    def _handle(self, message: messages.ToRunner) -> None:
        if isinstance(message, messages.Run):
            idle = self._run(message)
            self._ended = idle.reason
            self._channel.say(idle)
        elif isinstance(message, messages.Commit):
            self._commit(message)
        elif isinstance(message, messages.Stop):
            raise _Stopped
        # Yield, Leave and Pause that arrive after the generation ended are answered by the Idle already sent.

    def _run(self, run: messages.Run) -> messages.Idle:
        from .generation import Generation

        self._let_go(finished=True)  # before anything is computed again
        lane = self._lane = self._new_lane(run)  # whose members meet while some may still load
        idle = self._load(run)
        if idle is not None:
            return idle
        engine, spec = self._engine, self._spec
        assert engine is not None
        self._committer.enter(run.generation, run.base)
        session = Session(
            run, spec.total_steps, spec.commit_every, spec.commit_seconds, spec.check_every, spec.audit_every
        )
        member = Generation(
            session, engine, lane, self._committer, self._channel.say, time.monotonic,
            samples=spec.ests * spec.batch_size, restore=self._restore, evaluate_every=spec.evaluate_every,
            holding=self._holding, footprint=engine.footprint,
            computes="function" if spec.kind == "function" else "step",
        )  # fmt: skip
        at, size = run.step, len(run.members)
        log.info("runner.generation", generation=run.generation, slot=run.slot, step=at, of=size, lane=lane.kind)
        laps = Laps()
        steps = member.run()
        while True:
            if engine.step > run.step and not laps.seconds:
                laps.end("seconds")
                log.info("runner.first_step", generation=run.generation, step=engine.step, **laps.seconds)
            try:
                wait = next(steps)
            except StopIteration as end:
                idle = end.value
                assert isinstance(idle, messages.Idle)
                if engine.step > at:
                    sent = lane.sent // (engine.step - at)
                    log.info("runner.lane", generation=run.generation, lane=lane.kind, sent_per_step=sent)
                return idle  # the lane stays: the others must not take its end for a break
            self._let_in(session, wait.seconds)
            if self._committer.failure is not None:
                raise self._failure(self._committer.failure)

    def _failure(self, error: BaseException) -> BaseException:
        """What a failed commit means: two results of one call do not, that the computation is not deterministic."""
        from ..storage.commits import CommitConflictError

        if self._spec.kind == "function" and isinstance(error, CommitConflictError):
            return ProcessDiedError(
                "another attempt has committed its result of this call first: the next takes that one"
            )
        return error

    def _new_lane(self, run: messages.Run) -> Lane:
        from .contribution import Contribution
        from .lanes import LocalLane, StoreLane

        if len(run.members) == 1:
            return LocalLane[Contribution]()
        job = self._committer.job
        if run.lane == "store":
            return StoreLane(self._store, job, run, Contribution.from_bytes)
        from .peers import PeerLane

        return PeerLane(
            job, run, self._spec.ests, self._env.host, self._env.device, self._patience,
            lambda: self._channel.say(messages.Waiting()),
        )  # fmt: skip

    def _glance(self, message: messages.ToRunner) -> None:
        """At what has come while the thread that trains may wait for peers: does it call it away?"""
        lane = self._lane
        over = isinstance(message, messages.Yield) and (message.lost or message.drop)
        if lane is not None and (over or isinstance(message, messages.Stop)):
            lane.interrupt()

    def _let_go(self, *, finished: bool) -> None:
        """Of the last generation's peers. No step is too slow for ever: whoever lost patience has more from now on."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close(finished=finished)
            self._patience *= 2 if lane.ran_out else 1

    def _load(self, run: messages.Run) -> messages.Idle | None:
        """Come to the state of `run.step`. On damage say what is still usable, and do not run."""
        from ..storage import commits, manifests
        from ..storage.blobs import blob_digest

        engine = self._engine
        assert engine is not None
        if engine.step == run.step or (run.lane == "peer" and run.step in run.held):
            return None  # it is held, or a peer will give it
        assert run.base.manifest is not None
        assert run.base.step == run.step
        self._channel.say(messages.Computing(what="load"))
        laps = Laps()
        usable = messages.Base()
        try:
            at = (self._committer.job, run.step)
            manifest, state, damage = commits.read_latest(self._store, run.base.manifest, at=at)
            usable = messages.Base(step=manifest.step, manifest=blob_digest(manifests.encode_manifest(manifest)))
        except CorruptError as error:
            if self._forked:
                raise  # it began with another job's commit, so it cannot begin again
            damage = str(error).splitlines()
        if damage:
            log.error("runner.commit_damaged", damage=damage, usable=usable.step)
            self._committer.heal = True
            if usable.manifest != run.base.manifest:
                damaged = messages.Damaged(manifest=run.base.manifest, usable=usable, found=tuple(damage))
                self._channel.say(damaged)
                return messages.Idle(generation=run.generation, held=engine.step, reason="yield")
        engine.load_state(state)
        assert engine.step == run.step
        self._holding.own = False
        laps.end("seconds")
        log.info("runner.commit_read", step=run.step, **laps.seconds)
        self._committer.forget()
        return None

    def _restore(self, base: messages.Base, doubted: int) -> None:
        """Hold the state of this commit, whatever was held; if it is damaged, or of the doubted step, of an ancestor.

        The state of the doubted step itself may have been committed by one of us alone, for those who joined.
        """
        from ..storage import commits

        assert self._engine is not None
        digest = base.manifest
        at: tuple[str, int] | None = (self._committer.job, base.step)
        while digest is not None:
            manifest, state, damage = commits.read_latest(self._store, digest, at=at, job=self._committer.job)
            if damage:
                log.error("runner.commit_damaged", damage=damage)
            if manifest.step < doubted:
                self._engine.load_state(state)
                return
            digest, at = manifest.parent, None
        if self._forked:
            raise CorruptError(f"there is no commit before step {doubted}, and a fork has no beginning of its own")
        fresh = self._build()
        self._engine.load_state(fresh.state())
        fresh.close()

    def _commit(self, message: messages.Commit) -> None:
        """Commit the state held now and wait until it is published or refused."""
        assert self._engine is not None
        step = self._engine.step
        committer = self._committer
        while not committer.idle:
            time.sleep(0.01)
        committer.enter(0, message.base)
        while not committer.settled(step):
            if committer.idle:
                committer.begin({}, publish=True, share=(0, 1))
            self._let_in(None, 0.01)
            if committer.failure is not None:
                raise self._failure(committer.failure)
        self._channel.say(messages.Committed(step=step, published=committer.base.step >= step))

    def _let_in(self, session: Session | None, seconds: float) -> None:
        """Take in what the agent has said; wait up to `seconds` for the first of it."""
        inbox = self._channel.inbox
        try:
            message = inbox.get(timeout=seconds) if seconds else inbox.get_nowait()
            while True:
                if isinstance(message, messages.Stop):
                    raise _Stopped
                if session is not None:
                    session.hear(message)
                message = inbox.get_nowait()
        except queue.Empty:
            return


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one argument, `Environment` as JSON."""
    import faulthandler

    from .. import logs

    environment = msgspec.json.decode((arguments or sys.argv[1:])[0], type=Environment)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # These are for the agent, which lets the step finish; service managers send them to all processes at once.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logs.configure()
    runner = Runner(environment)
    import torch  # noqa: F401 - the fork server has done that already, where all is well

    log.info("runner.started", pid=os.getpid())
    runner.main()


if __name__ == "__main__":
    main()
