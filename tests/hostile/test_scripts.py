"""Scripts that are none, that cannot be sent to workers, or that behave badly towards the process they run in."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import toys
from easyscale.pipeline import determinism
from easyscale.pipeline.spec import JobSpec
from user import TRAINING, User, over, refused

if TYPE_CHECKING:
    from pathlib import Path

LATIN = "print('caf\xe9')\n".encode("latin-1") + TRAINING.encode()


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (
            b'{"cells": [], "nbformat": 4}',
            "train.ipynb",
            ["is a notebook", "jupyter nbconvert --to script train.ipynb"],
        ),
        (b"\x7fELF\x02\x01\0\0", "train.py", ["holds binary data", "check the path"]),
        (LATIN, "train.py", ["byte 0xe9 in line 1", "save it as UTF-8"]),
        (b"\n" * 20 + LATIN, "train.py", ["is not valid UTF-8: byte 0xe9 in line 21", "save it as UTF-8"]),
        (b"# coding: klingon\n", "train.py", ["unknown encoding: klingon", "save it as UTF-8"]),
        (b"def f(:\n", "train.py", ["train.py, line 1, is not valid Python"]),
        (b"", "train.py", ["the script has no job", "top level"]),
        (b"import sys; sys.exit('usage: ...')", "train.py", ["calls sys.exit('usage: ...')", "__main__"]),
        (b"import os; os._exit(0)", "train.py", ["without a result", "os._exit"]),
        (b"import os; os.kill(os.getpid(), 9)", "train.py", ["was ended by SIGKILL", "out of memory"]),
        (b"import os; os.closerange(3, 100)", "train.py", ["without a result"]),
        (b"class E(Exception):\n  def __str__(self): 1/0\nraise E", "train.py", ["does not run: E"]),
        (b"raise ValueError('\\udc80')", "train.py", ["ValueError: \\udc80"]),
    ],
)
def test_a_file_that_is_no_script_of_a_job_is_refused(
    tmp_path: Path, content: bytes, name: str, words: list[str]
) -> None:
    user = User(tmp_path)
    user.write(content, name)
    before = user.left()
    ran = user.run("submit", name)
    if "closerange" in str(content):  # what it broke is told first
        ran = ran._replace(err=ran.err.partition("\n")[2])
    refused(ran, *words)
    assert user.left() == before


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    user = User(tmp_path)
    os.mkfifo(tmp_path / "train.py")
    refused(user.run("submit", "train.py"), "not a file but a pipe", "save the script to a file")
    assert user.left() == {}


@pytest.mark.parametrize("change", ["\ufeff", "\r\n", "# -*- coding: latin-1 -*-\n# caf\xe9"])
def test_what_python_takes_is_taken(tmp_path: Path, change: str) -> None:
    from easyscale.pipeline.script import jobs_in, load

    text = f"""{change}
from easyscale.pipeline.job import Job
def build(): ...
job = Job("demo", build, ests=1, batch_size=1, steps=1)
"""
    if change == "\r\n":
        text = text.replace("\n", "\r\n")
    (tmp_path / "train.py").write_bytes(text.encode("latin-1" if "latin" in change else "utf-8"))
    assert list(jobs_in(load(tmp_path / "train.py"))) == ["demo"]


ONLY_MAIN = TRAINING.replace("    model =", "    only_main()\n    model =") + (
    "if __name__ == '__main__':\n    def only_main(): ...\n"
)
CHANGING = over("return torch.zeros(2)", "next(lengths)").replace("class", "lengths = iter(range(20, 99))\nclass", 1)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            over("if index > 6: raise OSError(f'{index}.png is truncated')\n        return torch.zeros(2)"),
            ["sample 7 of the dataset (epoch 0) raised OSError: 7.png is truncated", "in __getitem__"],
        ),
        (over("return None"), ["step 0, EST 0: collating the samples", "NoneType", "mend the dataset"]),
        (ONLY_MAIN, ["name 'only_main' is not defined", "in build"]),
    ],
    ids=["raises", "none", "main only"],
)
def test_what_only_building_shows_is_refused(tmp_path: Path, script: str, words: list[str]) -> None:
    user = User(tmp_path)
    user.write(script)
    refused(user.run("submit", "train.py"), *words)
    assert user.left() == {}


MISTAKES = {
    "ragged": (over("return torch.zeros(index + 1)"), ["collating the samples", "to be equal size"]),
    "changing": (CHANGING, ["the length of the dataset (Data) changes: first ", "must stay the same"]),
    "negative": (over("return torch.zeros(2)", "-1"), ["the dataset (Data) has no length", "define __len__"]),
    "empty": (over("return torch.zeros(2)", "0"), ["samples is 0"]),
    "dict": (TRAINING.replace("es.Training(", "dict("), ["build() returned dict", "an easyscale.Training"]),
    "endless": (TRAINING.replace("steps=3", "epochs=10**12 - 1"), ["1,999,999,999,998 steps", "the most is"]),
}

INSPECTING = """
import sys
from pathlib import Path
from easyscale.pipeline.inspect import _answer
for name in sys.argv[1:]:
    error = _answer(Path(name).absolute(), None, [], None).error
    print(f"== {name}\\n{error.what}\\n{error.hint}\\n{error.detail}" if error else f"== {name}\\nnone")
"""


def test_other_mistakes_that_only_building_shows_are_refused_too(tmp_path: Path) -> None:
    """In one process: each of them would import torch otherwise."""
    user = User(tmp_path)
    for name, (script, _) in MISTAKES.items():
        user.write(script, f"{name}.py")
    command = [sys.executable, "-P", "-c", INSPECTING, *(f"{name}.py" for name in MISTAKES)]
    done = subprocess.run(command, cwd=tmp_path, env=user.env, capture_output=True, text=True, check=True, timeout=120)
    told = dict(part.split(".py\n", 1) for part in done.stdout.split("== ")[1:])
    assert told.keys() == MISTAKES.keys()
    for name, (_, words) in MISTAKES.items():
        assert [word for word in words if word not in told[name]] == [], told[name]
        assert "easyscale/pipeline" not in told[name], "frames of ours tell the user nothing"
    assert user.left() == {}


def test_a_dataset_that_raises_in_training_fails_the_job_with_sample_est_step_and_traceback(tmp_path: Path) -> None:
    user = User(tmp_path)
    broken = "if index == 7 and '/code/' in __file__: raise OSError('7.png is truncated')"  # not while it is submitted
    text = over(f"{broken}\n        return torch.zeros(2)", loaders=1, shuffle=False, batch_size=1)
    user.write(text.replace("batch_size=5, ", "").replace("steps=3", "steps=9"))
    ran = user.run("run", "train.py", "-o", "json")
    assert ran.code == 1
    job = ran.last
    assert job["state"] == "failed"
    what = "step 3, EST 1: sample 7 of the dataset (epoch 0) raised OSError: 7.png is truncated"
    assert what in job["reason"], job["reason"]
    assert "in __getitem__" in job["traceback"]
    assert "easyscale/pipeline" not in job["traceback"], "frames of ours tell the user nothing"
    shown = user.run("show", "demo").out
    assert what in shown
    assert "7.png is truncated" in shown.partition("Traceback")[2]


RUDE = """
import atexit, json, os, signal, sys, threading, time
print("hello, \\u00fc \\u5b9f")
sys.stdout.write("no newline")
if os.fork() == 0:
    time.sleep(300)
threading.Thread(target=lambda: time.sleep(300)).start()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
assert sys.stdin.read() == ""
os.chdir("/")
sys.path.insert(0, "/nowhere")
json.dumps = json.loads = lambda *_, **__: "patched"
atexit.register(print, "bye")
os.close(1)
os.close(2)
"""


def test_a_rude_script_is_trained_like_a_polite_one_and_leaves_standard_output_alone(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.write(RUDE + TRAINING)
    ran = user.run("run", "train.py", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.last["state"] == "done"
    assert ran.last["state_digest"] == polite()
    assert "hello, \u00fc \u5b9f" in ran.err


def polite() -> str:
    """What `TRAINING` comes to, computed here."""
    names: dict[str, Any] = {}
    exec(TRAINING, names)
    determinism.configure(1)
    spec = JobSpec(name="demo", script="", code="", data="", samples=20, ests=2, batch_size=5, steps=3)
    replica = toys.engine(names["build"], spec)
    for _ in range(3):
        replica.run_local()
    return toys.digest(replica)
