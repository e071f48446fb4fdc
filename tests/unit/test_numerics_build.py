"""Building the kernels where that does not go well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from easyscale.errors import EasyScaleError, UserError
from easyscale.pipeline.numerics import build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is there yet."""
    monkeypatch.setenv("EASYSCALE_BUILD_FOLDER", str(tmp_path / "built"))
    return tmp_path / "built"


def pretend(path: Path, script: str) -> str:
    """A compiler that is none."""
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo pretender 1; exit 0; fi\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_a_missing_compiler_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    with pytest.raises(build.BuildError) as raised:
        build.library()
    assert isinstance(raised.value, UserError)
    text = str(raised.value)
    assert "CXX=/nonexistent" in text
    assert "apt install g++" in text
    assert 'numerics="native" needs none' in text


def test_a_program_that_is_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.BuildError, match=r"false does not work as a C\+\+ compiler"):
        build.library()


def test_a_compiler_that_fails_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    complaint = "echo 'x.cc:3: error: concepts are not known' >&2; exit 1"
    monkeypatch.setenv("CXX", pretend(tmp_path / "old", complaint))
    with pytest.raises(build.BuildError, match="concepts are not known") as raised:
        build.library()
    assert "C++20" in str(raised.value)
    assert list((elsewhere / "objects").iterdir()) == []


def test_a_full_disk_is_no_mistake_of_the_users_and_leaves_no_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    full = 'for last; do :; done; echo half > "$last"; echo "error: No space left on device" >&2; exit 1'
    monkeypatch.setenv("CXX", pretend(tmp_path / "full", full))
    with pytest.raises(EasyScaleError, match="No space left on device") as raised:
        build.library()
    assert not isinstance(raised.value, UserError)
    assert list((elsewhere / "objects").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    elsewhere.write_text("a file")
    with pytest.raises(EasyScaleError, match=f"exact kernels cannot be built in {elsewhere}"):
        build.library()


def test_another_state_of_the_sources_flags_or_compiler_is_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build.place()
    assert build.place() == before
    monkeypatch.setenv("CXX", pretend(tmp_path / "other", "exit 1"))
    assert build.place() != before
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build, "MATH", (*build.MATH, "-g"))
    assert build.place() != before


def test_a_processor_without_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(build.BuildError, match="riscv64"):
        build.library()


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "easyscale.pipeline.cli", *arguments]
    return subprocess.run(line, env=os.environ | env, capture_output=True, text=True, check=False)


def test_easyscale_build_says_what_it_did_or_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EASYSCALE_BUILD_FOLDER")  # that of all tests, where it is there already
    done = command("build", "-o", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["library"] == str(build.place())
    assert said["compiled"] == 0
    assert "is there already" in command("build").stdout
    lacking = command("build", CXX="/nonexistent")
    assert lacking.returncode == 2
    assert "CXX=/nonexistent" in lacking.stderr
