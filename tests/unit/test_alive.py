"""The file by which others see that a process lives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from easyscale.alive import BEAT_SECONDS, AliveFile
from easyscale.errors import UserError
from structlog.testing import capture_logs

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = 1_000_000.0


def age(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_the_file_is_touched_at_once_and_then_with_a_beat_when_one_is_due(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    alive = AliveFile(path)
    assert path.exists()
    age(path)
    alive.beat(100.0)
    assert path.stat().st_mtime > LONG_AGO
    age(path)
    alive.beat(100.0 + BEAT_SECONDS / 2)
    assert path.stat().st_mtime == LONG_AGO, "not due yet"
    alive.beat(100.0 + BEAT_SECONDS)
    assert path.stat().st_mtime > LONG_AGO


def test_a_file_that_an_earlier_process_has_left_counts_as_touched_by_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.write_text("kept")
    age(path)
    AliveFile(path)
    assert path.stat().st_mtime > LONG_AGO
    assert path.read_text() == "kept"


@pytest.mark.parametrize("name", ["nowhere/alive", "a\0b"])
def test_a_file_that_cannot_be_made_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"--alive-file .*cannot be touched") as raised:
        AliveFile(tmp_path / name)
    assert "folder that you can write" in raised.value.hint


def test_a_folder_that_goes_away_later_is_a_warning_and_the_process_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    alive = AliveFile(folder / "alive")
    (folder / "alive").unlink()
    folder.rmdir()
    with capture_logs() as logs:
        alive.beat(0.0)
    assert [entry["event"] for entry in logs] == ["alive_file.not_touched"]


def test_without_a_file_nothing_is_touched() -> None:
    AliveFile().beat(0.0)
