"""Faults inside real processes: Python imports this module at its start where a test has put this folder on the path.

`SABOTAGE` says which, separated by commas:

- `lying-renewals`: every renewal of a lease is answered "alive", and never sent.
- `blind-watches`: no watch ever wakes anybody.
- `errors=0.05`: of all calls to etcd this part fails, half of them before and half of them after they have been done.
- `flips`: this worker's memory flips a bit, as the name of the job says: see `Flips`.
- `apart`: peers do not see that they are on one machine, and exchange over gloo.
- `falls=<folder>`: the first runner that comes to a point of which there is a file in the folder removes the file and
  kills itself: see `Falls`.
- `clock=3600`: the wall clock and the monotonic clock are that many seconds ahead, for all but gRPC, whose core looks
  at the kernel's clock by itself.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

SPARED = 3


def shift_clocks(seconds: float) -> None:
    for name, step in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        setattr(time, name, shifted(getattr(time, name), int(seconds) * step))


def shifted(real: Any, ahead: int) -> Any:
    def now() -> Any:
        inside = sys._getframe(1).f_globals.get("__name__", "")
        return real() if inside.startswith("grpc") else real() + ahead

    return now


def lie_about_renewals() -> None:
    from easyscale.coordinator.etcd import EtcdStore

    EtcdStore.keep_alive = lambda self, lease: True  # type: ignore[method-assign]


def blind_watches() -> None:
    from easyscale.coordinator.embedded import EmbeddedWatch
    from easyscale.coordinator.etcd import EtcdWatch

    def wait(self: Any, timeout: float) -> bool:
        time.sleep(timeout)
        return False

    EtcdWatch.wait = EmbeddedWatch.wait = wait  # type: ignore[method-assign]


def lose_calls(part: float) -> None:
    from easyscale.coordinator.etcd import EtcdStore
    from easyscale.errors import OutcomeUnknownError, UnavailableError

    chance = random.Random(os.getpid())
    call = EtcdStore._call
    calls = itertools.count()

    def sometimes(self: Any, invoke: Any, *, repeatable: bool = True, **options: Any) -> Any:
        # The first calls tell a command whether anybody is there at all, and it ends if not.
        fate = chance.random() if next(calls) >= SPARED else 1.0
        if fate < part / 2:
            raise UnavailableError("sabotage: not sent")
        answer = call(self, invoke, repeatable=repeatable, **options)
        if fate < part:
            raise (UnavailableError if repeatable else OutcomeUnknownError)("sabotage: the answer is lost")
        return answer

    EtcdStore._call = sometimes  # type: ignore[method-assign, assignment]


class Flips:
    """One bit is flipped in a replica, once it has shared a step of its job with others and has got far enough.

    In its first step with others it has only just been given its state: nobody could tell whose memory was bad.

    Gradients are flipped in the last bias, where none is zero: a zero with a flipped bit may be too small to count.

    `parameter`, `moment`: once, between two comparisons, so that wrong partials spread. `buffer`: once, when it is
    compared. `averaged`: in the averaged gradient, once. `partial`: in the first gradient that is sent of an audited
    step. `always`: in every averaged gradient from then on, also when a step is computed again.
    """

    STEP = 13
    EVERY = 10

    def __init__(self, engine: Any, what: str) -> None:
        self.engine, self.what, self.done, self.due, self.watch = engine, what, False, False, None
        self.shared = False
        self.compute, self.run, self.scatter = engine.compute, engine._run, engine._layout.scatter
        engine.compute, engine._run, engine._layout.scatter = self.on_compute, self.on_run, self.on_scatter

    def flip(self, tensor: Any, bit: int = 28) -> None:
        import torch

        tensor.detach().reshape(-1).view(torch.int32)[0] ^= 1 << bit
        self.done = self.what != "always"

    def on_compute(self, ests: range, watch: int | None = None) -> Any:
        step, state = self.engine.step, self.engine.state()
        self.due = not self.done and self.shared and step >= self.STEP and len(ests) < self.engine._spec.ests
        self.shared = len(ests) < self.engine._spec.ests
        self.watch = watch
        if self.due and self.what == "parameter":
            self.flip(state["model"]["parameters"]["6.weight"])
        if self.due and self.what == "moment":
            self.flip(state["optimizer"]["state"][4]["momentum_buffer"])
        if self.due and self.what == "buffer" and step % self.EVERY == 0:
            self.flip(state["model"]["buffers"]["1.running_mean"])
        return self.compute(ests, watch)

    def on_run(self, est: int, pieces: Any) -> Any:
        losses = self.run(est, pieces)
        if self.what == "partial" and self.due and not self.done and est == self.watch:
            self.flip(self.engine._layout.parameters[5].grad)
        return losses

    def on_scatter(self, flat: Any, used: bytes) -> None:
        always = self.what == "always" and self.engine.step >= self.STEP
        if always or (self.what == "averaged" and self.due and not self.done):
            self.flip(flat.views[5])
        self.scatter(flat, used)


def flip_bits() -> None:
    from easyscale.pipeline.runner import Runner

    prepare = Runner._prepare

    def spoiled(self: Any, message: Any) -> None:
        prepare(self, message)
        Flips(self._engine, message.job)

    Runner._prepare = spoiled  # type: ignore[method-assign]


def set_apart() -> None:
    from easyscale.pipeline.shared import Shared

    Shared.meet = staticmethod(lambda *_: None)  # type: ignore[assignment]


class Falls:
    """A runner dies by SIGKILL where a signal from outside would hardly ever hit it.

    `give`, `take`: in the middle of a state's transfer. `gathered`: its exchange is finished, nothing is applied yet.
    `halfway`: it has sent its finished part of the gradient to one of its peers, and not to the others. `upload`: it
    has a part of a commit to write. `publish`: that commit is written, and not published.
    """

    def __init__(self, folder: str) -> None:
        from easyscale.pipeline import exchange
        from easyscale.pipeline.committer import Committer
        from easyscale.pipeline.links import Links
        from easyscale.pipeline.peers import PeerLane
        from easyscale.pipeline.shared import Shared

        exchange.SMALL = 0  # of a gradient that goes whole there are no finished parts
        self.folder = Path(folder)
        self.moves, self.poll, self.writing = {Links: Links.move, Shared: Shared.move}, PeerLane.poll, Committer.writing
        for kind in self.moves:
            kind.move = lambda links, *args: self.on_move(links, *args)
        PeerLane.poll = lambda lane, step: self.on_poll(lane, step)  # type: ignore[method-assign]
        Committer.writing = lambda committer, order: self.on_writing(committer, order)  # type: ignore[method-assign]

    def due(self, point: str) -> bool:
        try:
            (self.folder / point).unlink()
        except FileNotFoundError:
            return False
        return True

    def at(self, point: str) -> None:
        if self.due(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_move(self, links: Any, tag: int, sends: Any) -> Any:
        from easyscale.pipeline.exchange import FINISHED, STATE
        from easyscale.pipeline.links import Links

        if tag == STATE:
            self.at("give" if sends else "take")
        if tag == FINISHED and len(sends) > 1 and self.due("halfway"):
            wait = self.moves[type(links)](links, tag, dict(list(sends.items())[:1]))
            if isinstance(links, Links):  # else it has arrived
                wait()
            time.sleep(0.3)  # on a busy machine, too, its peer is to finish the step before the others miss it
            os.kill(os.getpid(), signal.SIGKILL)
        return self.moves[type(links)](links, tag, sends)

    def on_poll(self, lane: Any, step: int) -> Any:
        gathered = self.poll(lane, step)
        if gathered is not None and gathered[0][1] is not None:
            self.at("gathered")
        return gathered

    def on_writing(self, committer: Any, order: Any) -> Any:
        from easyscale.pipeline.committer import advance

        self.at("upload")
        writing = self.writing(committer, order)
        publish = next(writing, None)
        if publish is not None:
            self.at("publish")
        while publish is not None:
            publish = advance(writing, (yield publish))


for name, _, value in (fault.partition("=") for fault in filter(None, os.environ.get("SABOTAGE", "").split(","))):
    match name:
        case "clock":
            shift_clocks(float(value))
        case "lying-renewals":
            lie_about_renewals()
        case "blind-watches":
            blind_watches()
        case "flips":
            flip_bits()
        case "apart":
            set_apart()
        case "falls":
            Falls(value)
        case "errors":
            lose_calls(float(value))
        case _:
            sys.exit(f"unknown sabotage {name!r}")
    sys.stderr.write(f'{{"event": "sabotaged", "by": "{name}"}}\n')
