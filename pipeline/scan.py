"""Can exact numerics run a job? One step of it is traced, and every operator is told with its class and its place.

Building, fetching one batch, forward, backward, update and evaluation are run once, with PyTorch's own kernels and the
switches of exact mode, for one EST. The kernels of exact mode are not needed. What a step does only sometimes is seen
only if it does it in this one.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import traceback
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import msgspec

from .. import logs
from ..errors import UserError
from . import inspect
from .forkserver import ForkServer
from .inspect import STDERR, TIMEOUT, Failure, failure_of, pairs_of, raised_from
from .job import parse_settings
from .script import explained, jobs_in, load, pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .job import Job
    from .operator_calls import OperatorCalls


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one part of the job.

    Args:
        operator: like `aten::addmm`.
        kind: its class, in words; covered: whether exact numerics can run it.
        part: `build`, `data`, `forward`, `backward`, `update`, `evaluate`, or `engine` for our own bookkeeping.
        calls: how often.
        places: lines of the user's code and modules of the model that it comes from.
    """

    operator: str
    kind: str
    covered: bool
    part: str
    calls: int
    places: list[str]


class Scanned(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the scanning process prints: one of the two."""

    rows: list[Row] | None = None
    error: Failure | None = None


def scan(job: Job, script: Path) -> list[Row]:
    """Trace a job once in this process.

    Raises:
        ScriptError: its code raises. SpecError: it cannot be run at all.
    """
    from . import determinism
    from .data import check_dataset
    from .engine import Engine, build
    from .loader import Loader
    from .numerics import library
    from .operator_calls import OperatorCalls

    determinism.configure(job.settings.threads)
    library.settle()
    parts = {
        Loader.next.__code__: "data",
        Engine._run.__code__: "forward",  # noqa: SLF001
        Engine._apply.__code__: "update",  # noqa: SLF001
        Engine.evaluate.__code__: "evaluate",
    }
    traced = OperatorCalls(parts=parts)
    try:
        traced.part = "build"
        with traced:
            training = build(job.build, job.settings)
        traced.knows(training.model)
        spec = job.spec(script="", code="", data="", samples=check_dataset(training.dataset))
        one = {"ests": 1, "loaders": 0, "min_workers": 1, "max_workers": 1, "numerics": "native"}
        traced.part = "engine"
        with traced:
            engine = Engine(training, msgspec.structs.replace(spec, **one))
            engine.run_local()
            engine.evaluate()
        engine.close()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise explained(error, script, f"cannot run job {job.name!r}") from error
    return _rows(traced)


def _rows(traced: OperatorCalls) -> list[Row]:
    """One for each operator, class and part, uncovered ones last."""
    from .numerics.coverage import Class

    calls: defaultdict[tuple[str, Class, str], int] = defaultdict(int)
    places: defaultdict[tuple[str, Class, str], dict[str, None]] = defaultdict(dict)
    for call, count in traced.calls.items():
        key = call.operator, call.kind, call.part
        calls[key] += count
        places[key] |= {str(call.place): None} if str(call.place) else {}
    rows = [
        Row(
            operator=operator, kind=kind.value, covered=kind is not Class.UNCOVERED, part=part, calls=count,
            places=list(places[operator, kind, part]),
        )
        for (operator, kind, part), count in calls.items()
    ]  # fmt: skip
    order = [kind.value for kind in Class]
    return sorted(rows, key=lambda row: order.index(row.kind))


def scan_script(
    path: Path,
    job: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    fork_server: ForkServer | None = None,
) -> list[Row]:
    """`scan` a script's job in a process of its own. What the script prints goes to standard error.

    Args:
        fork_server: where the process comes from; None: one for this purpose.

    Raises:
        UserError: what `scan` raised there; a ScriptError for a process that dies or hangs.
    """
    arguments = [f"--job={job}"] if job is not None else []
    arguments += [f"--set={key}={text}" for key, text in (overrides or {}).items()]
    with TemporaryFile() as answer, nullcontext(fork_server) if fork_server else ForkServer() as parent:
        fds = answer.fileno(), STDERR
        code = inspect.run_in_child(parent, __spec__.name, [*arguments, "--", str(path)], fds, TIMEOUT, path)
        inspect.check_end(code, path)
        answer.seek(0)
        try:
            found = msgspec.json.decode(answer.read(), type=Scanned)
        except msgspec.DecodeError:
            raise inspect.no_answer(code, path) from None
    if found.error:
        raise raised_from(found.error)
    assert found.rows is not None
    return found.rows


def main() -> None:
    """Print what a scan of a script's job finds, or why there is none, as one line of JSON."""
    parser = argparse.ArgumentParser(prog=__spec__.name, description=main.__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--job", metavar="NAME", help="which job, where the script has several")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="replace a setting")
    options = parser.parse_args()
    faulthandler.enable()
    logs.configure()
    script = options.script.absolute()  # before anything of the user's runs: it may change the folder
    code = 1
    try:
        with os.fdopen(os.dup(1), "wb") as out:
            os.dup2(2, 1)  # what the script prints must not mix with the answer
            try:
                job = pick(jobs_in(load(script)), options.job).replace(**parse_settings(pairs_of(options.set)))
                result = Scanned(rows=scan(job, script))
            except UserError as error:
                result = Scanned(error=failure_of(error))
            out.write(msgspec.json.encode(result) + b"\n")
        code = UserError.exit_code if result.error else 0
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - a bug of ours: it must not wait for the script's threads either
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
