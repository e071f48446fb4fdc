"""Devices that were found to hold or to compute wrong bits: who has found one keeps away from it. Pure.

A job remembers them in its status, with the evidence, until somebody says `retry`. A device is a host's GPU; where the
device is the CPU, it is a worker by name, since several share that and one of them need not speak for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from . import records

if TYPE_CHECKING:
    from .attempts import Ended
    from .views import JobView

KEPT, MAX_EVIDENCE = 32, 1000
"""Devices that a job remembers, the newest; and bytes of evidence for each. A status is a small value."""


def device_of(record: records.WorkerRecord) -> str:
    """What is put in quarantine when a worker computes wrong bits."""
    device = f"{record.host} {record.device}"
    return f"{device} (worker {record.name})" if record.device == "cpu" else device


def charge(job: JobView, status: records.Status, ended: Ended) -> records.Status:
    """Remember the devices of attempts that ended because of wrong bits."""
    found = dict(status.quarantined)
    for worker, cause in ended.causes.items():
        report = job.reports[worker].value if worker in job.reports else None
        if cause == "corrupt" and report is not None and report.device:
            found[report.device] = records.cut(report.message, MAX_EVIDENCE)
    if found == status.quarantined:
        return status
    return replace(status, quarantined=dict(list(found.items())[-KEPT:]))


def reason(record: records.WorkerRecord, job: JobView) -> str:
    """Why a job keeps away from a worker; empty if it does not."""
    report = job.reports.get(record.id)
    if report is not None and report.value.cause == "corrupt":
        return report.value.message  # about to be counted
    return job.status.value.quarantined.get(device_of(record), "") if job.status else ""
