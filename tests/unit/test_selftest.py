"""The start-up self-test, on stores that break one promise each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from easyscale.errors import AddressError, UnavailableError
from easyscale.storage.files import FileStore
from easyscale.storage.memory import MemoryStore
from easyscale.storage.selftest import require_fit, self_test
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.storage.objects import Data, ObjectStore


class IgnoresConditions(MemoryStore):
    def create(self, key: str, data: Data) -> bool:
        self.put(key, data)
        return True


class SaysCreatedButKeepsTheFirst(MemoryStore):
    def create(self, key: str, data: Data) -> bool:
        super().create(key, data)
        return True


class CreatesNothing(MemoryStore):
    def create(self, key: str, data: Data) -> bool:
        self.put(key, data)
        return False


class Mangles(MemoryStore):
    def get(self, key: str) -> bytes:
        return super().get(key).replace(b"\r\n", b"\n")


class CutsShort(MemoryStore):
    def get(self, key: str) -> bytes:
        return super().get(key)[:-1]


class TakesWrongChecksums(MemoryStore):
    def accepts_wrong_checksum(self, key: str) -> bool:
        self.put(key, b"wrong")
        return True


class FailsToRead(MemoryStore):
    def get(self, key: str) -> bytes:
        raise UnavailableError("no answer")


def test_a_good_store_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    stores: list[ObjectStore] = [MemoryStore(), FileStore(tmp_path)]
    for store in stores:
        store.put("selftest/other", b"of another process")
        findings = self_test(store)
        assert [(finding.check, finding.ok) for finding in findings] == [
            ("conditional create", True),
            ("round trip", True),
        ]
        require_fit(store)
        assert list(store.list("")) == ["selftest/other"]


@pytest.mark.parametrize(
    ("store", "check", "why"),
    [
        (IgnoresConditions(), "conditional create", "two workers would both own one commit"),
        (SaysCreatedButKeepsTheFirst(), "conditional create", "two workers would both own one commit"),
        (CreatesNothing(), "conditional create", "no commit could ever be published"),
        (Mangles(), "round trip", "would be damaged"),
        (CutsShort(), "round trip", "would be damaged"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused_with_the_reason_and_a_remedy(
    store: MemoryStore, check: str, why: str
) -> None:
    with pytest.raises(AddressError, match=f"memory://: {check}: .*{why}") as caught:
        require_fit(store)
    assert caught.value.exit_code == 2
    assert "server" in caught.value.hint
    assert check in [finding.check for finding in self_test(store) if finding.fatal and not finding.ok]
    assert list(store.list("")) == []


def test_a_server_that_ignores_conditions_is_not_accused_of_mangling_too() -> None:
    assert [finding.check for finding in self_test(IgnoresConditions()) if not finding.ok] == ["conditional create"]


def test_accepting_wrong_checksums_is_a_warning_and_no_refusal() -> None:
    store = TakesWrongChecksums()
    with capture_logs() as logs:
        require_fit(store)
    assert [(entry["event"], entry["log_level"], entry["check"]) for entry in logs] == [
        ("store_weakness", "warning", "checksums")
    ]
    assert list(store.list("")) == []


def test_a_store_that_does_not_answer_is_not_called_unfit_and_nothing_is_left() -> None:
    store = FailsToRead()
    with pytest.raises(UnavailableError, match="no answer"):
        require_fit(store)
    assert list(store.list("")) == []
