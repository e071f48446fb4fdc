"""Submits of one name at the same instant, and stores that do not belong together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from easyscale.coordinator import keys
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.submit import place
from easyscale.settings import Settings
from easyscale.storage.blobs import get_blob
from easyscale.storage.files import FileStore
from user import TRAINING, Ran, User, ended, refused

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.pipeline.bundle import Bundle

ROUNDS = 2

MEETING = """
import os, time, pathlib
here = pathlib.Path(os.environ["MEETING"])
(here / str(os.getpid())).touch()
until = time.monotonic() + 60
while len(list(here.iterdir())) < 2 and time.monotonic() < until:
    time.sleep(0.001)
"""
"""Both submits wait here for each other, so that what they write comes at the same instant."""


def race(folder: Path, number: int, *options: list[str]) -> list[Ran]:
    """Two submits of one name in one folder."""
    meeting = folder / f"meeting{number}"
    meeting.mkdir()
    user = User(folder, MEETING=str(meeting))
    user.write(TRAINING + MEETING)
    return [
        ended(process)
        for process in [
            user.start("submit", "train.py", "--name", f"race{number}", "-o", "json", *given) for given in options
        ]
    ]


def test_two_equal_submits_at_one_instant_make_one_job_which_both_find(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        both = race(tmp_path, number, [], [])
        assert [ran.code for ran in both] == [0, 0], both
        assert sorted(ran.last["how"] for ran in both) == ["created", "found"]


def test_two_different_submits_at_one_instant_make_one_job_and_the_other_is_told_what_differs(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        both = race(tmp_path, number, ["--set", "seed=1"], ["--set", "seed=2"])
        winner, loser = sorted(range(2), key=lambda i: both[i].code)
        assert both[winner].last["how"] == "created"
        there, here = winner + 1, loser + 1
        refused(both[loser], f"seed was {there}, is {here}", "--name")
        kv = EmbeddedStore(tmp_path / ".easyscale" / "kv.sqlite")
        record = kv.get(keys.spec(f"race{number}"))
        kv.close()
        assert record is not None
        store = FileStore(tmp_path / ".easyscale" / "store")
        spec = JobSpec.decode(get_blob(store, json.loads(record.value)["spec"]))
        assert spec.seed == there, "one specification: the winner's"


def test_a_key_value_store_and_an_object_store_of_different_worlds_are_told_and_left_alone(
    tmp_path: Path, training: tuple[JobSpec, Bundle]
) -> None:
    user = User(tmp_path)
    user.write(TRAINING)
    kv = EmbeddedStore(Settings("", "", tmp_path / ".easyscale").make_folder() / "kv.sqlite")
    place(kv, FileStore(tmp_path / ".easyscale" / "store"), *training)
    kv.close()
    (tmp_path / "other").mkdir()
    before = user.left()
    ran = user.run("submit", "train.py", "--store", f"file://{tmp_path}/other")
    refused(ran, "is known at the key-value store, but not in the object store", f"file://{tmp_path}/other", "--store")
    assert user.left() == before
