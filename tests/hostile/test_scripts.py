"""Scripts that are none, that cannot be sent to workers, or that behave badly towards the process they run in."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import toys
from easyscale.pipeline import determinism
from easyscale.pipeline.numerics import build
from easyscale.pipeline.spec import JobSpec
from user import TRAINING, Ran, User, ended, over, refused

if TYPE_CHECKING:
    from pathlib import Path

LATIN = "print('caf\xe9')\n".encode("latin-1") + TRAINING.encode()

NO_SCRIPTS: dict[str, tuple[bytes, list[str]]] = {
    "train.ipynb": (
        b'{"cells": [], "nbformat": 4}',
        ["is a notebook", "jupyter nbconvert --to script train.ipynb"],
    ),
    "binary.py": (b"\x7fELF\x02\x01\0\0", ["holds binary data", "check the path"]),
    "latin.py": (LATIN, ["byte 0xe9 in line 1", "save it as UTF-8"]),
    "late.py": (b"\n" * 20 + LATIN, ["is not valid UTF-8: byte 0xe9 in line 21", "save it as UTF-8"]),
    "klingon.py": (b"# coding: klingon\n", ["unknown encoding: klingon", "save it as UTF-8"]),
    "syntax.py": (b"def f(:\n", ["syntax.py, line 1, is not valid Python"]),
    "empty.py": (b"", ["the script has no job", "top level"]),
    "exit.py": (b"import sys; sys.exit('usage: ...')", ["calls sys.exit('usage: ...')", "__main__"]),
    "mute.py": (b"class E(Exception):\n  def __str__(self): 1/0\nraise E", ["does not run: E"]),
    "half.py": (b"raise ValueError('\\udc80')", ["ValueError: \\udc80"]),
}

ENDS = {
    "exits.py": (b"import os; os._exit(0)", ["without a result", "os._exit"]),
    "kills.py": (b"import os; os.kill(os.getpid(), 9)", ["was ended by SIGKILL", "out of memory"]),
    "closes.py": (b"import os; os.closerange(3, 100)", ["without a result"]),
}


def test_a_script_that_ends_its_process_or_closes_what_is_not_its_own_is_refused(tmp_path: Path) -> None:
    user = User(tmp_path)
    for name, (content, _) in ENDS.items():
        user.write(content, name)
    for name, process in [(name, user.start("submit", name)) for name in ENDS]:
        ran = ended(process)
        if name == "closes.py":  # what it broke is told first
            ran = ran._replace(err=ran.err.partition("\n")[2])
        refused(ran, *ENDS[name][1])
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


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "raises.py": (
        over("if index > 6: raise OSError(f'{index}.png is truncated')\n        return torch.zeros(2)"),
        ["sample 7 of the dataset (epoch 0) raised OSError: 7.png is truncated", "in __getitem__"],
    ),
    "none.py": (over("return None"), ["step 0, EST 0: collating the samples", "NoneType", "mend the dataset"]),
    "only_main.py": (ONLY_MAIN, ["name 'only_main' is not defined", "in build"]),
    "ragged.py": (over("return torch.zeros(index + 1)"), ["collating the samples", "to be equal size"]),
    "changing.py": (CHANGING, ["the length of the dataset (Data) changes: first ", "must stay the same"]),
    "negative.py": (over("return torch.zeros(2)", "-1"), ["the dataset (Data) has no length", "define __len__"]),
    "no_items.py": (over("return torch.zeros(2)", "0"), ["samples is 0"]),
    "dict.py": (TRAINING.replace("es.Training(", "dict("), ["build() returned dict", "an easyscale.Training"]),
    "endless.py": (TRAINING.replace("steps=3", "epochs=10**12 - 1"), ["1,999,999,999,998 steps", "the most is"]),
}

INSPECTING = """
import os, sys
from pathlib import Path
from tempfile import TemporaryFile
import torch
from easyscale.errors import UserError
from easyscale.pipeline import cli
from easyscale.pipeline import inspect as inspection
torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=1.0)  # imports as much again
for name in sys.argv[1:]:
    print(f"\\f{name}", file=sys.stderr, flush=True)
    with TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            os.dup2(answer.fileno(), 1)
            sys.argv = ["inspect", name]
            inspection.main()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer.seek(0)
        try:
            inspection._read(answer.read(), code, Path(name))
        except UserError as error:
            try:
                cli.fail(error)
            except SystemExit as end:
                print(f"\\f{end.code}", file=sys.stderr, flush=True)
"""
"""Inspects each script in a process of its own and tells the outcome as the commands do, importing torch once."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """What is told of each of these scripts. None of them leaves anything behind."""
    user = User(tmp_path_factory.mktemp("scripts"))
    for name, (content, _) in (NO_SCRIPTS | MISTAKES).items():
        user.write(content, name)
    os.mkfifo(user.folder / "pipe.py")
    names = [*NO_SCRIPTS, *MISTAKES, "pipe.py"]
    before = user.left()
    command = [sys.executable, "-P", "-c", INSPECTING, *names]
    done = subprocess.run(command, cwd=user.folder, env=user.env, capture_output=True, check=True, timeout=120)
    assert user.left() == before
    parts = done.stderr.decode().split("\f")[1:]
    assert len(parts) == 2 * len(names), "each of them was refused"
    return {
        name: Ran(int(code), done.stdout.decode(), text.removeprefix(f"{name}\n"))
        for name, text, code in zip(names, parts[::2], parts[1::2], strict=True)
    }


def test_a_file_that_is_no_script_of_a_job_is_refused(told: dict[str, Ran]) -> None:
    for name, (_, words) in NO_SCRIPTS.items():
        refused(told[name], *words)
    refused(told["pipe.py"], "not a file but a pipe", "save the script to a file")


def test_what_only_building_shows_is_refused(told: dict[str, Ran]) -> None:
    for name, (_, words) in MISTAKES.items():
        refused(told[name], *words)


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


NAN = TRAINING.replace("/ 40)\n", "/ 40)\n    data.tensors[0][13] = float('nan')\n").replace(
    "steps=3", "steps=3, shuffle=False, commit_every=1"
)


def test_a_loss_that_is_not_a_number_stops_the_job_which_goes_on_when_it_is_told_to_skip(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.write(NAN)
    ran = user.run("run", "train.py")
    assert ran.code == 1
    for words in (
        "error: job 'demo' failed: step 1 (epoch 0) is not finite: the loss is nan for EST 1",
        "samples of EST 1: 11, 13, 15, 17, 19",
        "the step was not applied (nonfinite='stop'); the newest commit is whole",
        "or with --set nonfinite=skip --accept-changes to leave such steps out",
    ):
        assert words in ran.error, ran.error
    assert ran.error.count("error: ") == 1
    assert "easyscale/pipeline" not in ran.err, "frames of ours tell the user nothing"
    ran = user.run("run", "train.py", "--set", "nonfinite=skip", "--accept-changes", "-o", "json")
    assert ran.code == 0, ran.err
    assert (ran.last["state"], ran.last["committed"]) == ("done", 3)


FATAL = {
    "closing": ("os.closerange(3, 100)", "must not close file descriptors that it has not opened"),
    "exiting": ("os._exit(0)", "exited with status 0: the job's code must not end its process (os._exit)"),
}


def test_a_job_that_ends_its_runner_or_closes_its_descriptors_fails_and_says_why(tmp_path: Path) -> None:
    running = []
    for name, (line, words) in FATAL.items():
        user = User(tmp_path / name)
        user.write(f"import os\nif '/code/' in __file__:  # not while it is submitted\n    {line}\n{TRAINING}")
        running.append((user.start("run", "train.py", "-o", "json"), words))
    for process, words in running:
        ran = ended(process)
        assert ran.code == 1
        assert ran.last["state"] == "failed"
        told = f"{ran.last['reason']}\n{ran.last['traceback']}"
        assert "quarantined" in told
        assert words in told
        assert "easyscale/pipeline" not in told, "frames of ours tell the user nothing"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("EASYSCALE_THREADS", "zero", "EASYSCALE_THREADS='zero': it must be a number from 1 to 1024"),
        ("EASYSCALE_ISA", "sse9", "EASYSCALE_ISA=sse9: this processor has no instruction set 'sse9'"),
    ],
)
def test_a_variable_of_exact_numerics_that_asks_for_what_is_not_there_is_refused(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    user = User(tmp_path, **{name: text, "EASYSCALE_BUILD_FOLDER": str(build.cache_folder())})
    user.write(TRAINING)
    refused(user.run("run", "train.py", "--numerics", "exact"), told, "leave it away")
    assert user.left() == {}
