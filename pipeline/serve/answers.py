"""What the API says: JSON-able answers made from the pictures that `jobs`, `show` and `workers` print. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from ... import __version__
from .. import speeds
from ..summary import by_precedence, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...coordinator import records
    from ...coordinator.views import JobView, View
    from .. import stages
    from ..history import Commit
    from ..speeds import WorkerRow

SHOWN_REASON = 300
"""Characters of a reason in a list; a job's own page has all."""

Answer = dict[str, Any]


def cluster(view: View, kv: str, store: str, *, steering: bool) -> Answer:
    """The cluster as a whole.

    Args:
        view: the picture.
        kv, store: addresses, without secrets.
        steering: whether jobs can be paused, resumed and cancelled here.
    """
    jobs = [job for job in view.jobs.values() if job.spec is not None]
    return {
        "version": __version__,
        "kv": kv,
        "store": store,
        "steering": steering,
        "coordinator": view.leader is not None,
        "jobs": dict(Counter(job.state for job in jobs)),
        "workers": dict(Counter(row.state for row in speeds.rows(view))),
        "unreadable": view.damaged[:20],
    }


def jobs(view: View) -> list[Answer]:
    """All jobs by precedence, each as a line of a list."""
    return [_line(job) for job in by_precedence(view)]


def pipelines(found: Iterable[stages.Picture]) -> list[Answer]:
    """All pipelines, each with its stages in order, those that are no jobs yet too: see `stages.StageSummary`."""
    return [
        {"pipeline": one.name, "state": one.state, "stages": [_stage(stage) for stage in one.summaries()]}
        for one in found
    ]


def _stage(stage: stages.StageSummary) -> Answer:
    answer: Answer = msgspec.to_builtins(stage)
    return answer | {"reason": stage.reason[:SHOWN_REASON]}


def _line(view: JobView) -> Answer:
    job = summarize(view)
    return {
        "job": job.job,
        "state": job.state,
        "reason": job.reason[:SHOWN_REASON],
        "waits_for": job.waits_for,
        "desired": job.desired,
        "step": job.step,
        "steps": job.steps,
        "committed": job.committed,
        "workers": len(job.workers),
        "ests": job.ests,
        "priority": job.priority,
        "loss": job.loss,
        "samples_per_second": job.samples_per_second,
        "recovered": _recovered(view),
    }


def _recovered(job: JobView) -> int:
    return job.status.value.recovered if job.status else 0


def workers(view: View) -> list[Answer]:
    """All workers by name, each with its share of its job: ESTs it has of all ESTs, 0 to 1."""
    return [_worker(row, view) for row in speeds.rows(view)]


def _worker(row: WorkerRow, view: View) -> Answer:
    job = view.jobs.get(row.job or "")
    ests = job.record.ests if job and job.spec else 0
    return row.as_dict() | {"share": (row.last - row.first) / ests if ests else 0.0}


def job(view: View, name: str) -> Answer | None:
    """Everything about one job but its history; None if there is no such job."""
    found = view.jobs.get(name)
    if found is None or found.spec is None:
        return None
    members = {member.worker for member in found.members}
    records_of = {worker: entry.value for worker, entry in view.workers.items()}
    mine = [_worker(row, view) for row in speeds.rows(view) if row.job == name or row.id in members]
    return summarize(found).as_dict() | {
        "recovered": _recovered(found),
        "forks": _forks(view, name),
        "speeds": [{"what": what, "text": text} for what, text in speeds.lines(found, records_of)],
        "serving": mine,
        "gone": sorted(members - view.workers.keys()),
        "plan_cause": found.plan.value.cause if found.plan else "",
        "submitted": found.record.submitted,
        "tenant": found.record.tenant,
        "numerics": found.record.numerics,
    }


def _forks(view: View, name: str) -> list[Answer]:
    """The jobs that began with a commit of this one, by step."""
    from_here = ((job.name, job.record.forked.rpartition("@")) for job in view.jobs.values() if job.spec)
    return sorted(
        ({"job": fork, "step": int(step)} for fork, (origin, _, step) in from_here if origin == name),
        key=lambda fork: (fork["step"], fork["job"]),
    )


def timeline(found: JobView, past: Iterable[records.Generation]) -> list[Answer]:
    """Who ran which ESTs between which steps, oldest generation first; the last one is the current plan.

    A generation's `last` is where the next one that made steps began, since what was heard of it may be a second old.
    Steps may overlap: those that a loss took were computed again.
    """
    rows = [msgspec.to_builtins(generation) for generation in past if generation.generation != found.generation]
    if found.plan is not None:
        rows.append(msgspec.to_builtins(found.plan.value) | {"first": None, "last": None} | _now(found))
    begins: int | None = None
    for row in reversed(rows):
        if row["first"] is None or not row["members"]:
            continue
        if begins is not None:
            row["last"] = max(row["last"], begins)
        begins = row["first"]
    return rows


def _now(found: JobView) -> Answer:
    """The steps that the current generation has made, as far as is known."""
    progress = found.progress.value if found.progress else None
    if progress is None or progress.generation != found.generation:
        start = found.start_step()
        return {"first": start, "last": start}
    newest = max(progress.step, found.head.value.step if found.head else 0)
    return {"first": progress.started, "last": min(newest, found.record.steps)}


def commit(row: Commit) -> Answer:
    """A commit as a line of a list."""
    return {
        "step": row.step,
        "job": row.job,
        "manifest": row.manifest,
        "generation": row.generation,
        "state_digest": row.state_digest,
        "created": row.created,
        "bytes": row.size,
        "metrics": row.metrics,
    }
