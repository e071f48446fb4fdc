"""A script is read and its job described (`description.py`) in a process of its own, as
`python -P -m easyscale.pipeline.inspect SCRIPT` would: the caller imports no torch, and a crash or hang of the user's
code becomes an error.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import traceback
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING

import msgspec

from .. import errors, logs
from ..coordinator.records import PipelineRecord  # noqa: TC001 - msgspec reads it at run time
from ..errors import (
    ChangedError,
    CorruptError,
    DeviceError,
    EasyScaleError,
    NotFoundError,
    ScriptError,
    SpecError,
    UnavailableError,
    UserError,
)
from ..storage.files import NO_ROOM
from ..storage.objects import open_store
from .bundle import Bundle
from .description import describe, describe_stage
from .forkserver import ForkServer
from .forkserver_messages import EXTRA_FD
from .job import Job, parse_settings
from .script import load, pick, python_command, runnable_in
from .spec import Input, JobSpec  # noqa: TC001 - msgspec reads them at run time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


STDERR = 2

TIMEOUT = 600.0
"""Seconds after which a script that is still being inspected counts as hung: time to read a large dataset's index."""


class Failure(msgspec.Struct, frozen=True):
    """An error of ours on its way between processes. `type` is the name of its class."""

    type: str
    what: str
    hint: str
    detail: str


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A script's pipeline.

    Args:
        chosen: its name in the script. record: as it shall be written down, under the name that was asked for.
        code: digest of the sources, by which it is noticed if they change from one stage to the next.
    """

    chosen: str
    record: PipelineRecord
    code: str


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the inspecting process prints: one of the three."""

    spec: JobSpec | None = None
    pipeline: Outline | None = None
    error: Failure | None = None


class StageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which stage of a pipeline to describe.

    Args:
        inputs: by the names of its parameters. store: where they are. code: see `Outline`.
    """

    stage: str
    inputs: dict[str, Input]
    store: str
    code: str


def inspect_script(
    path: Path,
    job: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
    fork_server: ForkServer | None = None,
) -> tuple[JobSpec, Bundle]:
    """`inspect_any` of a script that has a job, and no pipeline.

    Raises:
        UserError: as there.
    """
    found = inspect_any(path, job, overrides, timeout=timeout, fork_server=fork_server)
    if isinstance(found, Outline):
        raise ScriptError(f"{path} defines a pipeline ({found.chosen})", "run it: easyscale run SCRIPT")
    return found


def inspect_any(
    path: Path,
    job: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    stage: StageOrder | None = None,
    timeout: float = TIMEOUT,
    fork_server: ForkServer | None = None,
) -> tuple[JobSpec, Bundle] | Outline:
    """What a script defines: of a job, `describe` in a process of its own; of a pipeline, its outline.

    What the script prints goes to standard error.

    Args:
        path: path of the script.
        job: the job's or pipeline's name, where the script has several.
        overrides: settings that replace those of the script, as text: see `job.parse_settings`, `Pipeline.replace`.
        stage: `describe_stage` of this stage of the pipeline.
        timeout: seconds until the process counts as hung.
        fork_server: where the process comes from; None: one for this purpose.

    Raises:
        UserError: what `describe` raised there; a ScriptError for a process that dies or hangs.
    """
    arguments = [f"--bundle=/proc/self/fd/{EXTRA_FD}"]
    arguments += [f"--job={job}"] if job is not None else []
    arguments += [f"--set={key}={text}" for key, text in (overrides or {}).items()]
    arguments += [f"--stage={msgspec.json.encode(stage).decode()}"] if stage is not None else []
    arguments += ["--", str(path)]
    # Files, not pipes: a process that the script left behind would keep a pipe open. Without names they never stay.
    with TemporaryFile() as answer, TemporaryFile() as archive:
        with nullcontext(fork_server) if fork_server else ForkServer() as parent:
            code = run_in_child(
                parent, __spec__.name, arguments, (answer.fileno(), STDERR, archive.fileno()), timeout, path
            )
        answer.seek(0)
        found = _read(answer.read(), code, path)
        if isinstance(found, Outline):
            return found
        return found, Bundle(archive.read(), found.script.rpartition("::")[0])


def run_in_child(
    fork_server: ForkServer, module: str, arguments: Sequence[str], fds: Sequence[int], timeout: float, path: Path
) -> int:
    """The exit status of one of our modules that reads and builds a script in a process of its own."""
    with closing(fork_server.child(module, arguments, *fds)) as child:
        try:
            return child.wait(timeout)
        except TimeoutError:
            raise ScriptError(
                f"{path} is still not read and built after {timeout:.0f} s",
                "look for an endless loop, a lock or a download, at its top level or in its build function",
            ) from None


def _read(answer: bytes, code: int, path: Path) -> JobSpec | Outline:
    check_end(code, path)
    try:
        result = msgspec.json.decode(answer, type=Result)
    except msgspec.DecodeError:
        raise no_answer(code, path) from None
    if result.error:
        raise raised_from(result.error)
    found = result.spec or result.pipeline
    assert found is not None
    return found


def check_end(code: int, path: Path) -> None:
    """Refuse what a signal has ended.

    Raises:
        ScriptError: names the signal.
    """
    if code < 0:
        name = signal.Signals(-code).name
        memory = " (out of memory, most likely)" if name == "SIGKILL" else ""
        raise ScriptError(
            f"the process that read and built {path} was ended by {name}{memory}",
            f"see what it wrote above; try it alone: {' '.join(python_command(__spec__.name))} {path}",
        )


def no_answer(code: int, path: Path) -> ScriptError:
    """The error for a process that ended by itself and said nothing."""
    return ScriptError(
        f"the process that read and built {path} ended with exit code {code} and without a result",
        "see what it wrote above; the script must not end the process itself (os._exit)",
    )


def failure_of(error: UserError) -> Failure:
    """The error, to be sent."""
    texts = (error.what, error.hint, getattr(error, "detail", ""))
    return Failure(type(error).__name__, *map(errors.plain, texts))


def raised_from(failure: Failure) -> EasyScaleError:
    """The error that was sent."""
    if failure.type == ScriptError.__name__:
        return ScriptError(failure.what, failure.hint, failure.detail)
    kind = getattr(errors, failure.type, UserError)
    error: EasyScaleError = kind(failure.what, failure.hint) if issubclass(kind, UserError) else kind(failure.what)
    return error


def _answer(
    script: Path, name: str | None, overrides: Sequence[str], stage: StageOrder | None, archive: Path | None
) -> Result:
    try:
        chosen = pick(runnable_in(load(script)), name)
        texts = pairs_of(overrides)
        if isinstance(chosen, Job):
            spec, bundle = describe(chosen.replace(**parse_settings(texts)), script)
        else:
            pipeline = chosen.replace(texts)
            code = Bundle.collect(script, ()).digest
            if stage is None:
                return Result(pipeline=Outline(chosen=chosen.name, record=pipeline.record, code=code))
            if stage.code != code:
                raise ChangedError(
                    f"the sources in {script.parent} have changed since this command began, before stage "
                    f"{stage.stage!r} was submitted",
                    "run the same command again; --accept-changes keeps what earlier stages came to",
                )
            spec, bundle = describe_stage(pipeline, stage.stage, stage.inputs, script, open_store(stage.store))
        if archive:
            _keep(bundle, archive)
        return Result(spec=spec)
    except UserError as error:
        return Result(error=failure_of(error))
    except (DeviceError, CorruptError, NotFoundError, UnavailableError) as error:  # of inputs of a stage
        return Result(error=Failure(type(error).__name__, str(error), "", ""))


def _keep(bundle: Bundle, archive: Path) -> None:
    try:
        archive.write_bytes(bundle.data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        os.truncate(archive, 0)  # the answer needs room, too
        raise UserError(
            f"the code does not fit into the folder for temporary files, {gettempdir()}: {error.strerror}",
            "free some room there, or name another folder: TMPDIR=/path",
        ) from error


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    """Of `KEY=VALUE` texts."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--set {text}: there is no value", "write --set KEY=VALUE")
        pairs[key] = value
    return pairs


def main() -> None:
    """Print the specification of a script's job, or why there is none, as one line of JSON."""
    parser = argparse.ArgumentParser(prog=__spec__.name, description=main.__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--job", metavar="NAME", help="which job, where the script has several")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="replace a setting")
    parser.add_argument("--stage", metavar="JSON", help="describe this stage of the script's pipeline")
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="also write the code bundle there")
    options = parser.parse_args()
    faulthandler.enable()
    logs.configure()
    # Before anything of the user's runs: it may change the folder.
    script, archive = options.script.absolute(), options.bundle and options.bundle.absolute()
    stage = msgspec.json.decode(options.stage, type=StageOrder) if options.stage else None
    code = 1
    try:
        with os.fdopen(os.dup(1), "wb") as out:
            os.dup2(2, 1)  # what the script prints must not mix with the answer
            result = _answer(script, options.job, options.set, stage, archive)
            out.write(msgspec.json.encode(result) + b"\n")
        code = UserError.exit_code if result.error else 0
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # the script has closed what is not its own
        sys.stderr.write(f"the answer cannot be told: {error}\n")
    except BaseException:  # noqa: BLE001 - a bug of ours: it must not wait for the script's threads either
        traceback.print_exc()
    finally:
        os._exit(code)  # without waiting for threads that the script started


if __name__ == "__main__":
    main()
