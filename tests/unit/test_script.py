"""A script is run as Python would run it, nothing of it meets our modules, and its mistakes are told by its frames.

Scripts change `sys.path` and `sys.modules` of the process that loads them, so each is loaded in one of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import easyscale
import pytest
from easyscale.errors import ScriptError, SpecError
from easyscale.pipeline import inspect as inspect_module
from easyscale.pipeline.bundle import Bundle
from easyscale.pipeline.inspect import inspect_script
from easyscale.pipeline.job import Job
from easyscale.pipeline.script import pick, python_command, script_of

if TYPE_CHECKING:
    from easyscale.pipeline.forkserver import ForkServer

ROOT = Path(easyscale.__file__).parent

JOB = """
from easyscale.pipeline.job import Job
def build(): ...
job = Job("demo", build, ests=1, batch_size=1, steps=1)
"""

TRAINING = """
import torch
from easyscale.pipeline.job import Job
from easyscale.pipeline.training import Training
def build():
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2))
    return Training(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data,
        step=lambda model, batch: model(batch[0]).mean(),
    )
job = Job("demo", build, ests=2, batch_size=5, steps=3)
"""


def write(folder: Path, text: str, **modules: str) -> Path:
    for name, source in {"train": text, **modules}.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
    return folder / "train.py"


def load(script: Path, then: str = "pass", *, cwd: Path | None = None, safe: bool = True) -> str:
    """Load a script in a fresh process; what it and `then` print, or the error."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom easyscale.errors import UserError\n"
        "from easyscale.pipeline.script import load, jobs_in, pick, user_traceback, is_loading\n"
        f"try:\n    module = load(Path({str(script)!r}))\n    {then}\n"
        "except UserError as error:\n"
        "    print('ERROR', type(error).__name__, error, getattr(error, 'detail', ''), sep='\\n')\n"
    )
    command = [sys.executable, *(["-P"] if safe else []), "-c", code]
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_script_runs_as_a_module_that_is_not_main(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import sys
        from dataclasses import dataclass
        import helper
        @dataclass
        class Config: x: "int" = 1
        print(__file__, helper.NAME, sys.argv, sys.modules[__name__].__name__)
        if __name__ == "__main__":
            raise AssertionError("this is for the main program")
        """,
        helper="NAME = 'from beside'",
    )
    assert load(script) == f"{script} from beside ['{script}'] __easyscale_job__\n"


@pytest.mark.parametrize("safe", [True, False], ids=["python -P", "python -m or -c"])
@pytest.mark.parametrize("here", ["repository", "elsewhere"])
def test_nothing_of_a_users_folder_meets_our_modules(tmp_path: Path, here: str, safe: bool) -> None:
    """Our top-level folders are called like this too, and they are the current folder in the worst case."""
    names = ("storage", "errors", "settings", "logs", "pipeline__spec", "pipeline____init__", "coordinator__kv")
    script = write(
        tmp_path,
        JOB
        + "import storage, errors, settings, logs, pipeline.spec, coordinator.kv\n"
        + "print({m.MINE for m in (storage, errors, settings, logs, pipeline.spec, coordinator.kv)})\n"
        + "import easyscale.storage.objects, easyscale.errors, easyscale.pipeline.spec, easyscale.coordinator.kv\n"
        + "easyscale.storage.objects.open_store('memory://x')\n",
        **dict.fromkeys(names, "MINE = True"),
    )
    cwd = ROOT if here == "repository" else tmp_path.parent
    assert load(script, "print(*jobs_in(module))", cwd=cwd, safe=safe) == "{True}\ndemo\n"


@pytest.mark.parametrize("safe", [True, False], ids=["python -P", "python -m or -c"])
def test_our_modules_are_not_importable_without_our_name(tmp_path: Path, safe: bool) -> None:
    script = write(
        tmp_path,
        """
        import importlib.util
        print(*filter(importlib.util.find_spec, ("storage", "errors", "settings", "pipeline", "coordinator")))
        """,
    )
    assert load(script, cwd=ROOT, safe=safe) == "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 0", ["ZeroDivisionError: division by zero", "line 1, in <module>"]),
        ("def (", ["train.py, line 1, is not valid Python"]),
        ("import broken", ["broken.py, line 1, is not valid Python"]),
        ("import no_such_thing.x", ["No module named 'no_such_thing'", "install no_such_thing here"]),
        ("import sys; sys.exit(3)", ["sys.exit(3)", "__main__"]),
        ("quit()", ["sys.exit(None)"]),
        ("import fails", ["train.py", "fails.py", "KeyError"]),
        ("import json; json.loads('{')", ["JSONDecodeError", "line 1, in <module>"]),
        ("x = '\0'", ["not a Python script"]),
        ("f = lambda: f()\nf()", ["RecursionError"]),
        (
            "from easyscale.pipeline.job import Job\ndef b(): ...\nJob('demo', b, ests=0, batch_size=1, steps=1)",
            ["SpecError", "ests is 0"],
        ),
    ],
)
def test_a_script_that_does_not_run_is_explained_by_its_own_frames(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    script = write(tmp_path, text, broken="x = = 1", fails="def f(): return {}['x']\nf()")
    out = load(script)
    assert out.startswith("ERROR\n")
    for part in expected:
        assert part in out
    assert "easyscale/pipeline" not in out
    assert "importlib" not in out
    assert "/json/" not in out
    assert len(out.splitlines()) < 30


def test_a_cause_is_told_too(tmp_path: Path) -> None:
    script = write(tmp_path, "try: 1 / 0\nexcept ZeroDivisionError as e: raise RuntimeError('no') from e")
    out = load(script)
    assert "ZeroDivisionError: division by zero" in out
    assert "direct cause" in out


def test_an_error_without_frames_of_the_users_shows_all(tmp_path: Path) -> None:
    script = write(tmp_path, "")
    then = (
        "\n    import json"
        "\n    try: json.loads('{')"
        "\n    except ValueError as error: print(user_traceback(error, Path('/users/code')))"
    )
    assert "json/decoder.py" in load(script, then)


@pytest.mark.parametrize(
    ("path", "message"), [("missing.py", "no script"), (".", "is a folder"), ("train.py/x", "cannot be read")]
)
def test_a_path_that_is_no_script_is_refused(tmp_path: Path, path: str, message: str) -> None:
    write(tmp_path, "")
    assert message in load(tmp_path / path)


@pytest.mark.parametrize("where", ["script", "module"])
def test_a_worker_finds_the_build_function_in_the_unpacked_bundle(tmp_path: Path, where: str) -> None:
    """Under whatever name the job was submitted, and wherever in the script the job was made."""
    if where == "script":
        script, entry = (
            write(tmp_path / "code", "import own\ndef build(): return own.X", own="X = 7"),
            "train.py::build",
        )
    else:
        own = "X = 7\ndef build(): return X"
        script, entry = write(tmp_path / "code", "from lib.own import build", lib__own=own), "train.py::lib.own:build"
    find = (
        "import sys\nfrom pathlib import Path\n"
        "from easyscale.pipeline.bundle import Bundle, unpack\n"
        "from easyscale.pipeline.script import entry_of, load, load_entry\n"
    )
    submit = (
        f"script = Path({str(script)!r})\nbundle = Bundle.collect(script)\n"
        f"unpack(bundle.data, Path({str(tmp_path / 'cache')!r}))\n"
        "print(bundle.digest, entry_of(load(script).build, script, bundle))\n"
    )
    out = subprocess.run([sys.executable, "-P", "-c", find + submit], check=True, capture_output=True, text=True)
    digest, found = out.stdout.split()
    assert found == entry
    work = f"print(load_entry(Path({str(tmp_path / 'cache' / digest)!r}), {entry!r})())\n"
    out = subprocess.run([sys.executable, "-P", "-c", find + work], check=True, capture_output=True, text=True)
    assert out.stdout == "7\n"


def test_two_jobs_of_one_name_are_refused_but_one_job_under_two_names_is_not(tmp_path: Path) -> None:
    then = "print(*jobs_in(module))"
    assert load(write(tmp_path / "a", JOB + "again = job"), then) == "demo\n"
    twice = write(tmp_path / "b", JOB + "again = Job('demo', build, ests=2, batch_size=1, steps=1)")
    assert "has two jobs named 'demo'" in load(twice, then)


def build() -> None:
    raise AssertionError("picking a job must not build it")


def test_a_job_is_picked_by_name_or_because_it_is_the_only_one() -> None:
    jobs = {
        name: Job(name, build, ests=1, batch_size=1, steps=1)  # type: ignore[arg-type]
        for name in ("one", "two")
    }
    assert pick({"one": jobs["one"]}) is jobs["one"]
    assert pick(jobs, "two") is jobs["two"]
    with pytest.raises(ScriptError, match=r"2 jobs\n.*--job NAME among: one, two"):
        pick(jobs)
    with pytest.raises(ScriptError, match=r"no job 'three'\n.*one, two"):
        pick(jobs, "three")
    with pytest.raises(ScriptError, match=r"no job\n.*top level"):
        pick({})


def test_inspection_gives_the_specification_and_the_bundle_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noisy = "import os; print('from print'); os.system('echo from a child')\n"
    script = write(tmp_path, noisy + TRAINING, helper="")
    spec, bundle = inspect_script(script, overrides={"name": "other", "batch_size": "10"})
    assert (spec.name, spec.batch_size, spec.ests, spec.samples) == ("other", 10, 2, 20)
    assert (spec.script, spec.code) == ("train.py::build", bundle.digest)
    assert bundle == Bundle.collect(script)
    out, err = capfd.readouterr()
    assert out == ""
    assert "from print" in err
    assert "from a child" in err


def test_the_inspecting_process_prints_one_line_of_json(tmp_path: Path) -> None:
    script = write(tmp_path, "print('noise')\n" + JOB, other="")
    command = [*python_command("easyscale.pipeline.inspect"), str(script), "--job", "absent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["error"]["type"] == "ScriptError"


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        ("batch_size=5", "batch_size=11", SpecError, "20 samples, fewer than one global batch"),
        ("Linear(2, 1)", "SyncBatchNorm(2)", SpecError, "SyncBatchNorm"),
        ("    model =", "    model = {}['x'];", ScriptError, r"cannot build job 'demo': KeyError: 'x'"),
        ("    model =", "    raise SystemExit(1);", ScriptError, r"sys\.exit"),
        ("def build", "from json import loads as build\ndef unused", ScriptError, "lies outside the code"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused_before_it_is_submitted(
    tmp_path: Path, fork_server: ForkServer, old: str, new: str, kind: type[SpecError | ScriptError], message: str
) -> None:
    assert old in TRAINING
    script = write(tmp_path, TRAINING.replace(old, new))
    with pytest.raises(kind, match=message) as caught:
        inspect_script(script, fork_server=fork_server)
    if isinstance(caught.value, ScriptError) and "KeyError" in message:
        assert "in build" in caught.value.detail


def test_a_script_that_kills_its_process_is_told(tmp_path: Path, fork_server: ForkServer) -> None:
    script = write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ScriptError, match=r"ended by SIGSEGV"):
        inspect_script(script, fork_server=fork_server)


def test_a_script_that_ends_its_process_quietly_is_told(tmp_path: Path, fork_server: ForkServer) -> None:
    with pytest.raises(ScriptError, match=r"exit code 0 and without a result"):
        inspect_script(write(tmp_path, "import os; os._exit(0)"), fork_server=fork_server)


def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path, fork_server: ForkServer) -> None:
    os.mkfifo(tmp_path / "alive")
    script = write(
        tmp_path,
        """
        import subprocess, threading
        subprocess.Popen(["cat", "-"], stdin=subprocess.PIPE, stdout=open("alive", "wb"))
        threading.Event().wait()
        """.replace('"alive"', repr(str(tmp_path / "alive"))),
    )
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ScriptError, match=r"still not read and built after 2 s"):
        inspect_script(script, timeout=2, fork_server=fork_server)
    os.set_blocking(alive, True)
    assert os.read(alive, 1) == b""  # end of file: whoever held it is dead
    os.close(alive)


def test_what_a_script_leaves_running_does_not_keep_the_inspection_waiting(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    script = write(
        tmp_path,
        "import subprocess, threading\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "threading.Thread(target=threading.Event().wait).start()\n",
    )
    start = time.monotonic()
    with pytest.raises(ScriptError, match="no job"):
        inspect_script(script, fork_server=fork_server)
    assert time.monotonic() - start < 30


def test_a_signal_is_never_taken_for_an_answer() -> None:
    with pytest.raises(ScriptError, match=r"SIGKILL .*memory"):
        inspect_module._read(b'{"spec":null}', -signal.SIGKILL, Path("x.py"))


# ---- the script of a job


def build_here() -> Any:
    """Stands for a build function that was imported from this file."""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What stands for the main module: a notebook's or an interpreter's, which has no file."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_the_script_is_the_one_that_was_started(main: ModuleType, tmp_path: Path) -> None:
    main.__file__ = str(tmp_path / "train.py")
    assert script_of(build_here) == (tmp_path / "train.py").resolve()
    main.__spec__ = ModuleSpec("package.train", None)
    with pytest.raises(ScriptError, match="was started with `python -m`"):
        script_of(build_here)


@pytest.mark.usefixtures("main")
def test_in_a_notebook_it_is_the_file_that_the_build_function_was_imported_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = ModuleType("trainer")
    module.__file__ = str(tmp_path / "trainer.py")
    monkeypatch.setitem(sys.modules, "trainer", module)
    monkeypatch.setattr(build_here, "__module__", "trainer")
    assert script_of(build_here) == (tmp_path / "trainer.py").resolve()
    monkeypatch.setitem(sys.modules, "package.trainer", module)
    monkeypatch.setattr(build_here, "__module__", "package.trainer")
    with pytest.raises(ScriptError, match=r"imported as package\.trainer, so its folder alone"):
        script_of(build_here)


def test_what_was_defined_in_a_notebook_cannot_travel(main: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_here, "__module__", "__main__")
    main.build_here = build_here
    with pytest.raises(ScriptError, match="made in a notebook or an interpreter") as caught:
        script_of(build_here)
    assert "from train import job" in caught.value.hint
