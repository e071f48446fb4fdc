"""Garbage collection as the command asks for it: what the key-value store knows of jobs, and what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from ..coordinator import keys, views
from ..errors import CorruptError, DeviceError, EasyScaleError, NotFoundError, UserError
from ..storage.blobs import blob_key, get_blob
from ..storage.collection import SAFE_AGE
from ..storage.manifests import read_manifest
from ..storage.references import Known
from .spec import JobSpec

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")


def known_jobs(kv: KeyValueStore, store: ObjectStore) -> list[Known]:
    """What garbage collection must know of all jobs.

    Args:
        kv: where their records are. store: where their specifications are, which say what stages start from.

    Raises:
        EasyScaleError: a record cannot be read, so that it is not known what its job needs.
        UnavailableError: the key-value store does not answer.
    """
    view = views.parse(kv.range(keys.JOBS))
    if view.damaged:
        raise EasyScaleError(
            f"{kv.address}: what jobs need cannot be told, since a record is damaged: {view.damaged[0]}\n"
            "  mend or remove that key first"
        )
    found = []
    for job in view.jobs.values():
        heads = [job.head.value.manifest] if job.head is not None else []
        heads += [job.base[1]] if job.damaged and job.base[1] is not None else []
        blobs = (job.spec.value.spec, job.spec.value.code) if job.spec is not None else ()
        inputs = _inputs(store, job) if job.spec is not None else ()
        found.append(Known(job.name, tuple(heads), blobs, job.generation, job.over, inputs))
    return found


def _inputs(store: ObjectStore, job: JobView) -> tuple[tuple[str, int], ...]:
    """The commits that a stage of a pipeline, or a fork of one, starts from: now, and when it came to its head.

    Without its specification it could neither be run nor verified: then it needs none.
    """
    if not (job.record.pipeline or job.record.forked):
        return ()
    specs = {job.record.spec}
    found: set[tuple[str, int]] = set()
    if job.head is not None:
        with suppress(NotFoundError, CorruptError):
            specs.add(read_manifest(store, job.head.value.manifest).spec)
    for digest in specs:
        with suppress(NotFoundError, CorruptError, DeviceError):
            found |= {(one.job, one.step) for one in JobSpec.decode(get_blob(store, digest)).inputs.values()}
    return tuple(sorted(found))


def require_jobs(kv: KeyValueStore, known: list[Known], names: list[str]) -> None:
    """Refuse names of jobs that there are not.

    Raises:
        UserError: names the first.
    """
    from .summary import no_such_job

    for name in names:
        if name not in {one.job for one in known}:
            raise no_such_job(kv, name)


def require_same_store(store: ObjectStore, known: list[Known]) -> None:
    """Refuse an object store that has the newest commit of no job at all: it is another one than the jobs'.

    Raises:
        UserError: it is.
    """
    heads = [head for one in known for head in one.heads]
    if heads and not any(store.exists(blob_key(head)) for head in heads):
        raise UserError(
            f"no commit of the {len(known)} job(s) known at the key-value store is in the object store {store.address}",
            "name the object store that they were submitted with (--store)",
        )


def seconds_of(text: str, option: str) -> float:
    """A duration as the command line has it: `90`, `30m`, `6h`, `2d`.

    Raises:
        UserError: it is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UserError(f"{option} {text!r} is no duration", "write a number and s, m, h or d: 30m, 6h, 2d")
    return float(match[1]) * _UNITS[match[2]]


def require_age(kv: KeyValueStore, seconds: float) -> None:
    """Refuse a minimum age that is too short while anybody may be writing a commit.

    Raises:
        UserError: workers are there.
    """
    workers = views.parse(kv.range(keys.WORKERS)).workers
    if seconds < SAFE_AGE and workers:
        raise UserError(
            f"--min-age {seconds:g}s is less than the {SAFE_AGE / 3600:g} hours that a commit under way may need, and "
            f"{len(workers)} worker(s) are here",
            "wait longer, or stop all workers that use this object store first",
        )
