"""Loading a user's script as Python would run it, and finding the jobs in it.

The script's folder goes first on `sys.path` and our own folders never lie there, so nothing of the user's (a
`storage.py`, a `pipeline/`) is shadowed by ours or shadows it: we are reachable as `easyscale.*` only. Whatever
goes wrong in the script is told with the user's own frames.
"""

from __future__ import annotations

import importlib
import io
import stat
import sys
import tokenize
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import RemoteError, ScriptError, UserError, headline, shown
from .job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .bundle import Bundle
    from .pipelines import Pipeline

MODULE_NAME = "__easyscale_job__"
"""The script's name in `sys.modules`: not `__main__`, so what it guards against being imported does not run."""

ENCODING = "utf-8:backslashreplace"
"""PYTHONIOENCODING of processes that run user code: a worker's locale must not decide whether a `print` fails."""

MAX_FRAMES = 8
"""Frames of the user's that are shown of a traceback: the innermost."""

_LOADED = "__easyscale_loaded__"
_PACKAGE = Path(__file__).resolve().parents[1]


def python_command(module: str) -> list[str]:
    """The start of a command line that runs one of our modules in a process of its own.

    `-P` keeps the current folder off `sys.path`: a script could otherwise import files that happen to lie there
    and that no worker elsewhere has.
    """
    return [sys.executable, "-P", "-m", module]


def load(path: Path) -> ModuleType:
    """Run a script as a module of its own in this process. `sys.path` and `sys.argv` become the script's.

    Raises:
        ScriptError: there is no such script, or it does not run to its end.
        UserError: what our own API raised in it.
    """
    path = path.resolve()
    source = _source(path)
    # `python -m` from a checkout of ours would put our storage/, errors.py ... there
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _PACKAGE]
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    module = ModuleType(MODULE_NAME)
    module.__file__ = str(path)
    module.__spec__ = ModuleSpec(MODULE_NAME, None, origin=str(path))
    sys.modules[MODULE_NAME] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))  # noqa: S102
    except BaseException as error:
        del sys.modules[MODULE_NAME]
        if isinstance(error, (KeyboardInterrupt, UserError)):
            raise
        raise explained(error, path, "does not run") from error
    setattr(module, _LOADED, True)
    return module


def is_loading() -> bool:
    """Whether a script is being run by `load` just now."""
    module = sys.modules.get(MODULE_NAME)
    return module is not None and not hasattr(module, _LOADED)


def script_of(build: Callable[..., Any]) -> Path:
    """The script that a job is submitted from: the one that this Python was started with; in a notebook or an
    interpreter, the file that the build function was imported from.

    Raises:
        ScriptError: there is none, or its folder alone would not be enough to run it.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is not None:
        if getattr(main, "__spec__", None) is not None:
            raise ScriptError(
                f"{path} was started with `python -m`, so its folder alone is not enough to run it",
                "start it as a script: python SCRIPT.py",
            )
        return Path(path).resolve()
    module = sys.modules.get(build.__module__)
    path = getattr(module, "__file__", None)
    if module is main or path is None:
        raise ScriptError(
            f"build function {build.__name__!r} was made in a notebook or an interpreter, from where it cannot travel",
            "put it and the job into a file, train.py for example, and import that: from train import job",
        )
    if "." in build.__module__:
        raise ScriptError(
            f"{path} was imported as {build.__module__}, so its folder alone is not enough to run it",
            "put that folder on sys.path, and import it without the package's name",
        )
    return Path(path).resolve()


def jobs_in(module: ModuleType) -> dict[str, Job]:
    """The jobs at the top level of a script, by name.

    Raises:
        ScriptError: two different jobs have one name.
    """
    jobs: dict[str, Job] = {}
    for value in list(vars(module).values()):
        if isinstance(value, Job) and jobs.setdefault(value.name, value) is not value:
            raise ScriptError(f"{module.__file__} has two jobs named {value.name!r}", "give each its own name")
    return jobs


def pipelines_in(module: ModuleType) -> dict[str, Pipeline]:
    """The pipelines at the top level of a script, by name.

    Raises:
        ScriptError: two different pipelines have one name.
    """
    if "easyscale.pipeline.pipelines" not in sys.modules:
        return {}  # nobody has made one
    from .pipelines import Pipeline

    found: dict[str, Pipeline] = {}
    for value in list(vars(module).values()):
        if isinstance(value, Pipeline) and found.setdefault(value.name, value) is not value:
            raise ScriptError(f"{module.__file__} has two pipelines named {value.name!r}", "give each its own name")
    return found


def runnable_in(module: ModuleType) -> dict[str, Job | Pipeline]:
    """What can be run of a script, by name: its pipelines, and the jobs that are no stages of them.

    Raises:
        ScriptError: two different ones have one name.
    """
    pipelines = pipelines_in(module)
    staged = {id(stage) for pipeline in pipelines.values() for stage in pipeline.stages}
    jobs = {name: job for name, job in jobs_in(module).items() if id(job) not in staged}
    if both := sorted(jobs.keys() & pipelines.keys()):
        raise ScriptError(
            f"{module.__file__} has a job and a pipeline that are both named {both[0]!r}", "give each its own name"
        )
    return {**jobs, **pipelines}


R = TypeVar("R", Job, "Job | Pipeline")


def pick(jobs: Mapping[str, R], name: str | None = None) -> R:
    """The job (or pipeline) of that name, or the only one.

    Raises:
        ScriptError: none, or several to choose from.
    """
    if not jobs:
        raise ScriptError(
            "the script has no job", "put `job = easyscale.Job(...)` at its top level, not in a function or `if`"
        )
    names = ", ".join(sorted(jobs))
    if name is not None:
        if name in jobs:
            return jobs[name]
        raise ScriptError(f"the script has no job {name!r}", f"choose with --job NAME among: {names}")
    if len(jobs) > 1:
        raise ScriptError(f"the script has {len(jobs)} jobs", f"choose one with --job NAME among: {names}")
    return next(iter(jobs.values()))


def entry_of(build: Callable[..., Any], script: Path, bundle: Bundle) -> str:
    """How workers name a function: `train.py::build`, or `train.py::models:build` for another module's.

    Args:
        build: the function: of a job its build function.
        script: path of the script.
        bundle: the script's bundle.

    Raises:
        ScriptError: the function's module does not travel with the script, or knows another function by its name.
    """
    module = sys.modules.get(build.__module__)
    name, folder = build.__name__, script.parent
    file = Path(getattr(module, "__file__", None) or "/nowhere").resolve()
    where = f"function {name!r} of module {build.__module__!r}"
    if not file.is_relative_to(folder) or file.relative_to(folder).as_posix() not in bundle.names:
        raise ScriptError(
            f"{where} ({file}) lies outside the code that travels to the workers: the sources in {folder}",
            "define it in the script, or in a module beside it",
        )
    if getattr(module, name, None) is not build:
        raise ScriptError(
            f"{where} is not what is called {name!r} there now",
            "workers find it by this name: do not reuse it, and keep it when you wrap it (functools.wraps)",
        )
    return f"{bundle.script}::{name}" if file == script else f"{bundle.script}::{build.__module__}:{name}"


def load_entry(folder: Path, entry: str) -> Callable[..., Any]:
    """The function that `entry_of` named, from the unpacked bundle; runs the script.

    Raises:
        ScriptError: as `load`, or the function is not there.
    """
    inside, _, function = entry.rpartition("::")
    module_name, _, name = function.rpartition(":")
    script = folder / inside
    module = load(script)
    try:
        if module_name:
            module = importlib.import_module(module_name)
        build: Callable[..., Any] = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise explained(error, script, f"has no function {function!r}") from error
    return build


def explained(error: BaseException, script: Path, what: str) -> ScriptError:
    """An exception from the user's code as an error for the user. `what` goes on from the script's path."""
    text = f"{script} {what}: {headline(error)}"
    hint = "mend the script"
    if isinstance(error, RemoteError):  # of the dataset: it says which item, and has the user's traceback
        where, _, trace = str(error).partition("\n")
        return ScriptError(f"{script} {what}: {where}", "mend the dataset", trace)
    if isinstance(error, SystemExit):
        text = f"{script} {what}: it calls sys.exit({shown(error.code)})"
        hint = 'put what only the main program does under `if __name__ == "__main__":`'
    elif isinstance(error, SyntaxError):
        text = f"{script} {what}: {error.filename}, line {error.lineno}, is not valid Python ({error.msg})"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install {error.name.partition('.')[0]} here and on every worker, or put it beside the script"
    return ScriptError(text, hint, user_traceback(error, script.parent))


def user_traceback(error: BaseException, folder: Path) -> str:
    """A traceback with only the frames that lie below a folder: the innermost few, and the exception's text.

    Where no frame does (a library's dataset failed when we called it), the innermost few of all that are not ours.
    """
    trace = traceback.TracebackException.from_exception(error)
    parts = [trace]
    for part in parts:
        parts += [other for other in (part.__cause__, part.__context__) if other]
    only_users = isinstance(error, SyntaxError) or any(_users(part, folder) for part in parts)
    for part in parts:
        frames = (_users(part, folder) if only_users else _not_ours(part))[-MAX_FRAMES:]
        # an empty stack would still print its headline
        part.stack = traceback.StackSummary.from_list(frames) if frames else None  # type: ignore[assignment]
    return "".join(trace.format()).rstrip()


def is_ours(error: BaseException, folder: Path) -> bool:
    """Whether an exception was raised by a line of easyscale itself, not by the user's code below `folder`."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = Path(frames[-1].filename) if frames else folder
    return raised.resolve().is_relative_to(_PACKAGE) and not _is_users(raised, folder)


def _users(part: traceback.TracebackException, folder: Path) -> list[traceback.FrameSummary]:
    return [frame for frame in part.stack if _is_users(Path(frame.filename), folder)]


def _not_ours(part: traceback.TracebackException) -> list[traceback.FrameSummary]:
    return [frame for frame in part.stack if not Path(frame.filename).resolve().is_relative_to(_PACKAGE)]


def _is_users(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder) and "site-packages" not in file.parts


def _source(path: Path) -> bytes:
    """The text of a script, as Python takes it: UTF-8, or what its first lines say.

    Raises:
        ScriptError: it is none. A pipe or a device is one that would never end.
    """
    source = _read(path)
    if path.suffix == ".ipynb":
        raise ScriptError(
            f"{path} is a notebook, not a Python script",
            f"make a script of it: jupyter nbconvert --to script {path.name}",
        )
    if b"\0" in source:
        raise ScriptError(f"{path} is not a Python script: it holds binary data", "check the path")
    hint = "save it as UTF-8, or name its encoding in its first line: # -*- coding: latin-1 -*-"
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    except SyntaxError as error:
        if "unknown encoding" in str(error):
            raise ScriptError(f"{path} cannot be read as text: {error.msg}", hint) from None
        encoding = "utf-8"  # its first lines are not, but say nothing else
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {source[error.start]:#04x} in line {source[: error.start].count(10) + 1}"
        raise ScriptError(f"{path} is not valid {error.encoding.upper()}: {where}", hint) from None
    return source


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ScriptError(f"{path} is not a file but a pipe, socket or device", "save the script to a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise ScriptError(f"there is no script {path}", "check the path") from None
    except IsADirectoryError:
        raise ScriptError(f"{path} is a folder", "give the script in it") from None
    except OSError as error:
        raise ScriptError(f"script {path} cannot be read: {error.strerror}", "make it readable") from None
