"""The replay process: computes steps of a job anew on the device at hand, and says how they compare with the record.

It is prepared as a runner is, with the job's threads and in deterministic mode, and runs all ESTs one after another.
The user's code runs here and never in the command. It ends with the command.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from .. import logs
from ..errors import CorruptError, EasyScaleError, NotFoundError, UserError, shown
from ..storage import commits, trees
from ..storage.differences import differences
from ..storage.digest import tree_digest
from ..storage.objects import open_store
from . import commit_checks, determinism, inputs, preparation, replica
from . import replay_messages as messages
from .data import fingerprint
from .endings import describe
from .engine import Engine, build
from .trace import Recorder, Trace, unstable, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..storage.objects import ObjectStore
    from .function import FunctionEngine
    from .messages import Base
    from .spec import JobSpec

log = structlog.get_logger()

SHOWN = 20
"""Differing tensors that are told of one by one."""


class Replica:
    """The job's replica, and how it is led from commit to commit.

    Args:
        order: what to prepare. say: sends an answer.

    Raises:
        DeviceError, ScriptError: it cannot be prepared here.
    """

    def __init__(self, order: messages.Begin, say: Callable[[messages.Answer], None]) -> None:
        self.folder = Path(order.folder)
        self._job, self._device, self._say = order.job, order.device, say
        self._store: ObjectStore = open_store(order.store)
        spec, self.folder = preparation.fetch(
            self._store, Path(order.folder), job=order.job, spec=order.spec, code=order.code
        )
        preparation.configure(spec, order.device)
        self._recorder: Recorder | None = None
        self._model: nn.Module | None = None
        self._same_data = True
        spec = spec if order.loaders else msgspec.structs.replace(spec, loaders=0)
        self.engine = self._made(preparation.load_build(self.folder, spec.script), spec)
        self.classes = determinism.determinism_class(order.device, spec.threads, spec.numerics)
        self._initial = commits.Snapshot.take(0, self.engine.state())
        self._held = self.digest()

    def _made(self, entry: Callable[..., Any], spec: JobSpec) -> Engine | FunctionEngine:
        """As `replica.make`, and ready to be watched."""
        if spec.kind == "function":
            return replica.make(entry, spec, self._store, self._device, anew=True)
        training = build(entry, spec, lambda: inputs.load(self._store, spec))
        self._same_data = fingerprint(training.dataset, spec.seed) == spec.data
        self._model = training.model
        training = dataclasses.replace(training, step=watched(training.step, lambda: self._recorder))
        return Engine(training, spec, self._device)

    def begun(self) -> messages.Begun:
        """See the message."""
        return messages.Begun(determinism=self.classes, initial=self._held, same_data=self._same_data)

    def named(self) -> messages.Named:
        """See the message."""
        model = self._model
        if model is None:
            raise UserError(f"job {self._job!r} is a call of a function: it has no model")
        places = {id(tensor): f"buffers/{name}" for name, tensor in model.named_buffers()}
        places |= {id(tensor): f"parameters/{name}" for name, tensor in model.named_parameters()}
        entries = model.state_dict(keep_vars=True)
        return messages.Named(
            places={name: places[id(tensor)] for name, tensor in entries.items() if id(tensor) in places},
            others=tuple(name for name, tensor in entries.items() if id(tensor) not in places),
        )

    def digest(self) -> str:
        """Digest of the state held."""
        return tree_digest(self.engine.state())

    def _hold(self, base: Base) -> None:
        """Hold the state of a commit, or the initial one."""
        if base.manifest is None:
            self._restore(self._initial)
        else:
            self.engine.load_state(commits.read_commit(self._store, base.manifest)[1])
        assert self.engine.step == base.step

    def _restore(self, snapshot: commits.Snapshot) -> None:
        self.engine.load_state(trees.restore(snapshot.skeleton, snapshot.tensors))

    def _step(self) -> str:
        """One step; what is recorded of it, as a JSON line."""
        report = self.engine.run_local()
        self._say(messages.Stepped(step=self.engine.step))
        return msgspec.json.encode(report).decode()

    def recompute(self, order: messages.Recompute) -> messages.Recomputed:
        """See the message."""
        if (self.engine.step, self._held) != (order.start.step, order.held):
            self._hold(order.start)
        recorded = self._recorded(order.history)
        first: tuple[int, str, str] | None = None
        while self.engine.step < order.stop.step:
            step = self.engine.step
            line = self._step()
            was = line if recorded is None else recorded.get(step, "" if order.whole else line)
            if first is None and was != line:
                first = step, was, line
        self._held = self.digest()
        found = messages.Recomputed(digest=self._held)
        if first is not None:
            found = msgspec.structs.replace(found, step=first[0], recorded=first[1], came_out=first[2])
        if self._held == order.digest:
            return found
        assert order.stop.manifest is not None
        try:
            theirs = commits.read_commit(self._store, order.stop.manifest)[1]
        except (CorruptError, NotFoundError) as error:
            return msgspec.structs.replace(found, unread=str(error))
        tensors = differences(trees.flatten(theirs), trees.flatten(self.engine.state()))
        return msgspec.structs.replace(found, differing=len(tensors), tensors=tuple(tensors[:SHOWN]))

    def _recorded(self, history: str | None) -> dict[int, str] | None:
        """The recorded lines by step; None if they cannot be read: who looks at the blobs says so."""
        try:
            return commit_checks.recorded(self._store, history) if history else {}
        except (CorruptError, NotFoundError):
            return None

    def follow(self, order: messages.Follow) -> messages.Followed:
        """See the message."""
        self._hold(order.start)
        states, lines = [self.digest()], []
        while self.engine.step < order.until:
            lines.append(self._step())
            states.append(self.digest())
        self._held = states[-1]
        return messages.Followed(states=tuple(states), lines=tuple(lines))

    def record(self, order: messages.Record) -> messages.Recorded:
        """See the message."""
        if self._model is None:
            return messages.Recorded(traces=())
        self._hold(order.start)
        states = [self.digest()]
        traces = []
        for step in sorted(order.steps):
            while self.engine.step < step:
                self._step()
                states.append(self.digest())
            traces.append(self._trace(order.start.step, list(states)))
            states.append(self.digest())
        self._held = states[-1]
        return messages.Recorded(traces=tuple(traces))

    def _trace(self, base: int, states: list[str]) -> Trace:
        before = commits.Snapshot.take(self.engine.step, self.engine.state())
        self.engine.compute(range(1))  # what libraries set up at their first call must not be taken for a difference
        once = self._recorded_step()
        after = self.digest()
        self._restore(before)
        again = self._recorded_step()
        return Trace(
            job=self._job,
            step=before.step,
            base=base,
            determinism=self.classes,
            states=states,
            after=after,
            operators=once.operators,
            unstable=unstable(once.operators, again.operators),
            repeatable=self.digest() == after,
        )

    def _recorded_step(self) -> Recorder:
        assert self._model is not None
        self._recorder = recorder = Recorder(self.folder, self._model)
        try:
            with recorder:
                self._step()
        finally:
            self._recorder = None
        return recorder


def serve(connection: socket.socket, folder: Path) -> None:
    """Do what the command asks until it goes."""

    def say(answer: messages.Answer) -> None:
        connection.sendall(messages.encode(answer))

    held: Replica | None = None
    try:
        with connection.makefile("rb") as lines:
            for line in lines:
                order = messages.decode_order(line)
                if isinstance(order, messages.Begin):
                    held = Replica(order, say)
                    folder = held.folder
                    say(held.begun())
                    continue
                assert held is not None
                if isinstance(order, messages.Recompute):
                    say(held.recompute(order))
                elif isinstance(order, messages.Follow):
                    say(held.follow(order))
                elif isinstance(order, messages.Name):
                    say(held.named())
                else:
                    say(held.record(order))
    except (BrokenPipeError, ConnectionResetError):
        return
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
        step = held.engine.step if held else 0
        told = describe(error, step, folder)
        cause = "refused" if isinstance(error, EasyScaleError) and error.exit_code == 2 else told.cause
        say(messages.Failed(cause=cause, message=told.message or shown(error), traceback=told.traceback))
    finally:
        if held is not None:
            held.engine.close()


def main() -> None:
    """Entry point: number of the descriptor that is the connection to the command, and our local folder."""
    fd, folder = sys.argv[1:]
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends us
    logs.configure("warning")
    with socket.socket(fileno=int(fd)) as connection:
        serve(connection, Path(folder))


if __name__ == "__main__":
    main()
