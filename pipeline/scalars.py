"""The numbers of a job's steps as files for other tools: CSV, and TensorBoard's event files where it is installed.

`step` is how many steps are done, as everywhere: beside it stand the loss and the learning rate of the step that led
there, and the metrics if that state was committed.
"""

from __future__ import annotations

import csv
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore
    from .history import Commit, Step

EXTRA = "pip install 'easyscale[tensorboard]'"


def write_csv(store: ObjectStore, job: JobView, to: Path) -> int:
    """Write a line per step, oldest first: `step,epoch,loss,lr,...,grad_norm,skipped` and a column per metric.

    An empty field means that there is no number. The file appears whole or not at all.

    Returns:
        The number of steps.

    Raises:
        UserError: the job has no commit, or the file cannot be written.
        CorruptError, NotFoundError: a commit is damaged; the message names it.
    """
    commits = _commits(store, job)
    groups = max((len(step.lr) for step in _first(store, commits)), default=1)
    names = sorted({name for commit in commits for name in commit.metrics})
    lrs = [f"lr{group or ''}" for group in range(max(groups, 1))]
    count = 0
    with _replaced(to) as file:
        rows = csv.writer(file)
        rows.writerow(["step", "epoch", "loss", *lrs, "grad_norm", "skipped", *map(_safe, names)])
        for commit, step in _steps(store, commits):
            here = commit.metrics if step.step + 1 == commit.step else {}
            lr = [*step.lr, *[None] * len(lrs)][: len(lrs)]
            known = [step.step + 1, step.epoch, step.loss, *lr, step.grad_norm, int(step.skipped)]
            rows.writerow(["" if value is None else value for value in [*known, *map(here.get, names)]])
            count += 1
    return count


def write_tensorboard(store: ObjectStore, job: JobView, to: Path) -> int:
    """Write event files: `train/loss`, `train/lr`, `train/grad_norm` and `metrics/...`, at the times of the commits.

    Args:
        store, job: where from, and of what.
        to: a folder that is empty or not there.

    Returns, raises:
        As `write_csv`; also UserError where TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("TensorBoard is not installed", f"{EXTRA}, or use --format csv") from error
    commits = _commits(store, job)
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise UserError(f"folder {to} is not empty", "name another one with --to: TensorBoard would show both")
    except OSError as error:
        raise UserError(f"folder {to} cannot be used: {error.strerror}", "name another one with --to") from error
    count = 0
    with SummaryWriter(str(to)) as writer:
        for commit, step in _steps(store, commits):
            numbers: dict[str, Any] = {"train/loss": step.loss, "train/grad_norm": step.grad_norm}
            numbers |= {f"train/lr{group or ''}": lr for group, lr in enumerate(step.lr)}
            if step.step + 1 == commit.step:
                numbers |= {f"metrics/{name}": float(value) for name, value in commit.metrics.items()}
            for tag, value in numbers.items():
                if value is not None:
                    writer.add_scalar(tag, value, step.step + 1, walltime=commit.created)
            count += 1
    return count


def _commits(store: ObjectStore, job: JobView) -> list[Commit]:
    """Oldest first."""
    if job.head is None:
        raise UserError(f"job {job.name!r} has no commit yet", "scalars are written with commits; wait for the first")
    return list(history.commits(store, job.head.value.manifest))[::-1]


def _first(store: ObjectStore, commits: list[Commit]) -> list[Step]:
    return next((steps for commit in commits if (steps := history.steps(store, commit))), [])


def _steps(store: ObjectStore, commits: list[Commit]) -> Iterator[tuple[Commit, Step]]:
    for commit in commits:
        for step in history.steps(store, commit):
            yield commit, step


def _safe(name: str) -> str:
    """A heading that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name


@contextmanager
def _replaced(to: Path) -> Iterator[Any]:
    """A file that takes the place of another when it is whole."""
    try:
        if to.is_dir():
            raise UserError(f"{to} is a folder", "name a file with --to")
        with tempfile.NamedTemporaryFile("w", dir=to.parent, newline="", encoding="utf-8", delete=False) as file:
            temporary = Path(file.name)
            try:
                yield file
                file.close()
                temporary.chmod(0o644)
                temporary.replace(to)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = f"{error.strerror}" if error.strerror else str(error)
        raise UserError(f"file {to} cannot be written: {reason}", "name another one with --to") from error
