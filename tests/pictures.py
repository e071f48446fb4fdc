"""Pictures of the key-value store drawn by hand, one short call per record, and what decisions make of them.

The records lie in a real `MemoryKV`, so revisions are real and a decision's transactions can be applied to what they
were decided from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from easyscale.coordinator import keys, ranges, records, views
from easyscale.coordinator.kv import Delete, Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.coordinator.planner import Planner

if TYPE_CHECKING:
    from easyscale.coordinator.transactions import Txn

SPEC = "5" * 64
CODE = "c" * 64

SOON = 0.5
"""Seconds: shorter than any patience of the planner's."""


def worker_record(worker: str, **fields: Any) -> records.WorkerRecord:
    """A worker that says no more than its name."""
    defaults: dict[str, Any] = {"name": worker, "host": "here", "pid": 1, "device": "cpu", "kind": "cpu", "memory": 1}
    return records.WorkerRecord(id=worker, **(defaults | fields))


class Board:
    """A key-value store to draw on. `name` is always the job's, "job" by default."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kv = MemoryKV("board", clock=lambda: self.now)

    # ---- drawing

    def put(self, key: str, value: msgspec.Struct | str) -> None:
        data = value.encode() if isinstance(value, str) else records.encode(value)
        self.kv.txn((), (Put(key, data),))

    def delete(self, key: str) -> None:
        self.kv.txn((), (Delete(key),))

    def job(self, name: str = "job", desired: str = "running", **fields: Any) -> None:
        defaults: dict[str, Any] = {"spec": SPEC, "code": CODE, "steps": 100, "ests": 4}
        self.put(keys.spec(name), records.JobRecord(name=name, **(defaults | fields)))
        self.put(keys.desired(name), desired)

    def desire(self, what: str, name: str = "job") -> None:
        self.put(keys.desired(name), what)

    def worker(
        self, worker: str, state: str = "ready", job: str | None = "job", step: int | None = None, **fields: Any
    ) -> None:
        """A worker as it describes itself now; calling it again is a sign of life."""
        progress = (
            records.Progress(step=step, generation=self.look(job or "job").generation) if step is not None else None
        )
        beat = self.view().workers[worker].value.beat + 1 if worker in self.view().workers else 0
        record = worker_record(worker, state=state, job=job, progress=progress, beat=beat, **fields)
        self.put(keys.worker(worker), record)

    def gone(self, worker: str) -> None:
        """The worker's lease has ended: its record and its claims went with it."""
        self.delete(keys.worker(worker))
        for job in self.view().jobs.values():
            for entry in job.all_claims.values():
                if entry.value.worker == worker:
                    self.delete(entry.kv.key)

    def plan(self, generation: int, *workers: str, name: str = "job", lane: records.LaneKind = "store") -> None:
        """The ESTs of the job shared evenly by these workers."""
        spec = self.look(name).spec
        members = ranges.even(spec.value.ests if spec else 4, workers)
        self.put(keys.plan(name), records.Plan(generation=generation, lane=lane, members=members))

    def claim(
        self, slot: int, held: int = 0, *, worker: str | None = None, generation: int | None = None, name: str = "job"
    ) -> None:
        job = self.look(name)
        claim = records.Claim(worker=worker or job.members[slot].worker, held=held)
        self.put(keys.claim(name, generation or job.generation, slot), claim)

    def claims(self, *held: int, name: str = "job") -> None:
        """Every member has claimed, holding these steps (all the initial state when none is given)."""
        for slot in range(len(self.look(name).members)):
            self.claim(slot, held[slot] if held else 0, name=name)

    def head(self, step: int, manifest: str | None = None, generation: int | None = None, name: str = "job") -> None:
        found = generation or self.look(name).generation
        head = records.Head(step=step, manifest=manifest or f"m{step}", state_digest=f"s{step}", generation=found)
        self.put(keys.head(name), head)

    def damage(self, manifest: str, usable: int, name: str = "job") -> None:
        base = f"m{usable}" if usable else None
        self.put(
            keys.damage(name),
            records.Damage(manifest=manifest, usable_step=usable, usable_manifest=base, found=(f"{manifest} is bad",)),
        )

    def status(self, name: str = "job", **fields: Any) -> None:
        self.put(keys.status(name), records.Status(**fields))

    def report(
        self, worker: str, cause: str, step: int = 0, name: str = "job", message: str = "boom", device: str = ""
    ) -> None:
        found = records.Report(
            worker=worker, generation=self.look(name).generation, cause=cause, step=step, message=message,
            traceback="Traceback: boom" if cause == "raised" else "", device=device,
        )  # fmt: skip
        self.put(keys.report(name, worker), found)

    def progress(self, step: int, started: int = 0, name: str = "job") -> None:
        generation = self.look(name).generation
        self.put(keys.progress(name), records.Progress(step=step, started=started, generation=generation))

    def probe(self, digest: str = "bits", determinism: str = "class", name: str = "job", **description: str) -> None:
        found = records.Probe(determinism=determinism, digest=digest, description=description, worker="first")
        self.put(keys.probe(name), found)

    # ---- looking

    def view(self) -> views.View:
        return views.parse(self.kv.range(keys.PREFIX))

    def look(self, name: str = "job") -> views.JobView:
        return self.view().jobs.get(name) or views.JobView(name)

    def apply(self, txn: Txn) -> bool:
        return self.kv.txn(txn.compares, txn.operations).succeeded


class Story(Board):
    """A board with a planner. `decide` gives what it decided as lines, and applies it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.planner = Planner(**options)

    def decide(self, after: float = 0.0) -> list[str]:
        """One round, `after` seconds later; workers that are there are still alive."""
        self.now += after
        txns = self.planner.decide(self.view(), self.now)
        before = self.view()
        for txn in txns:
            assert self.apply(txn), f"{txn.tag} was decided from this picture and does not apply to it"
        return [line for txn in txns for line in tell(txn, before)]

    def beat(self, *workers: str) -> None:
        """These workers show that they live."""
        for worker in workers or tuple(self.view().workers):
            record = self.view().workers[worker].value
            self.put(keys.worker(worker), msgspec.structs.replace(record, beat=record.beat + 1))

    def running(self, *workers: str, held: int = 0, name: str = "job") -> None:
        """These workers run the job's generation 1 (or the next one), all claimed."""
        for worker in workers:
            self.worker(worker, "running", name, held)
            self.put(keys.assigned(worker), name)
        self.plan(self.look(name).generation + 1, *workers, name=name)
        self.claims(*([held] * len(workers)), name=name)
        if self.look(name).status is None:
            self.status(name, state="running")
        assert self.decide() == [], "the picture is at rest"


@pytest.fixture
def story() -> Story:
    """A job of 4 ESTs that nobody serves yet."""
    story = Story()
    story.job()
    return story


def status_of(story: Board, name: str = "job") -> records.Status:
    """What the coordinator has written of a job."""
    entry = story.look(name).status
    assert entry is not None
    return entry.value


def tell(txn: Txn, view: views.View) -> list[str]:
    """A transaction's operations as people would say them; what it keeps of the past is left out."""
    return [_tell_one(operation, view) for operation in txn.operations if not operation.key.startswith(keys.PAST)]


def _tell_one(operation: Put | Delete, view: views.View) -> str:
    key = operation.key
    if key.startswith(keys.ASSIGNED):
        worker = key.removeprefix(keys.ASSIGNED)
        return f"{worker} -> {operation.value.decode() if isinstance(operation, Put) else 'nothing'}"
    name, _, rest = key.removeprefix(keys.JOBS).partition("/")
    if isinstance(operation, Delete):
        return f"{name}: {rest} removed"
    if rest == "plan":
        plan = records.decode(operation.value, records.Plan)
        who = " ".join(f"{m.worker}[{m.first}:{m.last}]" for m in plan.members) or "nobody"
        return f"{name}: generation {plan.generation} is {who} ({plan.cause})"
    if rest == "rates":
        return f"{name}: {_tell_rates(records.decode(operation.value, records.Rates))}"
    assert rest == "status", key
    status = records.decode(operation.value, records.Status)
    return f"{name}: {status.state}" + (f" ({status.reason})" if status.reason else "")


def _tell_rates(rates: records.Rates) -> str:
    kinds = [f"{kind} {rate.est:g}+{rate.fixed:g} s" for kind, rate in rates.kinds.items()]
    factors = [f"{worker} {factor:g}x" for worker, factor in rates.factors.items()]
    exchange = [f"{key}: {seconds:g} s" for key, seconds in rates.exchange.items()]
    return "rates " + ", ".join(kinds + factors + exchange)
