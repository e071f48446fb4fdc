"""A job's history as its commits tell it, and the files that are made of it."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import records, views
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import CorruptError, NotFoundError, UserError
from easyscale.pipeline import history, scalars
from easyscale.pipeline.summary import read_job
from easyscale.storage.blobs import blob_key, put_blob
from easyscale.storage.memory import MemoryStore
from exhibits import Exhibit, one_job, step_line

if TYPE_CHECKING:
    from pathlib import Path


class Shown:
    """One job with 64 commits of 100 steps each."""

    def __init__(self) -> None:
        self.kv, self.store = MemoryKV("shown"), MemoryStore("shown")
        self.exhibit = Exhibit(self.kv, self.store)
        one_job(self.exhibit)

    @property
    def job(self) -> views.JobView:
        found = read_job(self.kv, "digits")
        assert found is not None
        return found

    @property
    def head(self) -> records.Head:
        assert self.job.head is not None
        return self.job.head.value

    def chain(self, *steps: dict[str, Any], metrics: dict[str, Any] | None = None) -> views.JobView:
        """A job whose only commit has these lines."""
        lines = self.exhibit.blob(b"".join(json.dumps(step).encode() + b"\n" for step in steps))
        manifest = self.exhibit.commit("odd", len(steps), None, lines, metrics or {})
        self.exhibit.job("odd", step=0)
        self.exhibit.hang()
        job = read_job(self.kv, "odd")
        assert job is not None
        head = records.Head(step=len(steps), manifest=manifest, state_digest="s", generation=1)
        job.head = views.Entry(job.spec.kv, head) if job.spec else None
        return job


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_commits_are_told_newest_first_with_all_that_people_ask_of_them(shown: Shown) -> None:
    found = list(history.commits(shown.store, shown.head.manifest))
    assert [commit.step for commit in found] == [*range(6400, 0, -100)]
    assert found[0].manifest == shown.head.manifest
    assert found[0].parent == found[1].manifest
    assert (found[0].size, found[0].metrics) == (4_000_000, shown.head.metrics)


def test_the_steps_of_a_commit_are_those_since_its_parent(shown: Shown) -> None:
    commit = next(history.commits(shown.store, shown.head.manifest))
    found = history.steps(shown.store, commit)
    assert [step.step for step in found] == [*range(6300, 6400)]
    assert found[0].loss == step_line(6300)["loss"]


def test_a_commit_of_the_real_format_is_read(shown: Shown) -> None:
    import torch
    from easyscale.storage import commits

    state = {"step": 3, "model": {"w": torch.ones(4)}, "best": float("inf")}
    written = commits.write_commit(
        shown.store, commits.Snapshot.take(3, state), job="real", parent=None, spec="0" * 64, code="0" * 64, ests=2,
        determinism={}, generation=1, metrics={"loss": float("nan")}, history=None,
    )  # fmt: skip
    found = history.read_commit(shown.store, written.manifest_digest)
    assert (found.step, found.state_digest, found.metrics) == (3, written.state_digest, {"loss": "nan"})
    assert found.size > 0
    assert history.steps(shown.store, found) == []


def test_a_damaged_manifest_and_one_that_is_gone_are_named(shown: Shown) -> None:
    digest = put_blob(shown.store, b"[]")
    with pytest.raises(CorruptError, match=f"{digest} is not a valid manifest"):
        list(history.commits(shown.store, digest))
    shown.store.delete(blob_key(digest))
    with pytest.raises(NotFoundError, match=digest):
        list(history.commits(shown.store, digest))


def test_a_chain_that_does_not_go_down_is_damage_and_not_an_endless_walk(shown: Shown) -> None:
    first = shown.exhibit.commit("odd", 5, None, None, {})
    second = shown.exhibit.commit("odd", 5, first, None, {})
    with pytest.raises(CorruptError, match="of step 5 and parent of 5"):
        list(history.commits(shown.store, second))


def test_the_history_of_a_fork_ends_with_its_own_first_commit(shown: Shown) -> None:
    of_another = shown.exhibit.commit("origin", 5, None, None, {})
    first = shown.exhibit.commit("fork", 5, of_another, None, {})  # the same state under another name
    second = shown.exhibit.commit("fork", 9, first, None, {})
    assert [commit.manifest for commit in history.commits(shown.store, second)] == [second, first]


def test_a_record_that_is_none_is_named(shown: Shown) -> None:
    commit = next(history.commits(shown.store, shown.exhibit.commit("odd", 1, None, shown.exhibit.blob(b"[1]\n"), {})))
    with pytest.raises(CorruptError, match="is no record of steps"):
        history.steps(shown.store, commit)


# ---- files


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_line_per_step_is_written_and_numbers_come_back_to_the_bit(shown: Shown, tmp_path: Path) -> None:
    assert scalars.write_csv(shown.store, shown.job, tmp_path / "digits.csv") == 6400
    rows = rows_of(tmp_path / "digits.csv")
    assert [int(row["step"]) for row in rows] == [*range(1, 6401)], "steps done, as everywhere"
    assert all(float(row["loss"]) == step_line(t)["loss"] for t, row in enumerate(rows))
    assert all(float(row["lr"]) == step_line(t)["lr"][0] for t, row in enumerate(rows))
    assert {int(row["step"]) for row in rows if row["accuracy"]} == {*range(100, 6401, 100)}


def test_every_group_has_its_rate_and_what_is_no_number_stays_empty(shown: Shown, tmp_path: Path) -> None:
    lines = {"step": 0, "loss": None, "lr": [0.1, 0.2]}, {"step": 1, "loss": 2.0, "lr": [0.3, 0.4], "skipped": True}
    job = shown.chain(*lines, metrics={"f1": "nan", "=cmd()": 1.0})
    scalars.write_csv(shown.store, job, tmp_path / "odd.csv")
    first, second = rows_of(tmp_path / "odd.csv")
    assert (first["loss"], first["lr"], first["lr1"], first["skipped"]) == ("", "0.1", "0.2", "0")
    assert (second["loss"], second["lr1"], second["skipped"], second["f1"]) == ("2.0", "0.4", "1", "nan")
    assert second["'=cmd()"] == "1.0", "no spreadsheet runs it"


def test_a_damaged_history_leaves_the_file_as_it_was(shown: Shown, tmp_path: Path) -> None:
    to = tmp_path / "digits.csv"
    to.write_text("before")
    oldest = [*history.commits(shown.store, shown.head.manifest)][-1]
    assert oldest.history is not None
    shown.store.delete(blob_key(oldest.history))
    with pytest.raises(NotFoundError, match=oldest.history):
        scalars.write_csv(shown.store, shown.job, to)
    assert to.read_text() == "before"
    assert list(tmp_path.iterdir()) == [to]


@pytest.mark.parametrize("where", ["", "no/such/folder/x.csv"])
def test_a_place_that_cannot_be_written_is_the_users_mistake(shown: Shown, tmp_path: Path, where: str) -> None:
    with pytest.raises(UserError, match="--to"):
        scalars.write_csv(shown.store, shown.job, tmp_path / where)


def test_a_job_without_a_commit_has_no_scalars_yet(shown: Shown, tmp_path: Path) -> None:
    shown.exhibit.job("young", step=0)
    shown.exhibit.hang()
    job = read_job(shown.kv, "young")
    assert job is not None
    for write in (scalars.write_csv, scalars.write_tensorboard):
        with pytest.raises(UserError, match="no commit yet"):
            write(shown.store, job, tmp_path / "young")


def test_tensorboard_reads_what_was_written_for_it(shown: Shown, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = shown.chain(
        {"step": 0, "loss": 2.5, "lr": [0.1]}, {"step": 1, "loss": 1.5, "lr": [0.2]}, metrics={"f1": 0.75}
    )
    assert scalars.write_tensorboard(shown.store, job, tmp_path / "board") == 2
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 2.5), (2, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("metrics/f1")] == [(2, 0.75)]
    assert [round(e.value, 6) for e in events.Scalars("train/lr")] == [0.1, 0.2]


def test_event_files_are_not_mixed_with_others(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("another run's")
    with pytest.raises(UserError, match="is not empty"):
        scalars.write_tensorboard(shown.store, shown.job, tmp_path)


def test_without_tensorboard_the_extra_is_named(shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"easyscale\[tensorboard\]"):
        scalars.write_tensorboard(shown.store, shown.job, tmp_path / "board")
