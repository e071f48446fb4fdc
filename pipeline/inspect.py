"""What must be known of a job before it is submitted: its specification and its code bundle.

`describe` builds the job once, in this process, so that what cannot run is refused before anything is created.
`inspect_script` has that done by a process of its own, as `python -P -m easyscale.pipeline.inspect SCRIPT` would: the
caller imports no torch, and a crash or hang of the user's code becomes an error.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import site
import sys
import sysconfig
import traceback
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING

import msgspec
import structlog

from .. import errors, logs
from ..errors import DeviceError, ScriptError, SpecError, UserError
from ..storage.files import NO_ROOM
from .bundle import Bundle
from .forkserver import ForkServer
from .forkserver_messages import EXTRA_FD
from .job import parse_settings
from .script import MODULE_NAME, entry_of, explained, jobs_in, load, pick, python_command
from .spec import JobSpec  # noqa: TC001  # msgspec reads it at run time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .job import Job
    from .training import Training

log = structlog.get_logger()

_PACKAGE = Path(__file__).resolve().parents[1]

STDERR = 2

TIMEOUT = 600.0
"""Seconds after which a script that is still being inspected counts as hung: time to read a large dataset's index."""


class Failure(msgspec.Struct, frozen=True):
    """A `UserError` on its way between processes. `type` is the name of its class."""

    type: str
    what: str
    hint: str
    detail: str


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the inspecting process prints: one of the two."""

    spec: JobSpec | None = None
    error: Failure | None = None


def describe(job: Job, script: Path) -> tuple[JobSpec, Bundle]:
    """Build the job once in this process, as a worker would, and check what can be checked beforehand.

    Torch's determinism settings of this process become the job's.

    Args:
        job: the job, defined by the script.
        script: path of the script; its folder is the code.

    Raises:
        SpecError: the job cannot be run as it is.
        ScriptError: its code cannot be bundled, or raises.
        UserError: an environment variable of exact numerics asks for what is not there.
    """
    from . import determinism
    from .data import check_dataset, fingerprint
    from .engine import Engine, build

    script = script.resolve()
    bundle = Bundle.collect(script, job.files)
    entry = entry_of(job.build, script, bundle)
    try:
        determinism.configure(job.settings.threads, job.settings.numerics)
    except DeviceError as error:  # no worker's device: the user's own environment
        raise UserError(str(error), "set it right, or leave it away: neither ever reaches the bits") from None
    try:
        training = build(job.build, job.settings)
        data = fingerprint(training.dataset, job.settings.seed)
        samples = check_dataset(training.dataset)
        if (again := check_dataset(training.dataset)) != samples:
            raise SpecError(
                f"the length of the dataset ({type(training.dataset).__name__}) changes: first {samples}, then {again}",
                "the order of samples depends on it: it must stay the same",
            )
        versions = determinism.versions()
        spec = job.spec(script=entry, code=bundle.digest, data=data, samples=samples, **versions)
        Engine(training, spec).close()
        _try_first_batch(training, spec)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise explained(error, script, f"cannot build job {job.name!r}") from error
    _warn_of_modules_elsewhere(script.parent)
    return spec, bundle


def _try_first_batch(training: Training, spec: JobSpec) -> None:
    """Fetch and collate what EST 0 will see first: items that make no batch are the commonest mistake of all.

    Raises:
        RemoteError: the dataset or `collate` raised.
    """
    from .loader import Loader
    from .randomness import preserved

    loader = Loader(training.dataset, msgspec.structs.replace(spec, loaders=0), training.collate)
    with preserved():
        loader.start(0, range(1))
        loader.next(0, 0)
    loader.close()


def _warn_of_modules_elsewhere(folder: Path) -> None:
    """Say which modules come neither from the bundle nor from an installation: workers elsewhere may lack them.

    Only a warning: on this machine, or with a shared file system, they are found as they were here.
    """
    places = [folder, *(Path(path).resolve() for path in {*sysconfig.get_paths().values(), *site.getsitepackages()})]
    places += [_PACKAGE, Path(site.getusersitepackages()).resolve()]
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or "." in name or name in ("__main__", MODULE_NAME):
            continue
        if not any(Path(file).resolve().is_relative_to(place) for place in places):
            hint = "install it there too, or put it beside the script: only the script's folder travels"
            log.warning("submit.module_elsewhere", module=name, file=file, hint=hint)


def inspect_script(
    path: Path,
    job: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
    fork_server: ForkServer | None = None,
) -> tuple[JobSpec, Bundle]:
    """`describe` a script's job in a process of its own. What the script prints goes to standard error.

    Args:
        path: path of the script.
        job: the job's name, where the script has several.
        overrides: settings that replace the job's own, as text: see `job.parse_settings`.
        timeout: seconds until the process counts as hung.
        fork_server: where the process comes from; None: one for this purpose.

    Raises:
        UserError: what `describe` raised there; a ScriptError for a process that dies or hangs.
    """
    arguments = [f"--bundle=/proc/self/fd/{EXTRA_FD}"]
    arguments += [f"--job={job}"] if job is not None else []
    arguments += [f"--set={key}={text}" for key, text in (overrides or {}).items()]
    arguments += ["--", str(path)]
    # Files, not pipes: a process that the script left behind would keep a pipe open. Without names they never stay.
    with TemporaryFile() as answer, TemporaryFile() as archive:
        with nullcontext(fork_server) if fork_server else ForkServer() as parent:
            code = run_in_child(
                parent, __spec__.name, arguments, (answer.fileno(), STDERR, archive.fileno()), timeout, path
            )
        answer.seek(0)
        spec = _read(answer.read(), code, path)
        return spec, Bundle(archive.read(), spec.script.rpartition("::")[0])


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


def _read(answer: bytes, code: int, path: Path) -> JobSpec:
    check_end(code, path)
    try:
        result = msgspec.json.decode(answer, type=Result)
    except msgspec.DecodeError:
        raise no_answer(code, path) from None
    if result.error:
        raise raised_from(result.error)
    assert result.spec is not None
    return result.spec


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


def raised_from(failure: Failure) -> UserError:
    """The error that was sent."""
    if failure.type == ScriptError.__name__:
        return ScriptError(failure.what, failure.hint, failure.detail)
    kind = getattr(errors, failure.type, UserError)
    error: UserError = kind(failure.what, failure.hint)
    return error


def _answer(script: Path, name: str | None, overrides: Sequence[str], archive: Path | None) -> Result:
    try:
        job = pick(jobs_in(load(script)), name)
        spec, bundle = describe(job.replace(**parse_settings(pairs_of(overrides))), script)
        if archive:
            _keep(bundle, archive)
        return Result(spec=spec)
    except UserError as error:
        return Result(error=failure_of(error))


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
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="also write the code bundle there")
    options = parser.parse_args()
    faulthandler.enable()
    logs.configure()
    # Before anything of the user's runs: it may change the folder.
    script, archive = options.script.absolute(), options.bundle and options.bundle.absolute()
    code = 1
    try:
        with os.fdopen(os.dup(1), "wb") as out:
            os.dup2(2, 1)  # what the script prints must not mix with the answer
            result = _answer(script, options.job, options.set, archive)
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
