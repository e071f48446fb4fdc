"""The doctor finds what is unfit, says what to do, changes nothing, and looks at everything whatever it finds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import UnavailableError
from easyscale.pipeline import doctor, switches
from easyscale.pipeline.doctor import MAX_SKEW_SECONDS, Finding, examine
from easyscale.storage.memory import MemoryStore
from services import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from easyscale.storage.objects import Data


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds and changes this process's settings; the command line's test looks at it."""
    monkeypatch.setattr(doctor, "_torch", lambda: iter([]))


def found(folder: Path, kv: str = "", store: str = "") -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(kv or None, store or None, str(folder / "here"))}


def test_the_defaults_of_an_empty_folder_are_fit(tmp_path: Path) -> None:
    findings = found(tmp_path)
    assert {"key-value store", "leases", "object store: conditional create", "object store: round trip"} <= set(
        findings
    )
    assert all(finding.ok for finding in findings.values())
    assert "answers in" in findings["key-value store"].detail


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    kv, store = MemoryKV.named("doctor"), MemoryStore.named("doctor")
    assert all(finding.ok for finding in found(tmp_path, "memory://doctor", "memory://doctor").values())
    assert kv.range("/") == []
    assert kv._leases == {}
    assert list(store.list("")) == []


def test_one_thing_that_cannot_be_reached_does_not_hide_the_others(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    findings = found(tmp_path, kv=f"etcd://127.0.0.1:{port}")
    bad = findings["key-value store"]
    assert (bad.ok, bad.fatal) == (False, True)
    assert str(port) in bad.detail
    assert bad.hint
    assert findings["object store: round trip"].ok


@pytest.mark.parametrize("where", ["kv", "store"])
def test_an_address_that_cannot_be_read_is_told(tmp_path: Path, where: str) -> None:
    findings = found(tmp_path, **{where: "ftp://x"})
    (bad,) = [finding for finding in findings.values() if not finding.ok]
    assert bad.fatal
    assert "unknown scheme 'ftp'" in bad.detail
    assert bad.hint


class Forgetful(MemoryKV):
    """A store whose leases end and leave their keys."""

    def _end(self, lease: int) -> None:
        self._leases.pop(lease, None)


class Undead(MemoryKV):
    """A store that renews what is gone."""

    def keep_alive(self, lease: int) -> bool:
        return True


class Silent(MemoryKV):
    """A store that opens and does not answer."""

    def get(self, key: str) -> Any:
        raise UnavailableError("memory://x: no answer")


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [(Forgetful, "an ended lease takes its keys"), (Undead, "an ended lease is not renewed")],
)
def test_leases_that_do_not_fence_are_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[MemoryKV], complaint: str
) -> None:
    monkeypatch.setitem(MemoryKV._named, "sick", kind("sick"))
    leases = found(tmp_path, "memory://sick")["leases"]
    assert (leases.ok, leases.fatal, leases.detail) == (False, True, f"not so: {complaint}")
    assert leases.line().startswith("BAD ")


def test_a_store_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MemoryKV._named, "silent", Silent("silent"))
    bad = found(tmp_path, "memory://silent")["key-value store"]
    assert (bad.ok, bad.fatal, bad.detail) == (False, True, "memory://x: no answer")


@pytest.mark.parametrize(
    ("version", "fine"),
    [
        ("3.5.27", False),
        ("3.5.28", True),
        ("3.5.28+git", True),
        ("3.6.8", False),
        ("3.6.9", True),
        ("3.7.0", True),
        ("4.0", True),
        ("3.4.33", False),
        ("3.4", False),
    ],
)
def test_etcd_with_known_bugs_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fine: bool
) -> None:
    class Versioned(MemoryKV):
        def version(self) -> str:
            return version

    monkeypatch.setitem(MemoryKV._named, "etcd", Versioned("etcd"))
    finding = found(tmp_path, "memory://etcd")["etcd version"]
    assert (finding.ok, finding.fatal) == (fine, False)
    assert finding.line().startswith("ok " if fine else "warn")
    assert version in finding.detail


@pytest.mark.parametrize(("seconds", "fine"), [(0.0, True), (-200.0, True), (MAX_SKEW_SECONDS + 1, False)])
def test_a_clock_that_is_far_off_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, fine: bool
) -> None:
    class Skewed(MemoryStore):
        def clock_skew(self) -> float:
            return seconds

    monkeypatch.setitem(MemoryStore._named, "skewed", Skewed("skewed"))
    finding = found(tmp_path, store="memory://skewed")["clocks"]
    assert (finding.ok, finding.fatal) == (fine, False)


def test_a_store_that_has_two_winners_is_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(MemoryStore):
        def create(self, key: str, data: Data) -> bool:
            self.put(key, data)
            return True

    monkeypatch.setitem(MemoryStore._named, "careless", Careless("careless"))
    finding = found(tmp_path, store="memory://careless")["object store: conditional create"]
    assert (finding.ok, finding.fatal) == (False, True)
    assert finding.hint in finding.line()


def test_a_finding_is_plain_json() -> None:
    finding = Finding(what="x", ok=False, fatal=True, detail="d", hint="h")
    assert finding.as_dict() == {"what": "x", "ok": False, "fatal": True, "detail": "d", "hint": "h"}


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), "torch.backends.cudnn.benchmark is True"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", True), "torch.backends.cudnn.allow_tf32 is True"),
        (lambda: torch.set_float32_matmul_precision("high"), "torch.set_float32_matmul_precision is 'high'"),
        (
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            "torch.use_deterministic_algorithms is False",
        ),
        (lambda: os.environ.update(CUBLAS_WORKSPACE_CONFIG=":16:8"), "CUBLAS_WORKSPACE_CONFIG is ':16:8'"),
        (lambda: os.environ.pop("NVIDIA_TF32_OVERRIDE"), "NVIDIA_TF32_OVERRIDE is None"),
    ],
)
def test_a_switch_that_is_not_as_it_should_be_is_fatal(plant: Callable[[], None], complaint: str) -> None:
    switches.set_all()
    assert doctor._switches(switches.moved(), switches.late()).ok
    plant()
    try:
        bad = doctor._switches(switches.moved(), switches.late())
        assert (bad.ok, bad.fatal, bad.detail) == (False, True, f"not so: {complaint}")
        assert "take it out" in bad.hint
    finally:
        assert len(switches.put_back()) == 1
    assert doctor._switches(switches.moved(), switches.late()).ok


@pytest.mark.parametrize(("capability", "ok", "told"), [((9, 0), True, "sm_90"), ((7, 0), False, "the oldest is 7.5")])
def test_a_gpu_without_exact_kernels_is_told(capability: tuple[int, int], ok: bool, told: str) -> None:
    found = doctor._exact_on("cuda:0", capability)
    assert (found.ok, found.fatal) == (ok, False)
    assert told in found.detail
