"""A job as people and scripts see it: one flat picture made from its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..coordinator import keys, records, views

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Args:
        state: `waiting`, `running`, `paused`, `done`, `failed` or `cancelled`; reason: why, where that is not plain.
        waits_for: what a waiting job lacks; see `records.WaitsFor`.
        step, steps: the newest step heard of, and the step at which the job is done.
        committed: step of the newest commit; state_digest, manifest and metrics are that commit's.
        desired: what the user wants: `running`, `paused` or `cancelled`.
        workers: names of the members of the current generation.
        loss, lr, samples_per_second: of the last step heard of.
        attempts: ended attempts by cause.
        recoveries: the newest ones, oldest first.
        traceback: of the user's code, where it failed.
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
    generation: int
    ests: int
    priority: int
    loss: float | None
    lr: float | None
    samples_per_second: float
    attempts: dict[str, int]
    recoveries: list[records.Recovery]
    damage: list[str]
    traceback: str

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
        generation=view.generation,
        ests=spec.ests,
        priority=spec.priority,
        loss=progress.loss,
        lr=progress.lr,
        samples_per_second=progress.samples_per_second if running else 0.0,
        attempts=status.attempts,
        recoveries=list(status.recoveries),
        damage=list(status.damage),
        traceback=status.failure.traceback if status.failure else "",
    )


def read_job(kv: KeyValueStore, name: str) -> views.JobView | None:
    """The picture of one job's keys, or None if there is no such job."""
    view = views.parse(kv.range(keys.job(name))).jobs.get(name)
    return view if view is not None and view.spec is not None else None


def read_jobs(kv: KeyValueStore) -> list[views.JobView]:
    """All jobs, by precedence: priority, then age."""
    jobs = [job for job in views.parse(kv.range(keys.JOBS)).jobs.values() if job.spec is not None]
    return sorted(jobs, key=lambda job: (-_spec(job).value.priority, _spec(job).kv.create_revision))


def _spec(job: views.JobView) -> views.Entry[records.JobRecord]:
    assert job.spec is not None
    return job.spec
