"""Faults inside real processes: Python imports this module at its start where a test has put this folder on the path.

`SABOTAGE` says which, separated by commas:

- `lying-renewals`: every renewal of a lease is answered "alive", and never sent.
- `blind-watches`: no watch ever wakes anybody.
- `errors=0.05`: of all calls to etcd this part fails, half of them before and half of them after they have been done.
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


for name, _, value in (fault.partition("=") for fault in filter(None, os.environ.get("SABOTAGE", "").split(","))):
    match name:
        case "clock":
            shift_clocks(float(value))
        case "lying-renewals":
            lie_about_renewals()
        case "blind-watches":
            blind_watches()
        case "errors":
            lose_calls(float(value))
        case _:
            sys.exit(f"unknown sabotage {name!r}")
    sys.stderr.write(f'{{"event": "sabotaged", "by": "{name}"}}\n')
