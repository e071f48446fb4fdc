"""A user at a terminal: a folder with a script, and `easyscale` commands in processes of their own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from forked import Forked, can_be_given

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 120.0
"""After which a command counts as hung."""

LIKE_ANYBODY = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Root, too, is then held to what a folder's mode allows."""

TRAINING = """
import torch
import easyscale as es
def step(model, batch):
    return model(batch[0]).square().mean()
def build():
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2) / 40)
    return es.Training(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data, step=step,
    )
job = es.Job("demo", build, ests=2, batch_size=5, steps=3)
"""
"""A job that is done in a moment."""

DATASET = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return {length}
    def __getitem__(self, index):
        {item}
def build"""


def over(item: str, length: str = "20", **settings: Any) -> str:
    """`TRAINING` over a dataset whose items and length are given by lines of Python."""
    text = TRAINING.replace("def build", DATASET.format(item=item, length=length), 1)
    text = text.replace("dataset=data", "dataset=Data()")
    return text.replace("steps=3", ", ".join(f"{name}={value!r}" for name, value in ({"steps": 3} | settings).items()))


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """What it said went wrong, without the lines of its log."""
        return "\n".join(line for line in self.err.splitlines() if not line.startswith('{"event"'))

    @property
    def last(self) -> dict[str, Any]:
        """The one JSON object that it printed."""
        assert self.out.count("\n") == 1, self.out
        found: dict[str, Any] = json.loads(self.out)
        return found


class User:
    """Somebody in a folder.

    Args:
        folder: where the commands run; made if need be.
        env: more of their environment; None takes a variable away.

    `before` is what their commands are started by, another program with its arguments.
    """

    def __init__(self, folder: Path, **env: str | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.before: list[str] = []
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("EASYSCALE_", "AWS_", "XDG_"))}
        self._early = not can_be_given(env)
        given = {**plain, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **env}
        self.env = {key: value for key, value in given.items() if value is not None}

    def write(self, text: str | bytes, name: str = "train.py") -> Path:
        """A file of the user's."""
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            [*self.before, sys.executable, "-P", "-m", "easyscale.pipeline.cli", *arguments],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> Ran:
        """Run a command to its end: in a forked process, where nothing tells the difference (see `forked`)."""
        if self.before or self._early:
            return ended(self.start(*arguments))
        with TemporaryDirectory() as name:
            family, files = Path(name, "family"), [Path(name, stream) for stream in ("out", "err")]
            family.mkdir()
            with files[0].open("wb") as out, files[1].open("wb") as err:
                process = Forked(
                    "easyscale.pipeline.cli",
                    arguments,
                    env=self.env,
                    cwd=self.folder,
                    family=family,
                    stdout=out,
                    stderr=err,
                )
            try:
                code = process.wait(SECONDS)
            except TimeoutError:
                process.kill()
                process.wait()
                raise AssertionError(f"hung; it wrote:\n{files[1].read_text(errors='replace')}") from None
            return Ran(code, files[0].read_text(), files[1].read_text(errors="replace"))

    def like_anybody(self) -> None:
        """From now on the modes of files and folders count, even if this is root."""
        self.before = [sys.executable, "-c", LIKE_ANYBODY]

    def left(self) -> dict[str, bytes]:
        """All files below the folder that are not sources, with their content: what a refused command must not change.

        The key-value store's log and index are left out: opening a database makes them.
        """
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".py" and not path.name.endswith(("-wal", "-shm"))
        }


def ended(process: subprocess.Popen[bytes]) -> Ran:
    """Wait for a command."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"hung; it wrote:\n{err.decode(errors='replace')}") from None
    return Ran(process.returncode, out.decode(), err.decode(errors="replace"))


def limit_files(pid: int, size: int = resource.RLIM_INFINITY) -> None:
    """Let a process, and what it starts from now on, make no file larger than this many bytes.

    The kernel breaks off its writes as it does on a full disk, and no disk has to be made for it.
    """
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """The same for this process, and for a while."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def refused(ran: Ran, *words: str, code: int = 2) -> None:
    """It ended with one clear error on one screen, and no traceback of ours."""
    assert ran.code == code, ran
    assert ran.out == "", "standard output is for results"
    assert ran.error.startswith("error: "), ran.err
    assert ran.error.count("error: ") == 1, ran.err
    assert "\n  " in ran.error, "no hint what to do"
    assert len(ran.error) < 4000, "more than a screen"
    assert len(ran.error.splitlines()) <= 24, "more than a screen"
    assert "easyscale/pipeline" not in ran.err, "frames of ours tell the user nothing"
    for word in words:
        assert word in ran.error, ran.error
