"""The command line: a mistake is one clear error on standard error, exit code 2, and nothing half made; output for
scripts is one JSON value.

Where the process boundary is the point (exit codes, streams) a process is started; elsewhere the command runs in this
one. The inspection of the script is played where it does not matter, and comes from the tests' fork server where it
does, since every other one imports torch.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from easyscale import __version__
from easyscale.coordinator import etcd, keys, records
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put
from easyscale.pipeline import cli, cli_options, inspect
from easyscale.pipeline.bundle import Bundle
from easyscale.pipeline.forkserver import ForkServer
from easyscale.pipeline.inspect import inspect_any
from easyscale.pipeline.joblogs import chunk_key
from easyscale.pipeline.spec import JobSpec
from easyscale.storage import s3
from easyscale.storage.files import FileStore
from pictures import worker_record
from services import ENVIRONMENT, free_ports
from user import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import msgspec
    from services import S3Server, SeaweedFS

PROMISED = {"job", "state", "step", "steps", "state_digest", "metrics", "workers", "generation", "recoveries"}

JOB = """
import easyscale as es
def build(): ...
job = es.Job("demo", build, ests=2, batch_size=5, steps=3)
"""

TRAINING = """
import torch
import easyscale as es
def build():
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2))
    return es.Training(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data,
        step=lambda model, batch: model(batch[0]).mean(),
    )
job = es.Job("demo", build, ests=2, batch_size=5, steps=3)
"""

STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield torch.zeros(2)
"""


def refused(ran: Ran, *words: str) -> None:
    """It ended as a user's mistake should: one error that says what, and what to do."""
    assert ran.code == 2, ran
    assert ran.out == "", "standard output is for results"
    assert ran.error.startswith("error: "), ran.err
    assert ran.error.count("\nerror: ") == 0
    assert "\n  " in ran.error, "no hint what to do"
    for word in words:
        assert word in ran.error, ran.error


def process(here: Path, *arguments: str, **environment: str) -> Ran:
    """Run a command as a user would, in a folder."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("EASYSCALE_", "AWS_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "easyscale.pipeline.cli", *arguments],
        cwd=here,
        env={**plain, "HOME": str(here), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Desk:
    """A folder with a script, and commands run in it in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {}
        self.write("train.py", JOB)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(dedent(text))

    def run(self, *arguments: str) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                cli.main(arguments)
                code: Any = 0
            except SystemExit as end:
                code = end.code or 0
        return Ran(code, out.getvalue(), self.told_beside() + err.getvalue())

    def told_beside(self) -> str:
        """What other processes wrote to standard error meanwhile."""
        return ""

    def inspect(self, path: Path, job: str | None = None, overrides: dict[str, str] | None = None, **_: object) -> Any:
        """Stands in for `inspect_any`."""
        bundle = Bundle.collect(self.folder / "train.py")
        known: dict[str, Any] = {
            "name": "demo", "script": "train.py::build", "code": bundle.digest, "data": "d", "samples": 20,
            "ests": 2, "batch_size": 5, "steps": 3,
        }  # fmt: skip
        given = {key: int(text) if text.isdigit() else text for key, text in (overrides or {}).items()}
        return JobSpec(**{**known, **self.settings, **given}), bundle

    def kv(self) -> EmbeddedStore:
        return EmbeddedStore(self.folder / ".easyscale" / "kv.sqlite")

    def put(self, key: str, value: msgspec.Struct | str) -> None:
        kv = self.kv()
        kv.txn((), (Put(key, value.encode() if isinstance(value, str) else records.encode(value)),))
        kv.close()

    def finish(self) -> None:
        """The job "demo" is done."""
        head = records.Head(step=3, manifest="a" * 64, state_digest="b" * 64, generation=2, metrics={"accuracy": 0.75})
        self.put(keys.head("demo"), head)
        self.put(keys.status("demo"), records.Status(state="done"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("EASYSCALE_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(inspect, "inspect_any", desk.inspect)
    monkeypatch.setattr(ForkServer, "warm", lambda self: None)  # nothing is forked here
    monkeypatch.setattr(cli.logs, "configure", lambda level: None)  # it is this whole process's
    with structlog.testing.capture_logs():
        yield desk


@pytest.fixture
def inspecting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fork_server: ForkServer
) -> Desk:
    """Where scripts are read and built in a process of their own, as they are by a user's command."""

    def inspected(path: Path, *given: Any, **_: object) -> Any:
        return real(path.absolute(), *given, fork_server=fork_server)  # the fork server is in another folder

    real = inspect_any
    monkeypatch.setattr(inspect, "inspect_any", inspected)
    monkeypatch.setattr(desk, "told_beside", lambda: capfd.readouterr().err)
    return desk


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens, so waiting for an answer only takes time."""
    monkeypatch.setattr(etcd, "OPEN_DEADLINE", 0.5)
    monkeypatch.setattr(s3, "OPEN_DEADLINE", 0.5)


def left(folder: Path) -> set[str]:
    """What lies in a folder besides sources."""
    return {path.name for path in folder.iterdir() if path.suffix != ".py"}


# ---- mistakes in scripts


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (None, ["run", "absent.py"], ["there is no script", "absent.py"]),
        ("x = 1", ["run", "train.py"], ["the script has no job", "top level"]),
        (JOB + "two = job.replace(name='two')", ["submit", "train.py"], ["has 2 jobs", "--job", "demo, two"]),
        (JOB, ["run", "train.py", "--job", "dmeo"], ["no job 'dmeo'", "demo"]),
        (JOB.replace("ests=2", "ests=0"), ["run", "train.py"], ["'demo'", "ests is 0", "at least 1"]),
        (JOB.replace("steps=3", "steps=3, epochs=1"), ["run", "train.py"], ["both steps and epochs", "exactly one"]),
        (
            JOB,
            ["submit", "train.py", "--set", "min_workers=3"],
            ["min_workers 3 is more than its 2 ESTs", "one worker"],
        ),
        (
            JOB.replace("ests=2", "ests=2, min_workers=2, max_workers=1"),
            ["submit", "train.py"],
            ["max_workers 1 is less than min_workers 2", "raise the one"],
        ),
        (JOB.replace('"demo"', '"../demo"'), ["run", "train.py"], ["'../demo'", "letters, digits"]),
        (JOB, ["run", "train.py", "--name", "a b"], ["'a b'", "letters, digits"]),
        (JOB, ["run", "train.py", "--set", "epcohs=3"], ["epcohs", "did you mean epochs"]),
        (JOB, ["run", "train.py", "--set", "seed=x"], ["seed=x", "must be int"]),
        (JOB, ["run", "train.py", "--numerics", "exakt"], ["exakt", "'native' or 'exact'"]),
    ],
)
def test_a_mistake_in_a_script_is_told_and_leaves_nothing(
    inspecting: Desk, script: str | None, arguments: list[str], words: list[str]
) -> None:
    if script is not None:
        inspecting.write("train.py", script)
    ran = inspecting.run(*arguments)
    refused(ran, *words)
    assert "Traceback" not in ran.err
    assert left(inspecting.folder) <= {"__pycache__"}


def test_a_script_that_fails_on_import_shows_its_own_short_traceback(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("def f():\n    return 1 / 0\nf()\n")
    ran = process(tmp_path, "run", "train.py")
    refused(ran, "train.py does not run: ZeroDivisionError", "helper.py", "1 / 0")
    assert "easyscale" not in ran.err.partition("Traceback")[2], "frames of ours tell the user nothing"
    assert len(ran.error.splitlines()) < 20
    assert left(tmp_path) <= {"__pycache__"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("torch.nn.Linear(2, 1)", "torch.nn.SyncBatchNorm(2)", ["SyncBatchNorm", "BatchNorm"]),
        ("torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2))", "Stream()", ["IterableDataset"]),
        ("batch_size=5", "batch_size=11", ["20 samples, fewer than one global batch", "2 * 11 = 22"]),
    ],
)
def test_what_only_building_shows_is_told_and_leaves_nothing(
    inspecting: Desk, old: str, new: str, words: list[str]
) -> None:
    assert old in TRAINING
    inspecting.write("train.py", TRAINING.replace("def build", STREAM + "def build", 1).replace(old, new))
    ran = inspecting.run("run", "train.py", "--workers", "2")
    refused(ran, *words)
    assert "Traceback" not in ran.err
    assert left(inspecting.folder) <= {"__pycache__"}


def test_a_job_is_submitted_found_and_refused_when_its_code_changes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    ran = process(tmp_path, "submit", "train.py", "-o", "json")
    assert (ran.code, ran.out.count("\n")) == (0, 1), ran
    told = json.loads(ran.out)
    assert told.keys() >= PROMISED | {"how"}
    assert (told["job"], told["how"], told["state"], told["steps"]) == ("demo", "created", "waiting", 3)
    script.write_text(TRAINING.replace("lr=0.1", "lr=0.2"))
    ran = process(tmp_path, "run", "train.py")
    refused(ran, "'demo'", "the code has changed", "lr=0.2", "--accept-changes")
    assert "Traceback" not in ran.err


# ---- mistakes in addresses


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", ["submit", "run"])
def test_an_unreachable_etcd_is_told(desk: Desk, command: str) -> None:
    (port,) = free_ports(1)
    refused(desk.run(command, "train.py", "--kv", f"etcd://127.0.0.1:{port}"), f"127.0.0.1:{port}")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", ["jobs", "show x", "watch x", "pause x", "logs x"])
def test_looking_at_an_unreachable_etcd_leaves_nothing(desk: Desk, command: str) -> None:
    (port,) = free_ports(1)
    refused(desk.run(*command.split(), "--kv", f"etcd://127.0.0.1:{port}"), f"127.0.0.1:{port}")
    assert left(desk.folder) == set()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", ["submit", "run", "worker"])
def test_an_unreachable_object_store_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    script = [] if command == "worker" else ["train.py"]
    refused(desk.run(command, *script, "--store", "s3://bucket/prefix"), "s3://bucket/prefix", str(port))


def test_an_absent_bucket_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch, moto_s3: S3Server) -> None:
    for name, value in moto_s3.env.items():
        monkeypatch.setenv(name, value)
    refused(desk.run("submit", "train.py", "--store", "s3://no-such-bucket"), "no-such-bucket", "bucket")


def test_wrong_credentials_are_told_without_showing_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seaweedfs: SeaweedFS
) -> None:
    bucket = seaweedfs.new_bucket()
    for name, value in {**seaweedfs.env, "AWS_SECRET_ACCESS_KEY": "hush-hush"}.items():
        monkeypatch.setenv(name, value)
    ran = desk.run("submit", "train.py", "--store", f"s3://{bucket}")
    refused(ran, bucket, "AWS_SECRET_ACCESS_KEY")
    assert "hush-hush" not in ran.err


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", ["kv", "store"])
def test_a_store_that_cannot_be_used_leaves_nothing_half_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    address = f"etcd://127.0.0.1:{port}" if which == "kv" else "s3://bucket"
    assert desk.run("submit", "train.py", f"--{which}", address).code == 2
    assert left(desk.folder) == set()


@pytest.mark.parametrize("option", ["--kv", "--store"])
@pytest.mark.parametrize(("address", "words"), [("ftp://x", "unknown scheme 'ftp'"), ("file://x/y", "absolute path")])
def test_an_address_of_no_known_kind_is_told(desk: Desk, option: str, address: str, words: str) -> None:
    refused(desk.run("submit", "train.py", option, address), address, words)


def test_a_folder_that_cannot_be_written_is_told(desk: Desk) -> None:
    refused(desk.run("submit", "train.py", "--folder", "/proc/nowhere"), "/proc/nowhere", "--folder")
    desk.write("file.py", "")
    refused(desk.run("submit", "train.py", "--folder", "file.py"), "file.py")


# ---- mistakes on the command line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["jobs", "-o", "yaml"], "yaml"),
        (["run", "train.py", "--workers", "0"], "--workers"),
        (["run", "train.py", "--workers", "10000"], "--workers"),
        (["run", "train.py", "--workers", "many"], "--workers"),
        (["run"], "SCRIPT"),
        (["rnu", "train.py"], "rnu"),
        (["show"], "JOB"),
        (["jobs", "--colour"], "--colour"),
        (["worker", "--ttl", "0"], "--ttl"),
    ],
)
def test_a_mistyped_command_is_told_with_how_to_get_help(desk: Desk, arguments: list[str], word: str) -> None:
    ran = desk.run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert word in ran.err
    assert ran.err.startswith("Usage: ")
    assert "--help" in ran.err
    assert "Traceback" not in ran.err
    assert left(desk.folder) == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worker", "--device", "tpu"], ["'tpu'", "cpu, cuda"]),
        (["worker", "--name", "a/b"], ["'a/b'", "--name"]),
        (["submit", "train.py", "--set", "=3"], ["'=3'", "KEY=VALUE"]),
        (["run", "train.py", "--set", "seed"], ["'seed'", "KEY=VALUE"]),
        (["run", "train.py", "--set", "x" * 90_000], ["(90002 characters)", "KEY=VALUE"]),
        (["run", "train.py", "--set", "seed=1", "--set", "seed=2"], ["--set seed is given twice", "give it once"]),
    ],
)
def test_a_value_that_no_option_takes_is_told(desk: Desk, arguments: list[str], words: list[str]) -> None:
    refused(desk.run(*arguments), *words)
    assert left(desk.folder) == set()


def test_an_unknown_log_level_is_told_by_the_real_command(tmp_path: Path) -> None:
    refused(process(tmp_path, "--log-level", "loud", "jobs"), "'loud'", "debug, info")


def test_the_version_and_the_commands_are_told(tmp_path: Path) -> None:
    assert process(tmp_path, "--version") == Ran(0, f"{__version__}\n", "")
    ran = process(tmp_path, "--help")
    commands = ["run", "submit", "worker", "coordinator", "jobs", "show", "watch", "logs"]
    commands += ["pause", "resume", "cancel", "retry", "doctor"]
    assert [name for name in commands if f"\n  {name} " not in ran.out] == []


# ---- jobs that are not there


@pytest.mark.parametrize(
    "command", ["jobs", "show x", "watch x", "logs x", "pause x", "resume x", "cancel x", "retry x"]
)
def test_where_nothing_was_ever_run_nothing_is_made_by_looking(desk: Desk, command: str) -> None:
    refused(desk.run(*command.split()), "there are no jobs", ".easyscale", "--kv")
    assert left(desk.folder) == set()


def test_looking_at_a_database_that_is_not_there_makes_none(desk: Desk) -> None:
    refused(desk.run("jobs", "--kv", f"file://{desk.folder}/typo/kv.sqlite"), "typo")
    assert left(desk.folder) == set()


@pytest.mark.parametrize("command", ["show", "watch", "logs", "pause", "resume", "cancel", "retry"])
def test_an_unknown_job_is_told(desk: Desk, command: str) -> None:
    desk.run("submit", "train.py")
    refused(desk.run(command, "dmeo"), "there is no job 'dmeo'")
    kv = desk.kv()
    assert kv.range(keys.job("dmeo")) == []
    kv.close()


def test_the_jobs_that_there_are_are_named_and_the_likeliest_first(desk: Desk) -> None:
    for name in ("demo", "digits", "gpt"):
        desk.run("submit", "train.py", "--name", name)
    for command in ("show", "watch", "logs", "pause", "resume", "cancel", "retry"):
        refused(desk.run(command, "dmeo"), "did you mean demo? there are: demo, digits, gpt")
    assert "did you mean" not in desk.run("show", "unlike").err
    refused(desk.run("show", "x" * 10**6), "there is no job 'xxx", "(1000002 characters)")


def test_of_many_jobs_some_are_named(desk: Desk) -> None:
    for number in range(25):
        desk.put(keys.spec(f"job{number:02d}"), records.JobRecord(name="x", spec="s", code="c", steps=1, ests=1))
    refused(desk.run("show", "unlike"), "job19 and 5 more (`easyscale jobs`)")


def test_a_system_that_refuses_is_told_without_a_traceback(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect_any(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr(inspect, "inspect_any", inspect_any)
    ran = desk.run("submit", "train.py")
    assert ran.code == 1
    assert ran.error.startswith("error: /tmp/x: No space left on device\n  free some room")


@pytest.mark.parametrize("command", ["pause", "resume", "cancel", "retry"])
def test_what_is_over_cannot_be_steered(desk: Desk, command: str) -> None:
    desk.run("submit", "train.py")
    desk.finish()
    refused(desk.run(command, "demo"), "job 'demo' is done")


# ---- changes


def test_changed_settings_are_shown_and_can_be_accepted(desk: Desk) -> None:
    desk.run("submit", "train.py")
    desk.settings = {"steps": 9, "data": "other"}
    for command in ("submit", "run"):
        refused(desk.run(command, "train.py"), "steps was 3, is 9", "the dataset has changed", "--accept-changes")
    ran = desk.run("submit", "train.py", "--accept-changes")
    assert (ran.code, ran.err) == (0, "")
    assert "goes on with the changes" in ran.out


def test_what_can_never_change_is_told_so(desk: Desk) -> None:
    desk.run("submit", "train.py")
    desk.settings = {"seed": 4}
    ran = desk.run("submit", "train.py", "--accept-changes")
    refused(ran, "seed was 0, is 4", "can never change", "--name")


def test_another_name_is_another_job(desk: Desk) -> None:
    desk.run("submit", "train.py")
    desk.settings = {"seed": 4}
    assert desk.run("submit", "train.py", "--name", "second").code == 0
    told = json.loads(desk.run("jobs", "-o", "json").out)
    assert [job["job"] for job in told] == ["demo", "second"]


# ---- what no worker can do


@pytest.mark.parametrize(
    ("settings", "workers", "why"),
    [
        ({"min_workers": 2}, [{}], "needs 2 worker(s), and 1 of the 1 here would serve it"),
        (
            {},
            [{"only": "other"}],
            "needs 1 worker(s), and 0 of the 1 here would serve it; w0: it serves 'other' only",
        ),
        (
            {"min_workers": 2},
            [{"lane": "peer"}, {"lane": "store"}],
            "w0 insists on exchanging with peers (--lane peer)",
        ),
    ],
)
def test_a_job_that_no_worker_here_can_run_is_submitted_and_told_so(
    desk: Desk, settings: dict[str, Any], workers: list[dict[str, Any]], why: str
) -> None:
    for place, fields in enumerate(workers):
        desk.put(keys.worker(f"w{place}"), worker_record(f"w{place}", address="here:1", **fields))
    desk.settings = settings
    for output in ("text", "json"):
        ran = desk.run("submit", "train.py", "-o", output)
        assert ran.code == 0, "others may come"
        assert ran.err.count("\n") == 2
        assert ran.err.startswith("note: job 'demo' cannot run on the workers at file:")
        assert f": {why}" in ran.err
        assert "\n  it waits for others: start them, or change what it asks for" in ran.err
    assert json.loads(ran.out)["how"] == "found"


def test_a_refusal_is_told_when_the_job_is_submitted_again(desk: Desk) -> None:
    desk.run("submit", "train.py")
    spec = json.loads(desk.kv().get(keys.spec("demo")).value)["spec"]
    desk.put(keys.worker("w0"), worker_record("w0", refusals={spec: "it has another torch"}))
    assert "every worker refused this job: w0: it has another torch\n" in desk.run("submit", "train.py").err


def test_a_job_that_workers_could_run_were_they_free_or_were_there_any_is_submitted_without_a_word(desk: Desk) -> None:
    desk.settings = {"min_workers": 2}
    assert desk.run("submit", "train.py").err == "", "nobody knows who will come"
    for place in range(2):
        desk.put(keys.worker(f"w{place}"), worker_record(f"w{place}", state="running", job="other"))
    assert desk.run("submit", "train.py").err == ""


# ---- output for scripts


def one_value(ran: Ran) -> Any:
    """The one JSON value on the one line of standard output."""
    assert ran.out.endswith("\n")
    assert ran.out.count("\n") == 1, ran.out
    return json.loads(ran.out)


@pytest.mark.parametrize(("encoding", "text"), [("utf-8", '{"name": "\u5b9f"}\n'), ("ascii", '{"name": "\\u5b9f"}\n')])
def test_json_is_json_whatever_the_terminal_can_show(monkeypatch: pytest.MonkeyPatch, encoding: str, text: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    cli_options.print_json({"name": "\u5b9f"})
    out.flush()
    assert out.buffer.getvalue().decode("utf-8") == text  # type: ignore[attr-defined]


def test_workers_are_listed_with_what_they_do_and_how_fast(desk: Desk) -> None:
    desk.run("submit", "train.py")
    assert "no workers; next: easyscale worker" in desk.run("workers").out
    assert one_value(desk.run("workers", "-o", "json")) == []
    kv = EmbeddedStore(desk.folder / ".easyscale" / "kv.sqlite")
    member = records.Member("b-1", 0, 2)
    spec = json.loads(kv.get(keys.spec("demo")).value)["spec"]  # type: ignore[union-attr]
    rates = records.Rates(spec=spec, kinds={"Epyc": records.Rate(0.02, 0.001)}, factors={"b-1": 2.5})
    told = records.Progress(step=2, generation=1, samples_per_second=40.0)
    fields: dict[str, Any] = {"host": "h", "pid": 1, "device": "cpu", "kind": "Epyc", "memory": 1}
    written: dict[str, msgspec.Struct] = {
        keys.plan("demo"): records.Plan(generation=1, members=(member,)),
        keys.rates("demo"): rates,
        keys.worker("b-1"): records.WorkerRecord(
            id="b-1", name="b", state="running", job="demo", progress=told, **fields
        ),
        keys.worker("a-1"): records.WorkerRecord(id="a-1", name="a", only="other", **fields),
    }
    for key, record in written.items():
        kv.txn((), (Put(key, records.encode(record)),))
    a, b = one_value(desk.run("workers", "-o", "json"))
    assert (a["name"], a["state"], a["job"], a["first"], a["last"], a["ests_per_second"]) == (
        "a",
        "idle",
        None,
        0,
        0,
        0,
    )
    assert a["remark"] == "serves other only"
    assert (b["job"], b["first"], b["last"], b["ests_per_second"], b["samples_per_second"]) == (
        "demo",
        0,
        2,
        20.0,
        40.0,
    )
    lines = desk.run("workers").out.splitlines()
    assert lines[2].split() == [
        "b",
        "h",
        "cpu",
        "Epyc",
        "running",
        "demo",
        "0..1",
        "20",
        "40",
        *["2.5x", "as", "slow", "as", "its", "kind"],
    ]
    shown = desk.run("show", "demo").out
    assert "rate          Epyc: 50 ESTs/s, and 1 ms a step besides\n" in shown
    assert "rate          b-1 is 2.5x as slow as its kind\n" in shown
    assert "ranges        b-1 0..1: it is alone\n" in shown
    kv.close()


@pytest.mark.parametrize("factor", ["0.5", "0", "-1", "nan", "inf"])
def test_nothing_is_made_faster_by_a_slowdown(desk: Desk, factor: str) -> None:
    refused(desk.run("worker", "--slowdown", factor), "--slowdown", "1 or more")


@pytest.mark.parametrize("size", ["0", "-1GiB", "lots", "6Gi"])
def test_what_is_no_size_of_memory_is_refused(desk: Desk, size: str) -> None:
    refused(desk.run("worker", f"--max-memory={size}"), "--max-memory", "6GiB")


def test_listings_are_one_json_value(desk: Desk) -> None:
    desk.run("submit", "train.py")
    jobs = one_value(desk.run("jobs", "-o", "json"))
    job = one_value(desk.run("show", "demo", "-o", "json"))
    assert jobs == [job]
    assert job.keys() >= PROMISED
    assert (job["state"], job["step"], job["steps"], job["state_digest"], job["metrics"]) == ("waiting", 0, 3, None, {})
    assert (job["workers"], job["generation"], job["recoveries"]) == ([], 0, [])


def test_running_a_job_that_is_done_says_so_and_prints_its_digest(desk: Desk) -> None:
    desk.run("submit", "train.py")
    desk.finish()
    job = one_value(desk.run("run", "train.py", "-o", "json"))
    assert job.keys() >= PROMISED
    assert (job["state"], job["step"], job["steps"]) == ("done", 3, 3)
    assert (job["state_digest"], job["metrics"]) == ("b" * 64, {"accuracy": 0.75})
    ran = desk.run("run", "train.py", "--workers", "3")
    assert ran.code == 0
    assert "job 'demo' is done already" in ran.out
    assert f"state digest  {'b' * 64}" in ran.out
    assert "accuracy      0.75" in ran.out
    assert "next: easyscale" in ran.out


def test_steering_is_one_json_value_too(desk: Desk) -> None:
    desk.run("submit", "train.py")
    told = one_value(desk.run("pause", "demo", "-o", "json"))
    assert told == {"job": "demo", "desired": "paused", "state": "waiting", "step": 0, "steps": 3}
    assert one_value(desk.run("resume", "demo", "-o", "json"))["desired"] == "running"
    assert one_value(desk.run("cancel", "demo", "-o", "json"))["desired"] == "cancelled"
    assert one_value(desk.run("submit", "train.py", "-o", "json"))["how"] == "resumed"


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("cancelled", 1)])
def test_watching_ends_with_the_jobs_fate(desk: Desk, state: Any, code: int) -> None:
    desk.run("submit", "train.py")
    desk.finish()
    desk.put(keys.status("demo"), records.Status(state=state, reason="the end"))
    ran = desk.run("watch", "demo", "-o", "json")
    assert ran.code == code
    assert one_value(ran)["state"] == state
    assert desk.run("watch", "demo").code == code


def test_a_failed_job_shows_its_traceback_and_what_to_do(desk: Desk) -> None:
    desk.run("submit", "train.py")
    failure = records.Failure(cause="raised", step=1, worker="w", message="boom", traceback="train.py, line 3\nboom")
    desk.put(keys.status("demo"), records.Status(state="failed", reason="the user's code raised", failure=failure))
    ran = desk.run("show", "demo")
    assert ran.code == 0
    assert "failed: the user's code raised" in ran.out
    assert "train.py, line 3\nboom" in ran.out
    assert "next: easyscale logs demo | retry demo" in ran.out
    assert "failed" in desk.run("jobs").out


def test_logs_are_printed_worker_by_worker(desk: Desk) -> None:
    desk.run("submit", "train.py")
    store = FileStore(desk.folder / ".easyscale" / "store")
    for worker in ("b", "a"):
        store.put(chunk_key("demo", worker, 0), f"{worker} says\n".encode())
        desk.put(keys.logs("demo", worker), records.LogRecord(chunks=2))
    store.put(chunk_key("demo", "b", 1), b"more \xff\n")
    ran = desk.run("logs", "demo")
    missing = f"[chunk 1 of this log is missing from {store.address}]"
    assert ran.out == f"==> a <==\na says\n{missing}\n==> b <==\nb says\nmore \ufffd\n"
    assert desk.run("logs", "demo", "--worker", "b").out == "==> b <==\nb says\nmore \ufffd\n"
    refused(desk.run("logs", "demo", "--worker", "c"), "'c'", "a, b")


def test_the_doctor_examines_all_and_its_exit_code_tells(tmp_path: Path) -> None:
    ran = process(tmp_path, "doctor", "-o", "json")
    findings = one_value(ran)
    assert ran.code == 0, ran
    assert {"key-value store", "leases", "device cpu"} <= {finding["what"] for finding in findings}
    assert all(finding["ok"] for finding in findings)


def test_a_doctor_that_finds_something_fatal_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from easyscale.pipeline import doctor

    monkeypatch.setattr(doctor, "_torch", lambda: iter([]))
    ran = desk.run("doctor", "--store", "ftp://x")
    assert ran.code == 1
    assert "BAD  object store" in ran.out
    assert "ok   leases" in ran.out


INTERRUPTED = """
import os, signal, sys, weakref

signal.signal(signal.SIGINT, signal.default_int_handler)

class Thing:
    pass

class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            thing = Thing()
            self.gone = weakref.ref(thing, lambda _: (os.kill(os.getpid(), signal.SIGINT), [None for _ in range(1000)]))
            del thing

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--version"]
from easyscale.pipeline.cli import main
main()
"""


def test_ctrl_c_is_not_lost_where_python_ignores_exceptions_while_it_imports() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")


# ---- completion


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["demo"]),
        ({"EASYSCALE_FOLDER": "elsewhere"}, []),
        ({"EASYSCALE_KV": "nonsense://"}, []),
        ({"EASYSCALE_KV": "file:///dev/null/kv"}, []),
    ],
)
def test_the_shell_completes_names_of_jobs_and_never_fails(
    desk: Desk, settings: dict[str, str], names: list[str]
) -> None:
    assert desk.run("submit", "train.py").code == 0
    asked = {"_EASYSCALE_COMPLETE": "complete_bash", "COMP_WORDS": "easyscale show de", "COMP_CWORD": "2"}
    before = sorted(desk.folder.rglob("*"))
    done = process(desk.folder, **asked, **settings)
    assert (done.code, done.out.split(), done.err) == (0, names, "")
    assert sorted(desk.folder.rglob("*")) == before
