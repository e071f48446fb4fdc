"""What verifying decides: which steps are meant, and what two records say differently."""

from __future__ import annotations

import pytest
from easyscale.errors import CorruptError, UserError
from easyscale.pipeline.commit_checks import recorded
from easyscale.pipeline.departures import class_differences, number_differences
from easyscale.pipeline.diff import _alike, first_line_apart
from easyscale.pipeline.replay_messages import Followed
from easyscale.pipeline.verify import check_range
from easyscale.storage.blobs import blob_key, put_blob
from easyscale.storage.memory import MemoryStore


def test_the_whole_job_is_meant_unless_steps_are_named() -> None:
    assert check_range("j", 80, None, None, None) == (0, 80)
    assert check_range("j", 80, 20, None, None) == (20, 80)
    assert check_range("j", 80, None, 33, None) == (0, 33)
    assert check_range("j", 80, 33, 33, None) == (33, 33)
    assert check_range("j", 80, None, None, 33) == (33, 34), "a trace needs its own span only"
    assert check_range("j", 80, 0, 80, 33) == (0, 80)


@pytest.mark.parametrize(
    ("first", "last", "traced", "words"),
    [
        (30, 20, None, "--from 30 is after --to 20"),
        (None, 81, None, "newest commit of job 'j' is that of step 80"),
        (80, None, None, "--from 80: the newest commit"),
        (None, None, 80, "--trace 80: job 'j' has committed the steps 0 to 79"),
        (None, None, -1, "--trace -1"),
        (0, 20, 20, "--trace 20 is not among the steps that are verified, 0 to 19"),
        (30, None, 29, "--trace 29 is not among the steps that are verified, 30 to 79"),
    ],
)
def test_steps_that_are_not_there_are_refused(
    first: int | None, last: int | None, traced: int | None, words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        check_range("j", 80, first, last, traced)
    assert refused.value.hint


def test_only_the_numbers_that_differ_are_told() -> None:
    one = {"step": 3, "losses": [1.0, 2.0, 3.0], "lr": [0.1], "grad_norm": None}
    other = {"step": 3, "losses": [1.0, 2.5, 3.0], "lr": [0.1, 0.2], "skipped": False}
    assert number_differences(one, other) == {
        "losses[1]": (2.0, 2.5),
        "lr": ([0.1], [0.1, 0.2]),
        "skipped": (None, False),
    }


def test_determinism_classes_are_told_where_they_differ() -> None:
    there, here = {"isa": "AVX2", "torch": "2.13", "cuda": "13"}, {"isa": "AVX512", "torch": "2.13"}
    assert class_differences(there, here) == "isa AVX2 there, AVX512 here; cuda 13 there, none here"


def test_the_first_step_recorded_otherwise_is_found_and_a_missing_record_counts() -> None:
    lines = {step: str(step) for step in range(10, 20)}
    assert first_line_apart(lines, lines, 10, 20) is None
    assert first_line_apart(lines, {**lines, 14: "x", 17: "y"}, 10, 20) == 14
    assert first_line_apart(lines, {step: line for step, line in lines.items() if step != 12}, 10, 20) == 12
    assert first_line_apart(lines, {**lines, 19: "x"}, 10, 19) is None


@pytest.mark.parametrize("data", [b"no JSON\n", b"[1]\n", b"{}\n", b"7\n", b"\xff\n"])
def test_a_blob_that_is_no_record_of_steps_is_named(data: bytes) -> None:
    store = MemoryStore()
    digest = put_blob(store, data)
    with pytest.raises(CorruptError, match=f"{blob_key(digest)} is no record of steps"):
        recorded(store, digest)


def test_jobs_that_come_to_the_same_states_here_may_still_tell_other_things_of_their_steps() -> None:
    one, other = Followed(states=("a", "b"), lines=("x",)), Followed(states=("a", "b"), lines=("y",))
    assert "verify tells which" in _alike(one, one)
    assert "only what is recorded of the steps differs" in _alike(one, other)
