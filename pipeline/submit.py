"""Submitting: from a checked specification to a job that workers can claim, and the handle to follow it by.

Everything is checked before the first write, the blobs go first and one transaction makes the job exist, so a submit
that dies on any line leaves either no job or a whole one. The same submit again finds the job that is there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from .. import logs
from ..coordinator import keys, reasons, records
from ..coordinator.kv import Delete, Put, absent, unchanged
from ..errors import ChangedError, EasyScaleError, NotFoundError, RemoteError, UnavailableError, UserError
from ..storage.blobs import get_blob, put_blob
from ..storage.selftest import require_fit
from ..storage.signatures import signer
from ..storage.submitted import submitted_key
from . import bundle as bundles
from .addresses import open_both
from .names import look_for
from .spec import FROZEN, MOST_WORKERS, JobSpec
from .speeds import read_workers
from .summary import Summary, no_such_job, read_job, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..coordinator.kv import KeyValueStore
    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore
    from .job import Job
    from .spec import Input

log = structlog.get_logger()

ATTEMPTS = 8
"""Times that a submit is tried against others who write the same job."""

POLL_SECONDS = 0.25

How = Literal["created", "found", "resumed", "restarted", "changed"]
Wish = Literal["running", "paused", "cancelled"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished job came to. `store` is the address of the object store that has its commits."""

    job: str
    steps: int
    state_digest: str
    manifest: str
    metrics: dict[str, float]
    store: str = ""

    def value(self) -> Any:
        """What a stage of a pipeline comes to for later stages: of a function what it returned, else a `Committed`.

        Raises:
            NotFoundError, CorruptError: it was collected, or is damaged.
            UnavailableError: the object store does not answer.
        """
        from ..storage.commits import read_commit
        from ..storage.objects import open_store
        from .inputs import value_of

        return value_of(*read_commit(open_store(self.store), self.manifest))

    def __str__(self) -> str:
        metrics = "".join(f", {name} {value:.6g}" for name, value in sorted(self.metrics.items()))
        return f"job {self.job!r}: {self.steps} steps done{metrics}, state digest {self.state_digest}"


class Watch:
    """A job whenever it has changed, until it is over. As the last line of a notebook's cell, a bar."""

    def __init__(self, jobs: Iterator[Summary]) -> None:
        self._jobs = jobs

    def __iter__(self) -> Iterator[Summary]:
        return self._jobs

    def __next__(self) -> Summary:
        return next(self._jobs)

    def _ipython_display_(self) -> None:
        from .notebook import show

        show(self._jobs)


class Handle:
    """A submitted job.

    Args:
        name: of the job. kv: where its records are. how: what submitting it did.
        store: address of the object store that has its commits.
    """

    def __init__(self, name: str, kv: KeyValueStore, how: How = "found", store: str = "") -> None:
        self.name, self.how = name, how
        self._kv, self._store = kv, store

    def status(self) -> Summary:
        """The job as it is now.

        Raises:
            UserError: there is no such job any more.
            UnavailableError: the key-value store does not answer.
        """
        view = read_job(self._kv, self.name)
        if view is None:
            raise no_such_job(self._kv, self.name)
        return summarize(view)

    def watch(self, timeout: float | None = None, every: float | None = None) -> Watch:
        """The job whenever it has changed, until it is over. Survives outages of the key-value store.

        Iterate over it; or let it be the last line of a notebook's cell, which shows a bar until then.

        Args:
            timeout: seconds after which to stop watching.
            every: seconds after which to say it again although it has not changed.

        Raises:
            TimeoutError: while iterating: the job was not over in time.
        """
        return Watch(self._watch(timeout, every))

    def _watch(self, timeout: float | None, every: float | None) -> Iterator[Summary]:
        deadline = None if timeout is None else time.monotonic() + timeout
        last: Summary | None = None
        said = float("-inf")
        watch = self._kv.watch(keys.job(self.name))
        try:
            while True:
                now = self._look() or last
                due = every is not None and time.monotonic() - said >= every
                if now is not None and (now != last or due):
                    last, said = now, time.monotonic()
                    yield now
                if last is not None and last.state in records.TERMINAL:
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    where = f"{last.state}: {last.reason}" if last else "not answered for"
                    raise TimeoutError(f"job {self.name!r} was not over after {timeout} s ({where})")
                watch.wait(POLL_SECONDS)
        finally:
            watch.close()

    def _look(self) -> Summary | None:
        try:
            return self.status()
        except UnavailableError as error:
            log.warning("watch.unavailable", job=self.name, error=str(error))
            return None

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end.

        Raises:
            RemoteError: the job failed; the message ends with the traceback of the user's code.
            EasyScaleError: it was cancelled.
            TimeoutError: it was not over in time.
        """
        last: Summary | None = None
        for last in self.watch(timeout):
            if last.state == "waiting" and last.reason:
                hint = "`easyscale worker` and `easyscale coordinator` serve it, with the same addresses"
                log.info("job.waits", job=self.name, reason=last.reason, hint=hint)
        assert last is not None
        if last.state == "failed":
            raise RemoteError(f"job {self.name!r} failed: {last.reason}\n{last.traceback}".rstrip())
        if last.state == "cancelled":
            raise EasyScaleError(f"job {self.name!r} was cancelled at step {last.step}")
        return result_of(last, self._store)


def result_of(job: Summary, store: str) -> Result:
    """What a job that is done came to. `store` is where its commits are."""
    assert job.state_digest is not None
    assert job.manifest is not None
    return Result(
        job=job.job,
        steps=job.committed,
        state_digest=job.state_digest,
        manifest=job.manifest,
        metrics=job.metrics,
        store=store,
    )


def submit(job: Job, *, kv: str | None = None, store: str | None = None, accept_changes: bool = False) -> Handle:
    """Submit the job of the script that is running, or that a notebook has imported. See `Job.submit`."""
    from .description import describe
    from .script import script_of

    if not structlog.is_configured():
        logs.configure()  # the script's standard output is its own
    spec, bundle = describe(job, script_of(job.build))
    _, records_at, objects_at = open_both(kv, store)
    how = place(records_at, objects_at, spec, bundle, accept_changes=accept_changes)
    return Handle(spec.name, records_at, how, objects_at.address)


def place(
    kv: KeyValueStore, store: ObjectStore, spec: JobSpec, bundle: bundles.Bundle, *, accept_changes: bool = False
) -> How:
    """Make the job exist, or find it, or change it where that is allowed.

    Raises:
        ChangedError: it exists and differs in what defines its bits, and that was not accepted.
        AddressError: the object store is unfit.
        UnavailableError: a store does not answer.
        UserError: there is to be a signing key, and it cannot be used.
    """
    by = signer()
    require_fit(store)
    view = look_for(kv, spec)
    redefined = view is not None and _refuse_changes(store, view, spec, bundle, accept_changes)
    record = record_of(spec, put_blob(store, spec.encode()), put_blob(store, bundle.data))
    if by is not None:
        by.sign(store, record.spec)
        by.sign(store, record.code)
    for _ in range(ATTEMPTS):
        how = _write(kv, view, record, redefined)
        if how is not None:
            keep_submitted(store, record)
            return how
        view = look_for(kv, spec)
        redefined = view is not None and _refuse_changes(store, view, spec, bundle, accept_changes)
    raise UnavailableError(f"job {spec.name!r} is being written by somebody else at {kv.address}; submit it again")


def keep_submitted(store: ObjectStore, record: records.JobRecord) -> None:
    """Write down in the object store what was submitted, should the key-value store be lost: see `recovering.py`.

    Whoever dies or fails before this leaves a job all the same, which can be recovered from its first commit on.
    """
    try:
        store.put(submitted_key(record.name), records.encode(record))
    except UnavailableError as error:
        log.warning("submit.not_kept", job=record.name, error=str(error), effect="cannot be recovered without a commit")


def record_of(spec: JobSpec, spec_digest: str, code_digest: str) -> records.JobRecord:
    """What the key-value store says of a job with this specification and code, submitted now."""
    return records.JobRecord(
        name=spec.name,
        spec=spec_digest,
        code=code_digest,
        steps=spec.total_steps,
        ests=spec.ests,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers if spec.ests <= MOST_WORKERS else min(spec.max_workers or spec.ests, MOST_WORKERS),
        priority=spec.priority,
        guaranteed_workers=spec.guaranteed_workers,
        tenant=spec.tenant,
        numerics=spec.numerics,
        retries=records.Retry(died=spec.retries.died, raised=spec.retries.raised),
        pipeline=spec.pipeline,
        submitted=time.time(),
    )


def _write(kv: KeyValueStore, view: JobView | None, record: records.JobRecord, redefined: bool) -> How | None:
    """One try. None when somebody else was faster. `redefined`: what defines the bits has changed."""
    name = record.name
    desired = Put(keys.desired(name), b"running")
    if view is None:
        created = kv.txn(
            (absent(keys.spec(name)), absent(keys.pipeline(name))),
            (Put(keys.spec(name), records.encode(record)), desired),
        )
        return "created" if created.succeeded else None
    assert view.spec is not None
    old = view.spec.value
    record = msgspec.structs.replace(record, forked=old.forked, rewound=old.rewound)
    how: How = "changed" if redefined else "found"
    operations: list[Put | Delete] = []
    if old != msgspec.structs.replace(record, submitted=old.submitted):
        operations.append(Put(keys.spec(name), records.encode(record)))
    if redefined:
        operations.append(Delete(keys.probe(name)))  # other code computes other bits
    if view.desired != "running":
        operations.append(desired)
        how = "changed" if redefined else "resumed"
    compares = [unchanged(view.spec.kv)]
    unfinished = view.state == "done" and record.steps > (view.head.value.step if view.head else 0)
    if view.status is not None and (view.state in ("failed", "cancelled") or unfinished):
        operations.append(restart(view))
        compares.append(unchanged(view.status.kv))
        how = "changed" if redefined else "restarted"
    if not operations:
        return how
    return how if kv.txn(compares, operations).succeeded else None


def out_of_reach(kv: KeyValueStore, name: str) -> str:
    """Why a job that nobody runs would wait even if all workers that there are were free: "" if it would not.

    Without any workers that is not known: those that are started may be of any kind.
    """
    job = read_job(kv, name)
    return "" if job is None or job.over or job.members else reasons.out_of_reach(job, read_workers(kv))


def restart(view: JobView, *, forgive: bool = False) -> Put:
    """The write that lets a failed, cancelled or lengthened job go on, with its purses refilled."""
    status = view.status.value if view.status else records.Status()
    if forgive:
        status = msgspec.structs.replace(status, quarantined={})
    fresh = msgspec.structs.replace(status, state="waiting", reason="", streak={}, streak_step=-1, failure=None)
    return Put(keys.status(view.name), records.encode(fresh))


def _refuse_changes(
    store: ObjectStore, view: JobView, spec: JobSpec, bundle: bundles.Bundle, accept_changes: bool
) -> bool:
    """Whether what defines the bits differs, and that was accepted."""
    assert view.spec is not None
    try:
        old = JobSpec.decode(get_blob(store, view.spec.value.spec))
    except NotFoundError as error:
        raise UserError(
            f"job {spec.name!r} is known at the key-value store, but not in the object store {store.address}",
            "name the object store that it was submitted with (--store), or use another name (--name)",
        ) from error
    differences = old.differences(spec)
    if not differences:
        return False
    frozen = sorted(differences.keys() & FROZEN)
    if frozen:
        shown = "; ".join(f"{name} was {differences[name][0]!r}, is {differences[name][1]!r}" for name in frozen)
        raise ChangedError(
            f"job {spec.name!r} exists with other settings that can never change: {shown}",
            "submit it under another name (--name)",
        )
    if accept_changes:
        log.warning("submit.changes_accepted", job=spec.name, fields=sorted(differences))
        return True
    told = {"code", "inputs"}
    lines = [f"{name} was {was!r}, is {now!r}" for name, (was, now) in differences.items() if name not in told]
    if "inputs" in differences:
        lines += _other_inputs(*differences["inputs"])
    if "code" in differences:
        lines.append("the code has changed:")
        lines += [f"  {line}" for line in bundles.difference(get_blob(store, view.spec.value.code), bundle.data)]
    if "data" in differences:
        lines.append("the dataset has changed (its length, type or some of its items)")
    hint = "go on with the changes from its newest commit with --accept-changes, or use another name (--name)"
    if spec.pipeline and view.state == "done":
        hint = (
            "keep what it came to with --accept-changes; to have it computed anew, first: "
            f"easyscale rewind {spec.name} --to 0"
        )
    raise ChangedError(
        f"job {spec.name!r} has been submitted before and differs now:\n    " + "\n    ".join(lines), hint
    )


def _other_inputs(were: dict[str, Input], are: dict[str, Input]) -> list[str]:
    """What an earlier stage came to, where that is not what it was."""
    names = [name for name in {**were, **are} if were.get(name) != are.get(name)]
    return [f"input {name} was {were.get(name, 'none')}, is {are.get(name, 'none')}" for name in names]


def desire(kv: KeyValueStore, name: str, what: Wish, *, forgive: bool = False) -> Summary:
    """Say what is wanted of a job; restarts it if it failed or was cancelled and is wanted running.

    Args:
        kv, name, what: which job, and what is wanted.
        forgive: let devices out of its quarantine.

    Raises:
        UserError: there is no such job, or it is over.
    """
    for _ in range(ATTEMPTS):
        view = read_job(kv, name)
        if view is None:
            raise no_such_job(kv, name)
        if view.state == "done" or (view.over and what != "running"):
            raise UserError(f"job {name!r} is {view.state}", "there is nothing left to " + _verb(what))
        operations: list[Put | Delete] = [Put(keys.desired(name), what.encode())]
        if view.over:
            operations.append(restart(view, forgive=forgive))
        elif forgive and view.status and view.status.value.quarantined:
            forgiven = msgspec.structs.replace(view.status.value, quarantined={})
            operations.append(Put(keys.status(name), records.encode(forgiven)))
        compares = [unchanged(view.status.kv)] if view.status else [absent(keys.status(name))]
        if kv.txn(compares, operations).succeeded:
            return summarize(view)
    raise UnavailableError(f"job {name!r} keeps changing at {kv.address}; try again")


def _verb(what: str) -> str:
    return {"running": "resume or retry", "paused": "pause", "cancelled": "cancel"}[what]
