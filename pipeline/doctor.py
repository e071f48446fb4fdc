"""Looks whether what we stand on is fit: the key-value store and its leases, the object store, torch, the clocks.

It writes under keys of its own, which it removes, and changes nothing else.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from .. import settings as places
from ..coordinator.keys import PREFIX
from ..coordinator.kv import Put, absent, open_kv
from ..errors import EasyScaleError
from ..storage import selftest
from ..storage.objects import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..coordinator.kv import KeyValueStore
    from ..storage.objects import ObjectStore

OLDEST_ETCD = {(3, 5): 28, (3, 6): 9}
"""The first patch releases with the lease, watch and stale-read fixes of March 2026 (etcd's CHANGELOG)."""

MAX_SKEW_SECONDS = 300.0
"""S3 refuses requests that are further off than 15 minutes; at a third of that it is time to say so."""

TTL_SECONDS = 5.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at. `fatal`: EasyScale cannot work like this."""

    what: str
    ok: bool
    fatal: bool
    detail: str
    hint: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON output."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain

    def line(self) -> str:
        """For people."""
        mark = "ok  " if self.ok else "BAD " if self.fatal else "warn"
        hint = f"\n     {self.hint}" if self.hint and not self.ok else ""
        return f"{mark} {self.what:<24} {self.detail}{hint}"


def examine(kv: str | None, store: str | None, folder: str | None) -> Iterator[Finding]:
    """Look at everything, as it comes.

    Raises:
        UserError: settings that cannot be read.
    """
    found = places.resolve(kv, store, folder)
    found.make_folder()
    yield from _guarded("key-value store", lambda: _kv(open_kv(found.kv)))
    yield from _guarded("object store", lambda: _store(open_store(found.store)))
    yield from _guarded("torch", _torch)


def _guarded(what: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except EasyScaleError as error:
        text, _, hint = str(error).partition("\n")
        yield Finding(what=what, ok=False, fatal=True, detail=text, hint=hint.strip())


def _kv(kv: KeyValueStore) -> Iterator[Finding]:
    began = time.monotonic()
    kv.get(PREFIX)
    yield _good("key-value store", f"{kv.address} answers in {1000 * (time.monotonic() - began):.1f} ms")
    version = getattr(kv, "version", None)
    if version is not None:
        yield _etcd_version(str(version()))
    yield from _leases(kv)
    kv.close()


def _etcd_version(version: str) -> Finding:
    major, minor, patch, *_ = [*(int(n) for n in re.findall(r"\d+", version)), 0, 0, 0]
    line = major, minor
    fine = line > max(OLDEST_ETCD) or patch >= OLDEST_ETCD.get(line, 1 << 30)
    trouble = " has known lease, watch and stale-read bugs: results are safe, work may be done twice"
    return Finding(
        what="etcd version",
        ok=fine,
        fatal=False,
        detail=version if fine else version + trouble,
        hint="3.5.28, 3.6.9 and newer have them mended",
    )


def _leases(kv: KeyValueStore) -> Iterator[Finding]:
    """Do leases do what fencing needs: take keys with them, refuse renewal when gone?"""
    key = f"{PREFIX}doctor/{secrets.token_hex(8)}"
    lease = kv.grant(TTL_SECONDS)
    try:
        created = kv.txn((absent(key),), (Put(key, b"here", lease),)).succeeded
        again = kv.txn((absent(key),), (Put(key, b"again", lease),)).succeeded
        alive = kv.keep_alive(lease)
    finally:
        kv.revoke(lease)
    gone, dead = kv.get(key) is None, not kv.keep_alive(lease)
    checks = {
        "a key is created once": created and not again,
        "a living lease is renewed": alive,
        "an ended lease takes its keys": gone,
        "an ended lease is not renewed": dead,
    }
    broken = [name for name, holds in checks.items() if not holds]
    if broken:
        yield Finding(
            what="leases", ok=False, fatal=True, detail="not so: " + "; ".join(broken), hint="use another server"
        )
    else:
        yield _good("leases", "; ".join(checks))


def _store(store: ObjectStore) -> Iterator[Finding]:
    for found in selftest.self_test(store):
        yield Finding(
            what=f"object store: {found.check}", ok=found.ok, fatal=found.fatal and not found.ok,
            detail=found.detail, hint=found.hint,
        )  # fmt: skip
    skew = getattr(store, "clock_skew", None)
    if skew is None:
        return
    seconds = skew()
    yield Finding(
        what="clocks",
        ok=abs(seconds) < MAX_SKEW_SECONDS,
        fatal=False,
        detail=f"this machine's clock is {seconds:+.0f} s from that of {store.address}",
        hint="set the clock (NTP): S3 refuses requests that are 15 minutes off; nothing else depends on it",
    )


def _torch() -> Iterator[Finding]:
    try:
        import torch

        from . import determinism, switches
    except ImportError as error:
        yield Finding(what="torch", ok=False, fatal=True, detail=f"cannot be imported: {error}", hint="reinstall it")
        return
    determinism.configure(1)
    yield _switches(switches.moved(), switches.late())
    devices = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    for device in devices:
        parts = determinism.determinism_class(device, 1)
        text = ", ".join(f"{name} {value}" for name, value in parts.items())
        yield _good(f"device {device}", f"determinism class {determinism.class_id(parts)} ({text})")
        if device != "cpu" and torch.version.cuda is not None:
            yield _exact_on(device, torch.cuda.get_device_capability(device))
    yield _exact()


def _switches(moved: dict[str, object], late: list[str]) -> Finding:
    """What decides whether a device gives the same bits twice, after it was set.

    Args:
        moved, late: see `switches`.
    """
    wrong = [f"{name} is {value!r}" for name, value in moved.items()]
    wrong += [f"{name} was set after CUDA was initialised" for name in late]
    if not wrong:
        return _good("determinism", "all switches of PyTorch, cuBLAS and cuDNN are set as they should be")
    return Finding(
        what="determinism",
        ok=False,
        fatal=True,
        detail="not so: " + "; ".join(wrong),
        hint="something in this Python (sitecustomize, a .pth file, a plugin of torch) sets it or starts CUDA before "
        "EasyScale does: take it out; export variables before Python starts",
    )


def _exact() -> Finding:
    """Can exact numerics be had here? Nothing is built."""
    from .numerics import build

    try:
        path = build.place()
    except EasyScaleError as error:
        text, _, hint = str(error).partition("\n")
        return Finding(what="exact numerics", ok=False, fatal=False, detail=text, hint=hint.strip())
    there = f"kernels in {path}" if path.exists() else "kernels are built by the first job, or by: easyscale build"
    return _good("exact numerics", f"{build.compiler()}; {there}")


def _exact_on(device: str, capability: tuple[int, int]) -> Finding:
    """Can they be had on this GPU? Nothing is compiled."""
    from .numerics import cuda

    what = f"exact numerics on {device}"
    try:
        return _good(what, f"kernels are compiled for {cuda.architecture_of(capability)} by NVRTC")
    except EasyScaleError as error:
        text, _, hint = str(error).partition("\n")
        return Finding(what=what, ok=False, fatal=False, detail=text, hint=hint.strip())


def _good(what: str, detail: str) -> Finding:
    return Finding(what=what, ok=True, fatal=False, detail=detail)
