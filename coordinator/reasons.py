"""What decisions say to people: why a job waits, why its membership changed, why it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lanes
from .quarantine import device_of
from .room import shown
from .willing import unwilling

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from . import records
    from .attempts import Alive
    from .membership import Losses
    from .split import Pace
    from .views import JobView

VANISHED = "the worker vanished (its lease ended)"
VANISHED_PREPARING = f"{VANISHED} while it got ready: it imported the code, built the model or was tested"


def short(text: str, length: int) -> str:
    """Cut what goes into a value: with a thousand workers it would outgrow the store's limit."""
    return text if len(text) <= length else text[: length - 4] + " ..."


def lost_by(losses: Losses) -> str:
    """What has happened to a generation."""
    parts = [f"{worker} {cause}" for worker, cause in sorted(losses.ended.items())]
    parts += [f"{worker} lost by {short(', '.join(by), 100)}" for worker, by in sorted(losses.accused.items())]
    return "; ".join(parts) or f"the exchange between peers broke: {losses.broken}"


def cause_of_change(
    job: JobView, members: tuple[records.Member, ...], lane: records.LaneKind, losses: Losses, paces: Mapping[str, Pace]
) -> str:
    """Why a new generation is planned. `paces`: of all workers concerned, if it is for the sake of speed alone."""
    if losses.any:
        return short(lost_by(losses), 500)
    before, after = {m.worker for m in job.members}, {m.worker for m in members}
    parts = [f"{w} joins" for w in sorted(after - before)] + [f"{w} leaves" for w in sorted(before - after)]
    if not parts and job.plan is not None and job.plan.value.lane != lane:
        return "the members reach each other now"
    if paces:
        parts.append(speeds(paces) or "a step is faster so")
    return short("; ".join(parts), 500) or "agree anew: a commit is damaged"


def speeds(paces: Mapping[str, Pace]) -> str:
    """Why ranges are not even: "" if these workers are about equally fast."""
    fast, slow = min(paces, key=lambda w: paces[w].est), max(paces, key=lambda w: paces[w].est)
    times = paces[slow].est / paces[fast].est
    return f"{fast} is {times:.1f}x as fast as {slow}: ranges follow" if times >= 1.1 else ""


def spare(workers: Collection[str], alive: Alive) -> str:
    """That these serve nobody, though they could: "" if there are none."""
    names = sorted(alive[worker].name for worker in workers)
    return short(f"a step would not be faster with {', '.join(names)}", 500) if names else ""


def tight(workers: Collection[str], alive: Alive) -> str:
    """That these have no memory for a job that runs: "" if there are none."""
    names = ", ".join(f"{alive[worker].name} ({shown(alive[worker].memory)})" for worker in sorted(workers))
    return short(f"no memory for an EST has {names}", 500) if names else ""


def failed_because(failure: records.Failure, status: records.Status) -> str:
    """What `show` says of a failed job."""
    if failure.cause == "diverged":
        return f"step {failure.step} was computed twice with different results: {failure.message}"
    if failure.cause in ("nonfinite", "inexact"):
        return failure.message
    if failure.cause == "raised":
        return f"the user's code raised at step {failure.step}: {failure.message}"
    times = status.streak.get("died", 0)
    return f"step {failure.step} ended {times} attempts without progress; it is quarantined. Last: {failure.message}"


def trouble_of(
    members: tuple[records.Member, ...],
    alive: dict[str, records.WorkerRecord],
    left_out: str,
    quarantined: dict[str, str],
) -> str:
    """What a job that runs is in trouble with, "" if nothing. `left_out`: why some that are ready do not serve it."""
    here = [alive[member.worker] for member in members if member.worker in alive]
    troubles = [f"{record.name}: {record.trouble}" for record in here if record.trouble]
    kept = [(r.name, why) for r in alive.values() if (why := quarantined.get(device_of(r)))]
    troubles += [f"{name} is in quarantine: {why}" for name, why in sorted(kept)]
    return short("; ".join([*troubles, left_out] if left_out else troubles), 2000)


def waiting_for(
    job: JobView,
    allotted: list[str],
    alive: dict[str, records.WorkerRecord],
    left_out: str,
    quarantined: dict[str, str],
    policy: str = "",
    memory: str = "",
) -> tuple[records.WaitsFor, str]:
    """What a job without members waits for.

    Args:
        policy: who deals out workers; "": evenly. memory: why that of these workers is too small; "": it is not.
    """
    spec = job.record
    here = [alive[w] for w in allotted if w in alive]
    refused = [f"{r.name}: {r.refusals[spec.spec]}" for r in alive.values() if spec.spec in r.refusals]
    kept = [f"{r.name}: {why}" for r in alive.values() if (why := quarantined.get(device_of(r)))]
    if memory:
        return "more", short(memory, 2000)
    if left_out:
        return "more", f"workers that can serve it together are fewer than {spec.min_workers}: {left_out}"
    if here:
        doing = ", ".join(f"{r.name} is {r.state}" for r in here)
        return "ready", short(f"workers are getting ready ({doing})", 500)
    if (refused or kept) and len(refused) + len(kept) >= len(alive):
        how = "every worker refused this job" if not kept else "every worker refused this job or is in quarantine"
        return "willing", short(f"{how}: " + "; ".join(sorted(refused + kept)), 4000)
    if not alive:
        return "workers", "no worker is alive"
    away = sorted(f"{r.name}: {r.away}" for r in alive.values() if r.away and not r.leaving)
    staying = [r for r in alive.values() if not r.leaving and not r.away]
    if not staying:
        owned = f", or their devices are their owners' ({'; '.join(away)})" if away else ""
        return "more", short(f"the {len(alive)} worker(s) here are leaving{owned}", 500)
    others = [f"{r.name}: {why}" for r in staying if (why := unwilling(r, job))]
    able = len(staying) - len(others)
    if able < spec.min_workers:
        lacking = f"needs {spec.min_workers} worker(s), and {able} of the {len(staying)} here would serve it"
        return "more", short("; ".join([lacking, *sorted(others)]), 4000)
    if policy:
        return "more", f"it is not its turn: by policy {policy}, the {able} worker(s) here serve other jobs first"
    return "more", f"needs {spec.min_workers} free worker(s); the {able} here serve other jobs"


def out_of_reach(job: JobView, alive: Alive) -> str:
    """Why the workers that are here could not run a job even if all of them were free: "" if they could, or if there
    are none."""
    staying = {worker: alive[worker] for worker in sorted(alive) if not alive[worker].leaving}
    able = [worker for worker, record in staying.items() if not unwilling(record, job)]
    fit, apart = lanes.fitting(able, staying, ())
    if not staying or len(fit) >= job.record.min_workers:
        return ""
    kept = job.status.value.quarantined if job.status else {}
    return waiting_for(job, [], staying, apart if len(able) >= job.record.min_workers else "", kept)[1]
