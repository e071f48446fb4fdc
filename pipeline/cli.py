"""The command line: what each command is called, its options, and how errors are shown. The work is done elsewhere."""

from __future__ import annotations

import os
import signal

# Ctrl-C in the quarter of a second that imports take. Nothing can be lost yet but the KeyboardInterrupt itself: Python
# ignores one that comes while an import calls back.
_waits_for_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _waits_for_ctrl_c:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import errno  # noqa: E402
import io  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING, Annotated, NoReturn  # noqa: E402

import typer  # noqa: E402

from .. import __version__, logs  # noqa: E402
from ..errors import EasyScaleError, ScriptError  # noqa: E402
from . import (  # noqa: E402
    cli_history,
    cli_jobs,
    cli_numerics,
    cli_proof,
    cli_run,
    cli_serve,
    cli_services,
    cli_simulate,
    cli_worker,
)

if _waits_for_ctrl_c:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="easyscale",
    help="Elastic training whose result does not depend on the devices it ran on.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli_run.add(app)
cli_worker.add(app)
cli_services.add(app)
cli_jobs.add(app)
cli_proof.add(app)
cli_history.add(app)
cli_numerics.add(app)
cli_simulate.add(app)
cli_serve.add(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)  # noqa: T201 - it was asked for
        raise typer.Exit


@app.callback()
def options(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,  # noqa: ARG001
) -> None:
    """Options of all commands."""
    logs.configure(log_level)


HINTS = {
    errno.ENOSPC: "free some room, then run the same command again: nothing that was committed is lost",
    errno.EDQUOT: "your quota is used up; nothing that was committed is lost",
    errno.EROFS: "name a folder that can be written (--folder, or TMPDIR for temporary files)",
    errno.EACCES: "name a folder that you may use (--folder, or TMPDIR for temporary files)",
    errno.EPERM: "name a folder that you may use (--folder, or TMPDIR for temporary files)",
    errno.ENOENT: "name a folder that is there (--folder, or TMPDIR for temporary files)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "no process or thread can be started: raise the limit (ulimit -u), or end some",
    errno.ENOMEM: "free some memory",
    errno.E2BIG: "large settings belong in the script",
}
"""What to do when the system refuses something, by its error number."""


def fail(error: EasyScaleError) -> NoReturn:
    """Show an error and end with its exit code: 2 for a user's mistake, 1 for ours or the world's."""
    detail = f"\n{error.detail}" if isinstance(error, ScriptError) and error.detail else ""
    cause = error.__cause__
    text = f"error: {error}{detail}\n"
    if isinstance(cause, OSError) and "\n  " not in text:  # it does not say what to do by itself
        text += f"  {HINTS[cause.errno]}\n" if cause.errno in HINTS else ""
    sys.stderr.write(text)
    raise SystemExit(error.exit_code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `easyscale`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a C locale a name that is not ASCII must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="easyscale")
    except EasyScaleError as error:
        fail(error)
    except OSError as error:
        if error.errno not in HINTS:
            raise  # a bug of ours, most likely
        refused = EasyScaleError(f"{error.filename or 'the system'}: {error.strerror}")
        refused.__cause__ = error
        fail(refused)


if __name__ == "__main__":
    main()
