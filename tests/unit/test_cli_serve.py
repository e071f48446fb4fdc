"""`serve` and `scalars` at a terminal: a mistake is one clear error, and nothing is lost by it."""

from __future__ import annotations

import csv
import json
import socket
from typing import TYPE_CHECKING

import pytest
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.errors import UserError
from easyscale.pipeline import cli
from easyscale.pipeline.serve import run
from easyscale.storage.files import FileStore
from exhibits import Exhibit, one_job

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "correct-horse-battery-staple"


class Said:
    """What a command has said, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code: object = 0
        try:
            cli.main(arguments)
        except SystemExit as ended:
            self.code = ended.code or 0
        self.out, self.err = capsys.readouterr()

    def refused(self, *words: str) -> None:
        """As a user's mistake: what, where, what to do."""
        assert (self.code, self.out) == (2, ""), self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which one job has run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(run.TOKEN_FILE, raising=False)
    kv = EmbeddedStore(tmp_path / ".easyscale" / "kv.sqlite")
    one_job(Exhibit(kv, FileStore(tmp_path / ".easyscale" / "store")))
    kv.close()
    return tmp_path


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ---- serve


def test_a_port_in_use_is_named_with_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        Said(capsys, "serve", "--port", port).refused(f"port {port}", "already in use", "--port; 0 finds one")


@pytest.mark.parametrize("host", ["192.0.2.1", "no such name", "", "x" * 300])
def test_an_address_that_this_machine_does_not_have_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    Said(capsys, "serve", "--host", host, "--port", "0").refused("cannot listen on", "--host")


@pytest.mark.parametrize("port", ["-1", "65536", "http", ""])
def test_a_port_that_is_none_is_refused(here: Path, capsys: pytest.CaptureFixture[str], port: str) -> None:
    Said(capsys, "serve", "--port", port).refused("--port")


@pytest.mark.parametrize("command", [["serve"], ["scalars", "digits", "--to", "x.csv"]])
def test_where_nothing_was_ever_run_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Said(capsys, *command).refused("there are no jobs", "--kv or EASYSCALE_KV")
    Said(capsys, *command, "--kv", f"file://{tmp_path}/other.sqlite").refused("there is no key-value store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "holds no token"),
        (b"tiny\n", "holds no token"),
        (b"several words of good length\n", "holds no token"),
        (b"x" * 5000, "holds no token"),
        (b"t\xc3\xb6ken-of-good-length", "something else than ASCII"),
        (None, "No such file"),
    ],
)
@pytest.mark.parametrize("by", ["--token-file", run.TOKEN_FILE])
def test_a_token_that_keeps_nobody_out_is_refused_and_not_shown(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    text: bytes | None,
    why: str,
) -> None:
    if text is not None:
        (here / "token").write_bytes(text)
    if by == run.TOKEN_FILE:
        monkeypatch.setenv(by, "token")
    said = Said(capsys, "serve", "--port", "0", *(["--token-file", "token"] if by == "--token-file" else []))
    said.refused(f"{by} 'token'", why, "openssl rand")
    assert not text or text.decode("latin-1").strip() not in said.err


def test_the_option_goes_before_the_environment_and_space_around_a_token_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(f"\n {TOKEN} \n")
    (tmp_path / "other").write_text(TOKEN[::-1])
    both = {run.TOKEN_FILE: str(tmp_path / "other")}
    assert run.token(str(tmp_path / "one"), both) == TOKEN
    assert run.token(None, both) == TOKEN[::-1]
    assert run.token(None, {}) is run.token(None, {run.TOKEN_FILE: ""}) is None
    with pytest.raises(UserError, match="cannot be used"):
        run.token("", both)  # a variable of the shell's that is empty: no reason to serve without


# ---- scalars


def test_scalars_are_written_and_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "scalars", "digits", "--to", "digits.csv", "-o", "json")
    assert (said.code, json.loads(said.out)) == (
        0, {"job": "digits", "format": "csv", "to": "digits.csv", "steps": 6400},
    )  # fmt: skip
    with (here / "digits.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 6400
    assert "6400 steps of job 'digits' written" in Said(capsys, "scalars", "digits", "--to", "digits.csv").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digit", "--to", "kept.csv"], ["there is no job 'digit'", "did you mean digits?"]),
        (["digits"], ["--to"]),
        (["digits", "--to", "kept.csv", "--format", "xlsx"], ["--format", "tensorboard"]),
        (["digits", "--to", "."], ["is a folder", "--to"]),
        (["digits", "--to", "no/such/folder/x.csv"], ["cannot be written", "--to"]),
        (["digits", "--to", "kept.csv", "--format", "tensorboard"], ["cannot be used", "--to"]),
        (["digits", "--to", ".", "--format", "tensorboard"], ["is not empty", "--to"]),
    ],
)
def test_a_mistake_leaves_all_files_as_they_were(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    (here / "kept.csv").write_text("from before")
    before = files(here)
    Said(capsys, "scalars", *arguments).refused(*words)
    assert files(here) == before


def test_a_job_without_a_commit_leaves_the_file_as_it_was(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kv = EmbeddedStore(here / ".easyscale" / "kv.sqlite")
    exhibit = Exhibit(kv, FileStore(here / ".easyscale" / "store"))
    exhibit.job("young", step=0)
    exhibit.hang()
    kv.close()
    (here / "kept.csv").write_text("from before")
    Said(capsys, "scalars", "young", "--to", "kept.csv").refused("has no commit yet")
    assert (here / "kept.csv").read_text() == "from before"
