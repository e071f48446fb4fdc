"""How a worker comes into a job: it must compute what the first one did, claims a slot, and is told to run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..coordinator import keys, records
from ..coordinator.kv import Put, absent, unchanged
from ..coordinator.transactions import Txn
from . import messages

if TYPE_CHECKING:
    from ..coordinator.kv import Delete
    from ..coordinator.views import JobView


def first_probe(job: str, worker: str, ready: messages.Ready) -> Txn:
    """Record what this worker computed as what all others must compute, if nobody has yet."""
    probe = records.Probe(
        determinism=ready.determinism, digest=ready.probe, description=ready.description, worker=worker
    )
    key = keys.probe(job)
    return Txn("probe", (absent(key),), (Put(key, records.encode(probe)),))


def unlike(ready: messages.Ready, probe: records.Probe) -> str | None:
    """Why this device may not take part, or None: it must reproduce what the first worker computed."""
    if probe.determinism != ready.determinism:
        differ = [
            f"{name}: {ready.description.get(name)!r} here, {probe.description.get(name)!r} there"
            for name in sorted(probe.description.keys() | ready.description.keys())
            if probe.description.get(name) != ready.description.get(name)
        ]
        return f"another determinism class than {probe.worker} ({'; '.join(differ)})"
    if probe.digest != ready.probe:
        return f"computes other bits than {probe.worker} for the initial state and first gradient"
    return None


def claim(
    job: JobView, slot: int, worker: str, held: int, ready: messages.Ready, lease: int, older: tuple[Delete, ...]
) -> Txn:
    """Claim a slot of the current generation, if nobody has and the plan is still that one.

    Args:
        held: step of the state that the runner holds. lease: the claim ends with it. older: claims that are let go.
    """
    assert job.plan is not None
    key = keys.claim(job.name, job.generation, slot)
    mine = records.Claim(worker=worker, held=held, address=ready.address, gpu=ready.gpu)
    return Txn("claim", (unchanged(job.plan.kv), absent(key)), (Put(key, records.encode(mine), lease), *older))


def run(job: JobView, slot: int, step: int, base: messages.Base) -> messages.Run:
    """The order to run a slot of the current generation, all of whose members have claimed: the same for all of them.

    Args:
        step: where all begin. base: the newest commit.
    """
    assert job.plan is not None
    claims = [job.claims[slot].value for slot in range(len(job.members))]
    return messages.Run(
        generation=job.generation,
        members=job.members,
        slot=slot,
        step=step,
        base=base,
        held=tuple(claim.held for claim in claims),
        lane=job.plan.value.lane,
        addresses=tuple(claim.address for claim in claims),
        gpus=tuple(claim.gpu for claim in claims),
    )
