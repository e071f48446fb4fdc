"""Making a runner's commit the head of its job, and saying that a head is damaged: the agent's side of commits. Pure.

A publish is one transaction conditional on the plan, on our claim's create revision and on the head being the parent,
so a holder whose generation or lease is over cannot publish, however late it wakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from ..coordinator import keys, records
from ..coordinator.kv import Compare, Put, absent, unchanged
from ..coordinator.transactions import Txn
from . import messages
from .actions import Action, Send, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..coordinator.views import Entry, JobView
    from .runner_state import RunnerState

log = structlog.get_logger()

KEPT_FOUND, MAX_FOUND = 20, 500
"""How many damaged objects are named, and bytes of each; a commit may have thousands, all of them are in the log."""


def base_of(job: JobView) -> messages.Base:
    """The commit to build on."""
    step, manifest = job.base
    return messages.Base(step=step, manifest=manifest, damaged=job.damaged)


def publish(runner: RunnerState, job: JobView, claim: Entry[records.Claim] | None, may_claim: bool) -> Iterator[Action]:
    """What to do about a commit that the runner wants published.

    Args:
        claim: this worker's claim in the current generation. may_claim: it will have one soon.
    """
    wanted = runner.publish
    if wanted is None:
        return
    base = base_of(job)
    itself_damaged = job.damaged and job.head is not None and job.head.value.manifest == wanted.manifest
    if base.step >= wanted.step:
        runner.publish = None
        yield Send(messages.Published(base=base))
    elif wanted.parent != base.manifest or itself_damaged:
        runner.publish = None
        yield Send(messages.Refused(step=wanted.step, reason="the head moved", moved=base))
    elif claim is not None:
        yield Write(_publication(wanted, job, claim, runner.progress))
    elif not may_claim:
        runner.publish = None
        reason = f"fenced: this worker has no claim in generation {job.generation}"
        log.warning("agent.publish_refused", job=job.name, step=wanted.step, reason=reason)
        yield Send(messages.Refused(step=wanted.step, reason=reason))


def _publication(
    wanted: messages.Publish, job: JobView, claim: Entry[records.Claim], progress: records.Progress | None
) -> Txn:
    assert job.plan is not None
    assert wanted.step > job.base[0], "the head only goes up"
    assert claim.kv.key.startswith(keys.generation_claims(job.name, job.generation)), "a claim of the plan's generation"
    head = records.Head(
        step=wanted.step,
        manifest=wanted.manifest,
        state_digest=wanted.state_digest,
        generation=job.generation,
        metrics=wanted.metrics,
    )
    compares = (
        unchanged(job.plan.kv),
        Compare(claim.kv.key, "create", claim.kv.create_revision),
        unchanged(job.head.kv) if job.head else absent(keys.head(job.name)),
    )
    operations = [Put(keys.head(job.name), records.encode(head))]
    if progress is not None:  # so that what is shown of a finished job is its last step
        operations.append(Put(keys.progress(job.name), records.encode(progress)))
    return Txn("publish", compares, tuple(operations))


def report_damage(runner: RunnerState, job: JobView) -> Iterator[Action]:
    """Tell everybody that the commit to start from cannot be read whole, and which one can."""
    found = runner.damaged
    if found is None:
        return
    known = job.damaged and job.damage is not None and found.usable.manifest == job.damage.value.usable_manifest
    if job.head is None or known or found.manifest != job.base[1]:
        runner.damaged = None  # somebody else has said it, or the head has moved on
        return
    damage = records.Damage(
        manifest=job.head.value.manifest,
        usable_step=found.usable.step,
        usable_manifest=found.usable.manifest,
        found=tuple(records.cut(what, MAX_FOUND) for what in found.found[:KEPT_FOUND]),
    )
    log.error("agent.commit_damaged", job=job.name, found=found.found, usable=found.usable.step)
    key = keys.damage(job.name)
    compare = unchanged(job.damage.kv) if job.damage else absent(key)
    yield Write(Txn("damage", (unchanged(job.head.kv), compare), (Put(key, records.encode(damage)),)))
