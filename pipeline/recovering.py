"""`recover`: the records of jobs made anew from the object store, when the key-value store was lost.

A job is its newest commit: the manifest names specification and code, and what a job was last submitted with lies
beside it. What only the key-value store knew is lost: whether a job was paused, had failed or was cancelled, its
attempts, and what had not been committed. So a job that is not done is paused. Records that are there are left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from ..coordinator import keys, records
from ..coordinator.kv import Delete, Put, absent, unchanged
from ..errors import CorruptError, DeviceError, NotFoundError, UserError
from ..storage import commits
from ..storage.blobs import get_blob
from ..storage.manifests import Manifest, read_manifest
from ..storage.submitted import submitted_key
from .forking import head_of
from .spec import JobSpec
from .submit import record_of
from .summary import read_job

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..coordinator.kv import Compare, KeyValueStore
    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore

_KEY = re.compile(r"jobs/([^/]+)/(?:(commits)/([0-9]{12})|(submitted)|lane/([0-9]+)/.+|logs/([^/]+)/([0-9]+))")

REASON = "recovered from the object store"


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job.

    Args:
        how: `recovered`: it has records again; `advanced`: its head has; `known`: they were there; `older`: they were,
            with a head that is older than the newest commit; `lost`: it cannot be recovered.
        step: of its newest commit in the object store. state: as it is recorded now. why: for people.
    """

    job: str
    how: Literal["recovered", "advanced", "known", "older", "lost"]
    step: int = 0
    state: str = ""
    why: str = ""


@dataclass(slots=True)
class Remains:
    """What the object store has of a job."""

    steps: list[int] = field(default_factory=list)
    submitted: bool = False
    generation: int = 0
    logs: dict[str, int] = field(default_factory=dict)


def look(store: ObjectStore) -> dict[str, Remains]:
    """What there is of all jobs, as far as a listing knows. Nothing is read."""
    found: dict[str, Remains] = {}
    for key in store.list("jobs/"):
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        remains = found.setdefault(match[1], Remains())
        if match[2]:
            remains.steps.append(int(match[3]))
        elif match[4]:
            remains.submitted = True
        elif match[5]:
            remains.generation = max(remains.generation, int(match[5]))
        else:
            remains.logs[match[6]] = max(remains.logs.get(match[6], 0), int(match[7]) + 1)
    for remains in found.values():
        remains.steps.sort()
    return {job: remains for job, remains in found.items() if remains.steps or remains.submitted}


def recover(
    kv: KeyValueStore, store: ObjectStore, only: Collection[str] = (), *, advance: bool = False
) -> list[Recovered]:
    """Make the records of all jobs that have none. Repeating it changes nothing.

    Args:
        only: these jobs; empty: all.
        advance: where records are there, but older than the newest commit (they come from a backup), move the head of a
            job that nobody runs to that commit, and pause it.

    Raises:
        UserError: the object store has no such job.
        UnavailableError: a store does not answer; what was made is whole.
    """
    found = look(store)
    for name in only:
        if name not in found:
            raise UserError(
                f"the object store {store.address} has nothing of a job {name!r}",
                f"it has: {', '.join(sorted(found)) or 'no jobs at all; name another one with --store'}",
            )
    return [_one(kv, store, name, found[name], advance) for name in sorted(only or found)]


def _one(kv: KeyValueStore, store: ObjectStore, name: str, remains: Remains, advance: bool) -> Recovered:
    newest = remains.steps[-1] if remains.steps else 0
    try:
        job = read_job(kv, name)
        if job is None:
            return _anew(kv, store, name, remains)
        step = job.head.value.step if job.head is not None else 0
        if newest <= step:
            return Recovered(job=name, how="known", step=newest, state=job.state)
        why = f"the records say commit {step}, the object store has {newest}"
        if job.claims:
            return Recovered(job=name, how="known", step=newest, state=job.state, why=f"{why}; it is being run")
        if not advance:
            return Recovered(job=name, how="older", step=newest, state=job.state, why=f"{why}; --advance goes there")
        return _advanced(kv, store, job, remains)
    except (CorruptError, NotFoundError, DeviceError) as error:  # the last: another version wrote the specification
        return Recovered(job=name, how="lost", step=newest, why=str(error))


def _anew(kv: KeyValueStore, store: ObjectStore, name: str, remains: Remains) -> Recovered:
    point = _newest(store, name, remains.steps)
    record = _record(store, name, remains, point[1] if point else None)
    done = point is not None and point[1].step >= record.steps
    state: records.JobState = "done" if done else "paused"
    operations: list[Put | Delete] = [
        Put(keys.spec(name), records.encode(record)),
        Put(keys.desired(name), b"running" if done else b"paused"),
        Put(keys.status(name), records.encode(records.Status(state=state, reason="" if done else REASON))),
        *_with_head(name, remains, point, 0),
    ]
    logs = [
        Put(keys.logs(name, worker), records.encode(records.LogRecord(chunks=chunks)))
        for worker, chunks in sorted(remains.logs.items())
    ]
    if not kv.txn((absent(keys.spec(name)),), operations).succeeded:
        return Recovered(job=name, how="known", step=point[1].step if point else 0, why="somebody else was faster")
    for write in logs:  # one by one, since there may be hundreds: a log that is not shown is no harm
        kv.txn((absent(write.key),), (write,))
    return Recovered(job=name, how="recovered", step=point[1].step if point else 0, state=state)


def _advanced(kv: KeyValueStore, store: ObjectStore, job: JobView, remains: Remains) -> Recovered:
    point = _newest(store, job.name, remains.steps)
    assert point is not None
    assert job.spec is not None
    compares: list[Compare] = [unchanged(job.spec.kv)]
    compares.append(unchanged(job.head.kv) if job.head else absent(keys.head(job.name)))
    compares.append(unchanged(job.plan.kv) if job.plan else absent(keys.plan(job.name)))
    compares.append(unchanged(job.status.kv) if job.status else absent(keys.status(job.name)))
    state: records.JobState = "done" if point[1].step >= job.record.steps else "paused"
    status = msgspec.structs.replace(
        job.status.value if job.status else records.Status(), state=state, reason=REASON, waits_for="", failure=None
    )
    operations: list[Put | Delete] = [
        Put(keys.desired(job.name), b"running" if state == "done" else b"paused"),
        Put(keys.status(job.name), records.encode(status)),
        Delete(keys.damage(job.name)),
        *_with_head(job.name, remains, point, job.generation),
    ]
    if not kv.txn(compares, operations).succeeded:
        return Recovered(job=job.name, how="known", step=point[1].step, why="it is changing just now: try again")
    return Recovered(job=job.name, how="advanced", step=point[1].step, state=state)


def _with_head(name: str, remains: Remains, point: tuple[str, Manifest] | None, least: int) -> list[Put | Delete]:
    """The head, and an empty plan: a generation has a number that no partials of earlier ones lie under."""
    generation = max(least, remains.generation, point[1].generation if point else 0) + 1
    plan = records.Plan(generation=generation, cause=REASON)
    operations: list[Put | Delete] = [Put(keys.plan(name), records.encode(plan))]
    if point is not None:
        operations.append(Put(keys.head(name), records.encode(head_of(*point))))
    return operations


def _newest(store: ObjectStore, name: str, steps: list[int]) -> tuple[str, Manifest] | None:
    """The newest commit whose manifest can be read; None: there is no commit at all.

    Raises:
        CorruptError, NotFoundError: there are some, and none can be read: says why of the newest.
    """
    first: CorruptError | NotFoundError | None = None
    for step in reversed(steps):
        try:
            marker = commits.read_marker(store, name, step)
            if marker is not None:
                return marker.manifest, read_manifest(store, marker.manifest)
        except (CorruptError, NotFoundError) as error:
            first = first or error
    if first is not None:
        raise first
    return None


def _record(store: ObjectStore, name: str, remains: Remains, newest: Manifest | None) -> records.JobRecord:
    """As it was last submitted; if that was not written down or cannot be read, as it was at its newest commit."""
    if remains.submitted:
        try:
            key = submitted_key(name)
            record = records.decode(store.get(key), records.JobRecord, key)
            JobSpec.decode(get_blob(store, record.spec))
            get_blob(store, record.code)
        except (CorruptError, NotFoundError):
            if newest is None:
                raise
        else:
            return record
    assert newest is not None, "whoever has no commit was submitted"
    spec = JobSpec.decode(get_blob(store, newest.spec))
    get_blob(store, newest.code)
    oldest = _oldest(store, name, remains.steps)
    forked = ""
    if oldest is not None and oldest.parent is not None:
        with_parent = read_manifest(store, oldest.parent)
        forked = f"{with_parent.job}@{oldest.step}" if with_parent.job != name else ""
    record = record_of(spec, newest.spec, newest.code)
    return msgspec.structs.replace(record, submitted=(oldest or newest).created, forked=forked)


def _oldest(store: ObjectStore, name: str, steps: list[int]) -> Manifest | None:
    marker = commits.read_marker(store, name, steps[0])
    return read_manifest(store, marker.manifest) if marker is not None else None
