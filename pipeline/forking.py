"""`fork` and `rewind`: another job that begins with a commit of this one, and a job that goes back to one of its own.

Both are one transaction. What must be in the object store is there before it, so whatever dies on the way leaves the
job as it was, or as it shall be.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..coordinator import keys, past, records
from ..coordinator.kv import Delete, Put, absent, unchanged
from ..errors import CorruptError, UnavailableError, UserError
from ..storage import commits
from ..storage.blobs import get_blob, put_blob
from ..storage.digest import state_digest
from ..storage.manifests import encode_manifest
from ..storage.signatures import signer, trusted
from .commit_checks import markers
from .hyperparameters import with_changes
from .job import SETTINGS, parse_settings
from .names import refuse_pipeline
from .points import Point, find, refresh, require_there
from .spec import FROZEN, NAME_PATTERN, JobSpec, check
from .submit import ATTEMPTS, keep_submitted, record_of
from .summary import read_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..coordinator.kv import Compare, KeyValueStore
    from ..coordinator.views import JobView
    from ..storage.manifests import Manifest
    from ..storage.objects import ObjectStore


class Forked(NamedTuple):
    """A new job: its name, the commit that it began with, and the step at which it will be done."""

    job: str
    step: int
    steps: int
    manifest: str
    state_digest: str


def fork(
    kv: KeyValueStore, store: ObjectStore, job: JobView, step: int | None, name: str, changes: Mapping[str, str]
) -> Forked:
    """Make a job that begins with a commit of another one. All packs are shared.

    Args:
        job: has a head. step: of the commit; None: the head's.
        name: of the new job.
        changes: settings of the job, or hyper-parameters of its optimizer (see `hyperparameters.py`), as text.

    Raises:
        UserError: it cannot be done like this.
        CorruptError, NotFoundError: the commit is damaged.
        UnavailableError: a store failed; there is no new job, or a whole one.
    """
    by = signer()
    settings = {key: text for key, text in changes.items() if key in SETTINGS}
    _refuse_name(kv, name)
    point = find(store, job, step)
    step = point.manifest.step
    spec = _spec(store, job, name, settings)
    if spec.kind == "function":
        raise UserError(
            f"job {job.name!r} is one call of a function: there is nothing to go on with from its result",
            "run its pipeline under another name (easyscale run SCRIPT --name ...)",
        )
    if step >= spec.total_steps:
        raise UserError(
            f"job {job.name!r} is done after {spec.total_steps} steps, and its commit of step {step} is its end",
            f"let the fork go further (--set steps={2 * step}), or begin with an earlier commit",
        )
    skeleton = with_changes(
        point.manifest.skeleton, {key: text for key, text in changes.items() if key not in settings}
    )
    refresh(store, point)
    code = put_blob(store, get_blob(store, job.record.code))
    described = put_blob(store, spec.encode())
    if by is not None:  # the code has the signature of whoever has submitted it
        by.sign_like(store, described, job.record.spec, trusted())
    manifest = msgspec.structs.replace(
        point.manifest,
        job=name,
        parent=point.digest,
        spec=described,
        code=code,
        generation=0,
        state_digest=state_digest(skeleton, {entry.name: entry.digest for entry in point.manifest.tensors}),
        history=None,
        created=time.time(),
        skeleton=skeleton,
    )
    _clear_leftover(store, name, manifest)
    digest = put_blob(store, encode_manifest(manifest))
    commits.mark(store, manifest, digest)
    require_there(store, point)
    record = msgspec.structs.replace(record_of(spec, manifest.spec, code), forked=f"{job.name}@{step}")
    created = kv.txn(
        (absent(keys.spec(name)),),
        (
            Put(keys.spec(name), records.encode(record)),
            Put(keys.desired(name), b"running"),
            Put(keys.head(name), records.encode(head_of(digest, manifest))),
        ),
    )
    if not created.succeeded:
        raise _taken(name)
    keep_submitted(store, record)
    return Forked(name, step, spec.total_steps, digest, manifest.state_digest)


def rewind(kv: KeyValueStore, store: ObjectStore, name: str, step: int) -> JobView:
    """Let a job go back to one of its commits; what came after it is given up. The job is paused afterwards.

    A generation that runs is fenced off in the same transaction, and runners that hold later states end. Repeating it
    is harmless, and finishes what was left undone.

    Args:
        step: of the commit; 0: the beginning.

    Returns:
        The job as it was before.

    Raises:
        UserError, CorruptError, NotFoundError, UnavailableError: as `fork` does.
    """
    for _ in range(ATTEMPTS):
        job = read_job(kv, name)
        if job is None or job.head is None:
            raise UserError(
                f"job {name!r} has no commit that it could go back to", "look what there is: easyscale jobs"
            )
        point = None if step == 0 else find(store, job, step)
        if point is None and job.record.forked:
            raise UserError(
                f"job {name!r} began with commit {job.record.forked}, and cannot go back before that",
                f"the earliest is --to {job.record.forked.rpartition('@')[2]}",
            )
        if point is not None:
            refresh(store, point)
            require_there(store, point)
        if kv.txn(*_going_back(job, point)).succeeded:
            break
    else:
        raise UnavailableError(f"job {name!r} keeps changing at {kv.address}; try again")
    for later in reversed([known for known in markers(store, name) if known > step]):
        store.delete(commits.marker_key(name, later))
    return job


def head_of(digest: str, manifest: Manifest) -> records.Head:
    """What the key-value store says of a commit that is the head: JSON has no NaN, so such a metric is left out."""
    return records.Head(
        step=manifest.step,
        manifest=digest,
        state_digest=manifest.state_digest,
        generation=manifest.generation,
        metrics={name: value for name, value in manifest.metrics.items() if not isinstance(value, str)},
    )


def _going_back(job: JobView, point: Point | None) -> tuple[list[Compare], list[Put | Delete]]:
    assert job.spec is not None
    assert job.head is not None
    name, status = job.name, job.status.value if job.status else records.Status()
    to = point.manifest.step if point is not None else 0
    compares = [unchanged(job.spec.kv), unchanged(job.head.kv)]
    compares.append(unchanged(job.plan.kv) if job.plan else absent(keys.plan(name)))
    compares.append(unchanged(job.status.kv) if job.status else absent(keys.status(name)))
    record = msgspec.structs.replace(job.spec.value, rewound=job.spec.value.rewound + 1)
    plan = records.Plan(generation=job.generation + 1, members=(), cause=f"rewound to step {to}")
    fresh = msgspec.structs.replace(
        status, state="paused", reason=f"rewound to step {to}", waits_for="", streak={}, streak_step=-1, failure=None,
        loss=None,
    )  # fmt: skip
    operations: list[Put | Delete] = [
        Put(keys.spec(name), records.encode(record)),
        Put(keys.plan(name), records.encode(plan)),
        Put(keys.status(name), records.encode(fresh)),
        Put(keys.desired(name), b"paused"),
        Delete(keys.damage(name)),
        Delete(keys.progress(name)),
        *past.ended(job, {}),
    ]
    if point is None:
        operations.append(Delete(keys.head(name)))
    else:
        operations.append(Put(keys.head(name), records.encode(head_of(*point))))
    return compares, operations


def _spec(store: ObjectStore, job: JobView, name: str, settings: Mapping[str, str]) -> JobSpec:
    """The new job's specification: that of the job as it was last submitted, with other settings."""
    for key in settings:
        if key in FROZEN:
            raise UserError(f"--set {key}: a fork goes on with the steps of its job, and {key} defines what a step is")
    old = JobSpec.decode(get_blob(store, job.record.spec))
    values = parse_settings(settings)
    dropped = {"steps": "epochs", "epochs": "steps"}
    values |= {dropped[key]: None for key in settings if key in dropped and dropped[key] not in settings}
    return check(msgspec.structs.replace(old, name=name, pipeline="", **values))


def _refuse_name(kv: KeyValueStore, name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise UserError(
            f"job name {name!r} cannot be used",
            "use 1 to 100 letters, digits, dots, underscores or hyphens (ASCII), beginning with a letter or digit",
        )
    refuse_pipeline(kv, name)
    if read_job(kv, name) is not None:
        raise _taken(name)


def _taken(name: str) -> UserError:
    return UserError(f"there is a job {name!r} already", "give the fork another name (--name)")


def _clear_leftover(store: ObjectStore, name: str, manifest: Manifest) -> None:
    """Remove the marker of a fork that died before there was a job; refuse any other history of that name."""
    known = markers(store, name)
    if not known:
        return
    try:
        marker = commits.read_marker(store, name, manifest.step)
    except CorruptError:
        marker = None
    if known != [manifest.step] or marker is None or marker.parent != manifest.parent:
        raise UserError(
            f"the object store {store.address} has commits of a job {name!r} that this key-value store does not know",
            "give the fork another name (--name)",
        )
    store.delete(commits.marker_key(name, manifest.step))
