"""Faults inside real processes: Python imports this module at its start where a test has put this folder on the path.

`SABOTAGE` says which, separated by commas:

- `lying-renewals`: every renewal of a lease is answered "alive", and never sent.
- `blind-watches`: no watch ever wakes anybody.
- `errors=0.05`: of all calls to etcd this part fails, half of them before and half of them after they have been done.
- `flips`: this worker's memory flips a bit, as the name of the job says: see `Flips`.
- `clock=3600`: the wall clock and the monotonic clock are that many seconds ahead, for all but gRPC, whose core looks
  at the kernel's clock by itself.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any


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

    def sometimes(self: Any, invoke: Any, *, repeatable: bool = True, **options: Any) -> Any:
        fate = chance.random()
        if fate < part / 2:
            raise UnavailableError("sabotage: not sent")
        answer = call(self, invoke, repeatable=repeatable, **options)
        if fate < part:
            raise (UnavailableError if repeatable else OutcomeUnknownError)("sabotage: the answer is lost")
        return answer

    EtcdStore._call = sometimes  # type: ignore[method-assign, assignment]


class Flips:
    """One bit is flipped in a replica, as soon as it shares its job with others and has got far enough.

    Gradients are flipped in the last bias, where none is zero: a zero with a flipped bit may be too small to count.

    `parameter`, `moment`: once, between two comparisons, so that wrong partials spread. `buffer`: once, when it is
    compared. `averaged`: in the averaged gradient, once. `partial`: in the first gradient that is sent of an audited
    step. `always`: in every averaged gradient from then on, also when a step is computed again.
    """

    STEP = 13
    EVERY = 10

    def __init__(self, engine: Any, what: str) -> None:
        self.engine, self.what, self.done, self.due, self.watch = engine, what, False, False, None
        self.compute, self.run, self.scatter = engine.compute, engine._run, engine._layout.scatter
        engine.compute, engine._run, engine._layout.scatter = self.on_compute, self.on_run, self.on_scatter

    def flip(self, tensor: Any, bit: int = 28) -> None:
        import torch

        tensor.detach().reshape(-1).view(torch.int32)[0] ^= 1 << bit
        self.done = self.what != "always"

    def on_compute(self, ests: range, watch: int | None = None) -> Any:
        step, state = self.engine.step, self.engine.state()
        self.due = not self.done and step >= self.STEP and len(ests) < self.engine._spec.ests
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
        case "errors":
            lose_calls(float(value))
        case _:
            sys.exit(f"unknown sabotage {name!r}")
    sys.stderr.write(f'{{"event": "sabotaged", "by": "{name}"}}\n')
