"""Results of `verify` that are kept for people: bounded, none lost to another, none in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import keys
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import UnavailableError
from easyscale.pipeline import cli_proof, verified
from easyscale.pipeline.commit_checks import Finding
from easyscale.pipeline.verified import Verified
from easyscale.pipeline.verify import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from easyscale.coordinator.kv import Compare, Delete


def result(end: int, **fields: Any) -> Verified:
    return Verified(verdict="verified", start=0, end=end, steps=end, at=1.0, host="here", device="cpu", **fields)


def test_the_newest_results_are_kept_in_order_and_what_was_found_is_cut_short() -> None:
    kv = MemoryKV("verified")
    for end in range(verified.KEPT + 3):
        verified.keep(kv, "job", result(end, found="x" * 10_000))
    kept = verified.read(kv, "job")
    assert [one.end for one in kept] == [*range(3, verified.KEPT + 3)]
    assert {len(one.found) for one in kept} == {verified.SHOWN}
    assert verified.read(kv, "another") == ()


def test_of_two_that_are_written_at_once_none_is_lost() -> None:
    class Between(MemoryKV):
        """Another one writes between reading and writing, once."""

        other: Verified | None = result(1)

        def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> Any:
            if self.other is not None:
                other, self.other = self.other, None
                verified.keep(self, "job", other)
            return super().txn(compares, operations)

    kv = Between("verified")
    verified.keep(kv, "job", result(2))
    assert [one.end for one in verified.read(kv, "job")] == [1, 2]


def test_where_others_always_write_first_it_says_so() -> None:
    class Busy(MemoryKV):
        """Somebody else always writes in between."""

        def txn(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> Any:
            super().txn((), (Put(keys.verified("job"), b'{"newest":[]}'),))
            return super().txn(compares, operations)

    with pytest.raises(UnavailableError, match="keeps changing"):
        verified.keep(Busy("verified"), "job", result(1))


def test_verify_says_what_differs_and_does_not_fail_where_that_cannot_be_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Finding(what="pack", step=4, key="blobs/ab/abc", problem="is gone")
    verdict = Verdict(
        job="job", verdict="differs", start=0, end=8, commits=2, steps=4, findings=[gone], departures=[], here={},
        there={}, trouble="no way to compute it here",
    )  # fmt: skip
    kv = MemoryKV("verified")
    cli_proof.keep(kv, verdict, "cuda:1")
    (kept,) = verified.read(kv, "job")
    assert (kept.verdict, kept.steps, kept.device) == ("differs", 4, "cuda:1")
    assert kept.found == "commit 4: pack blobs/ab/abc is gone\nno way to compute it here"

    def away(*_: object) -> Any:
        raise UnavailableError("no answer")

    monkeypatch.setattr(kv, "txn", away)
    cli_proof.keep(kv, verdict, "cpu")
    assert "warning: this is not noted for others: no answer" in capsys.readouterr().err


def test_what_cannot_be_read_is_replaced() -> None:
    kv = MemoryKV("verified")
    kv.txn((), (Put(keys.verified("job"), b"{"),))
    assert verified.read(kv, "job") == ()
    verified.keep(kv, "job", result(5))
    assert [one.end for one in verified.read(kv, "job")] == [5]
