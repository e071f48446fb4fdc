"""Names are unique in a cluster, among jobs, stages and pipelines: what takes one, and what is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from ..coordinator import keys, records
from ..coordinator.kv import Put, absent
from ..errors import UserError
from .summary import read_job

if TYPE_CHECKING:
    from ..coordinator.kv import KeyValueStore
    from ..coordinator.views import JobView
    from .spec import JobSpec


def place_pipeline(kv: KeyValueStore, record: records.PipelineRecord) -> None:
    """Write down what a pipeline consists of, so that people see stages that are no jobs yet.

    Raises:
        UserError: there is a job of this name.
        UnavailableError: the key-value store does not answer.
    """
    entry = kv.get(keys.pipeline(record.name))
    if entry is not None:
        there = records.decode(entry.value, records.PipelineRecord, entry.key)
        if there == msgspec.structs.replace(record, submitted=there.submitted):
            return
    record = msgspec.structs.replace(record, submitted=time.time())
    put = Put(keys.pipeline(record.name), records.encode(record))
    if not kv.txn((absent(keys.spec(record.name)),), (put,)).succeeded:
        raise UserError(f"there is a job {record.name!r} already", "give the pipeline another name (--name)")


def refuse_pipeline(kv: KeyValueStore, name: str) -> None:
    """Refuse a job the name of a pipeline.

    Raises:
        UserError: there is one.
    """
    if kv.get(keys.pipeline(name)) is not None:
        raise UserError(f"there is a pipeline {name!r} already", "give the job another name (--name)")


def look_for(kv: KeyValueStore, spec: JobSpec) -> JobView | None:
    """The job that is there, if it may be this one.

    Raises:
        UserError: the name is taken by something else.
    """
    refuse_pipeline(kv, spec.name)
    view = read_job(kv, spec.name)
    if view is not None and view.record.pipeline != spec.pipeline:
        kinds = [
            f"a stage of pipeline {name!r}" if name else "of no pipeline"
            for name in (view.record.pipeline, spec.pipeline)
        ]
        raise UserError(
            f"there is a job {spec.name!r} already, {kinds[0]}, and this one is {kinds[1]}", "rename it (--name)"
        )
    return view
