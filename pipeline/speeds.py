"""What workers do and how fast, as people and scripts see it, from the records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ..coordinator import arrangement, keys, probes, room, throughput, views
from ..coordinator.split import UNLIMITED, Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..coordinator import records
    from ..coordinator.kv import KeyValueStore

NEWCOMER = "one more"
"""Stands for a worker that is not there."""

Workers = dict[str, "records.WorkerRecord"]


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, which is one device.

    Args:
        state: see `records.WorkerRecord`, or `leaving` or `away`. job: what it serves; None: nothing.
        first, last: its ESTs, `first <= est < last`; equal where it has none.
        ests_per_second: while it computes, for that job: as it is planned with, else by its last step.
        samples_per_second: its part of what the job does. remark: what sets it apart.
    """

    name: str
    id: str
    host: str
    device: str
    kind: str
    state: str
    job: str | None
    first: int
    last: int
    ests_per_second: float
    samples_per_second: float
    remark: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def read_workers(kv: KeyValueStore) -> Workers:
    """The workers that there are."""
    return {worker: entry.value for worker, entry in views.parse(kv.range(keys.WORKERS)).workers.items()}


def rows(view: views.View) -> list[WorkerRow]:
    """All workers, by name."""
    workers = {worker: entry.value for worker, entry in view.workers.items()}
    return [_row(workers[w], view, workers) for w in sorted(workers, key=lambda w: (workers[w].name, w))]


def _row(record: records.WorkerRecord, view: views.View, workers: Workers) -> WorkerRow:
    job = view.jobs.get(record.job or "")
    slot = job.slot_of(record.id) if job else None
    member = job.members[slot] if job and slot is not None else None
    mine = member.last - member.first if member else 0
    progress = record.progress if member and record.state == "running" else None
    pace = _paces(job, [record.id], workers).get(record.id) if job else None
    ests = 1 / pace.est if pace and mine else 0.0
    if not ests and progress and progress.compute_seconds:
        ests = mine / progress.compute_seconds
    part = mine / job.spec.value.ests if job and job.spec else 0.0
    return WorkerRow(
        name=record.name,
        id=record.id,
        host=record.host,
        device=record.device,
        kind=record.kind,
        state="leaving" if record.leaving else "away" if record.away else record.state,
        job=record.job,
        first=member.first if member else 0,
        last=member.last if member else 0,
        ests_per_second=round(ests, 3),
        samples_per_second=round(part * progress.samples_per_second, 2) if progress else 0.0,
        remark=_remark(record, job, pace),
    )


def _paces(job: views.JobView | None, ids: list[str], workers: Workers) -> dict[str, Pace]:
    here = [worker for worker in ids if worker in workers]
    return (arrangement.paces_of(throughput.known(job), here, workers, job.name) if job else None) or {}


def _remark(record: records.WorkerRecord, job: views.JobView | None, pace: Pace | None) -> str:
    parts = [straggling(factor)] if job and (factor := _factors(job).get(record.id)) else []
    if record.away:
        parts.append(record.away)
    if job and job.spec and pace and pace.most < job.spec.value.ests:
        parts.append(f"room for {_ests(pace.most)}")
    if record.only and record.only != record.job:
        parts.append(f"serves {record.only} only")
    if job and record.job == job.name and record.state == "ready" and job.slot_of(record.id) is None:
        parts.append("waits to be needed")
    return "; ".join([*parts, record.trouble] if record.trouble else parts)


def _ests(count: int) -> str:
    return f"{count} EST" if count == 1 else f"{count} ESTs"


def straggling(factor: float) -> str:
    """What a factor means."""
    return f"{factor:.1f}x as slow as its kind" if factor > 1 else f"{1 / factor:.1f}x as fast as its kind"


def _factors(job: views.JobView) -> Mapping[str, float]:
    rates = throughput.known(job)
    return rates.factors if rates else {}


def lines(job: views.JobView, workers: Workers) -> list[tuple[str, str]]:
    """How fast a job's devices are, and why its members have the ranges they have."""
    rates, expected = throughput.known(job), _expected(job, workers)
    found = []
    for kind, rate in expected.kinds.items() if expected else ():
        besides = f"and {_ms(rate.fixed)} a step besides" if rates and kind in rates.kinds else "by a probe"
        found.append(("rate", f"{kind}: {1 / rate.est:.4g} ESTs/s, {besides}"))
    for key, seconds in sorted(rates.exchange.items()) if rates else ():
        lane, size = throughput.exchange_of(key)
        found.append(("rate", f"exchange of {size} ({lane}): {_ms(seconds)}"))
    factors = expected.factors if expected else {}
    found += [("rate", f"{worker} is {straggling(factor)}") for worker, factor in factors.items()]
    paces = _paces(job, [member.worker for member in job.members], workers)
    for worker, pace in paces.items():
        if job.spec and pace.most < job.spec.value.ests:
            found.append(("room", f"{worker} has room for {_ests(pace.most)} in {room.shown(workers[worker].memory)}"))
    if job.members:
        shown = ", ".join(f"{m.worker} {m.first}..{m.last - 1}" for m in job.members[:20])
        more = f" and {len(job.members) - 20} more" if len(job.members) > 20 else ""
        found.append(("ranges", f"{shown}{more}: {_why(job, workers)}"))
    return found + [("gain", text) for text in _gains(job, workers)]


def _expected(job: views.JobView, workers: Workers) -> records.Rates | None:
    """By what its members have ranges: what is known of their speed, or what their probes say."""
    return probes.expected(job, [member.worker for member in job.members if member.worker in workers], workers)


def _gains(job: views.JobView, workers: Workers) -> list[str]:
    """What one more device of each kind would bring."""
    rates, model = throughput.known(job), _model(job, workers)
    if rates is None or model is None:
        return []
    found, now = [], model.seconds(job.members)
    for kind, rate in rates.kinds.items():
        like = [record.memory for record in workers.values() if throughput.kind_of(record) == kind]
        most = room.room(rate, max(like)) if like else UNLIMITED
        if not most:
            found.append(f"one more {kind} has no memory for an EST")
            continue
        larger = replace(model, paces={**model.paces, NEWCOMER: Pace(rate.est, rate.fixed, most)})
        then = larger.grow([member.worker for member in job.members], [NEWCOMER])
        if NEWCOMER in then.workers:
            found.append(f"with one more {kind}, a step should take {_ms(then.seconds)} instead of {_ms(now)}")
        else:
            found.append(f"with one more {kind}, a step would not be faster")
    return found


def _model(job: views.JobView, workers: Workers) -> arrangement.Model | None:
    """What a step of the job takes on its members; None if it has none, or their speed is not known."""
    rates, mine = _expected(job, workers), [member.worker for member in job.members]
    here = [worker for worker in mine if worker in workers]
    paces = arrangement.paces_of(rates, here, workers, job.name) or {}
    if rates is None or not mine or len(paces) < len(mine) or job.plan is None or job.spec is None:
        return None
    for member in job.members:  # it runs them
        pace = paces[member.worker]
        paces[member.worker] = pace._replace(most=max(pace.most, member.last - member.first))
    lane = job.plan.value.lane
    return arrangement.Model(job.spec.value.ests, 1, paces, rates.exchange, lambda _: lane, {})


def _why(job: views.JobView, workers: Workers) -> str:
    model, members = _model(job, workers), job.members
    if model is None:
        return "even, as long as speeds are not known"
    if len(members) == 1:
        return "it is alone"
    even = -(-model.ests // len(members))
    now = model.seconds(members)
    if any(pace.most < even for pace in model.paces.values()):
        return f"by speed, as far as memory allows; a step should take {_ms(now)}"
    slowest = max(pace.seconds(even) for pace in model.paces.values())
    others = slowest + now - max(model.paces[m.worker].seconds(m.last - m.first) for m in members)
    if others <= now * (1 + arrangement.EQUAL):
        return f"even, since these are about as fast; a step should take {_ms(now)}"
    known = throughput.known(job)
    told = known is not None and all(throughput.kind_of(workers[m.worker]) in known.kinds for m in members)
    return f"by speed{'' if told else ', as probes say'}; a step should take {_ms(now)}, with even ones {_ms(others)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"
