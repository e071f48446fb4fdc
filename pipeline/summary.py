"""A job as people and scripts see it: one flat picture made from its keys."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ..coordinator import keys, records, throughput, views
from ..errors import CorruptError, UserError, listed, shown

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore


log = structlog.get_logger()

SHOWN_NAMES = 20


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Args:
        state: `waiting`, `running`, `paused`, `done`, `failed` or `cancelled`; reason: why, where that is not plain.
        waits_for: what a waiting job lacks; see `records.WaitsFor`.
        step, steps: the newest step heard of, and the step at which the job is done.
        committed: step of the newest commit; state_digest, manifest and metrics are that commit's.
        desired: what the user wants: `running`, `paused` or `cancelled`.
        workers: names of the members of the current generation.
        ranges: their ESTs, `[worker, first, last]`.
        rates: by kind of device, seconds of one EST (`est`) and of a step besides (`fixed`), where they are known.
        stragglers: id of a worker -> how many times as long as its kind it takes, where that is much more or less.
        lane, sent_per_step: how partials travel (`peer`, `store`, `local`), and bytes that slot 0 sent in a step.
        loss, lr, samples_per_second: of the last step heard of.
        attempts: ended attempts by cause.
        recoveries: the newest ones, oldest first.
        quarantined: devices that the job keeps away from -> the evidence of wrong bits.
        cause: of a failure: see `records.Cause`; traceback: of the user's code, where it failed.
        forked: `JOB@STEP` of the commit that it began with, or empty. pipeline: of which it is a stage, or empty.
    """

    job: str
    state: records.JobState
    reason: str
    waits_for: records.WaitsFor
    desired: str
    step: int
    steps: int
    committed: int
    state_digest: str | None
    manifest: str | None
    metrics: dict[str, float]
    workers: list[str]
    ranges: list[tuple[str, int, int]]
    rates: dict[str, records.Rate]
    stragglers: dict[str, float]
    generation: int
    ests: int
    priority: int
    loss: float | None
    lr: float | None
    samples_per_second: float
    lane: str
    sent_per_step: int
    attempts: dict[str, int]
    recoveries: list[records.Recovery]
    damage: list[str]
    quarantined: dict[str, str]
    cause: str
    traceback: str
    forked: str
    pipeline: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def summarize(view: views.JobView) -> Summary:
    """The picture of one job."""
    assert view.spec is not None
    spec, status = view.spec.value, view.status.value if view.status else records.Status()
    head = view.head.value if view.head else None
    progress = view.progress.value if view.progress else records.Progress(step=0)
    committed = head.step if head else 0
    running = status.state == "running"
    rates = throughput.known(view)
    return Summary(
        job=view.name,
        state=status.state,
        waits_for=status.waits_for,
        reason=status.reason or ("" if view.status else "no coordinator has seen it yet"),
        desired=view.desired,
        step=committed if status.state == "done" else max(progress.step, committed),
        steps=spec.steps,
        committed=committed,
        state_digest=head.state_digest if head else None,
        manifest=head.manifest if head else None,
        metrics=head.metrics if head else {},
        workers=[member.worker for member in view.members],
        ranges=[(member.worker, member.first, member.last) for member in view.members],
        rates=rates.kinds if rates else {},
        stragglers=rates.factors if rates else {},
        generation=view.generation,
        ests=spec.ests,
        priority=spec.priority,
        loss=progress.loss,
        lr=progress.lr,
        samples_per_second=progress.samples_per_second if running else 0.0,
        lane=progress.lane,
        sent_per_step=progress.sent,
        attempts=status.attempts,
        recoveries=list(status.recoveries),
        damage=list(status.damage),
        quarantined=status.quarantined,
        cause=status.failure.cause if status.failure else "",
        traceback=status.failure.traceback if status.failure else "",
        forked=spec.forked,
        pipeline=spec.pipeline,
    )


def read_job(kv: KeyValueStore, name: str) -> views.JobView | None:
    """The picture of one job's keys, or None if there is no such job.

    Raises:
        CorruptError: there is one, but its record cannot be read.
    """
    picture = views.parse(kv.range(keys.job(name)))
    view = picture.jobs.get(name)
    if view is not None and view.spec is not None:
        return view
    if broken := [what for what in picture.damaged if what.startswith(keys.spec(name))]:
        raise CorruptError(
            f"job {name!r} at {kv.address} cannot be read: {broken[0]}\n"
            "  another version of EasyScale wrote it, or it was damaged; nothing was changed"
        )
    return None


def no_such_job(kv: KeyValueStore, name: str) -> UserError:
    """The error for a job that is not there: names those that are, the likeliest first."""
    pipeline = kv.get(keys.pipeline(name))
    if pipeline is not None:
        stages = [stage.name for stage in records.decode(pipeline.value, records.PipelineRecord, pipeline.key).stages]
        return UserError(
            f"{name!r} is a pipeline, not a job", f"name a stage: {listed([f'{name}.{s}' for s in stages])}"
        )
    names = [job.name for job in read_jobs(kv)]
    if names:
        close = difflib.get_close_matches(name, names, 3)
        more = f" and {len(names) - SHOWN_NAMES} more (`easyscale jobs`)" if len(names) > SHOWN_NAMES else ""
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        hint = f"{meant}there are: {', '.join(names[:SHOWN_NAMES])}{more}"
    else:
        hint = "there are none at all; name the key-value store that it was submitted to (--kv or EASYSCALE_KV)"
    return UserError(f"there is no job {shown(name)} at {kv.address}", hint)


def read_jobs(kv: KeyValueStore) -> list[views.JobView]:
    """All jobs that can be read, by precedence: priority, then age."""
    view = views.parse(kv.range(keys.JOBS))
    for what in view.damaged:
        log.warning("jobs.unreadable", what=what)
    return by_precedence(view)


def by_precedence(view: views.View) -> list[views.JobView]:
    """The jobs of a picture that can be read: by priority, then age."""
    jobs = [job for job in view.jobs.values() if job.spec is not None]
    return sorted(jobs, key=lambda job: (-_spec(job).value.priority, _spec(job).kv.create_revision))


def _spec(job: views.JobView) -> views.Entry[records.JobRecord]:
    assert job.spec is not None
    return job.spec
