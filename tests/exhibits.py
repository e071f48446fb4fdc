"""A cluster drawn by hand, for looking at: jobs of any number and length, with their commits, in any stores.

Manifests hold what is told to people and no tensors, so ten thousand steps are there in a moment.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

from easyscale.coordinator import keys, ranges, records
from easyscale.coordinator.kv import Put
from easyscale.pipeline import verified
from easyscale.pipeline.verified import Verified
from easyscale.storage.blobs import blob_digest, blob_key

if TYPE_CHECKING:
    import msgspec
    from easyscale.coordinator.kv import KeyValueStore
    from easyscale.storage.objects import ObjectStore

ZERO = "0" * 64
NOON = 1_796_000_000.0
KINDS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "AMD EPYC 7763 64-Core Processor")
STATES: tuple[records.JobState, ...] = ("running", "running", "waiting", "done", "paused", "running", "failed", "done")


class Exhibit:
    """Draws into two stores; what is in them stays.

    Args:
        kv, store: where to.
    """

    def __init__(self, kv: KeyValueStore, store: ObjectStore) -> None:
        self._kv, self._store = kv, store
        self._puts: dict[str, Put] = {}
        self._lines: dict[tuple[int, int], str] = {}

    def put(self, key: str, value: msgspec.Struct | str) -> None:
        data = value.encode() if isinstance(value, str) else records.encode(value)
        self._puts[key] = Put(key, data)

    def hang(self) -> None:
        """Let it be seen, in as few transactions as etcd allows."""
        puts, self._puts = [*self._puts.values()], {}
        for start in range(0, len(puts), 100):
            assert self._kv.txn((), puts[start : start + 100]).succeeded

    def verify(self, job: str, result: Verified) -> None:
        """What `verify` came to."""
        verified.keep(self._kv, job, result)

    def blob(self, data: bytes) -> str:
        digest = blob_digest(data)
        self._store.put(blob_key(digest), data, durable=False)
        return digest

    def commit(
        self, job: str, step: int, parent: str | None, history: str | None, metrics: dict[str, Any], **fields: Any
    ) -> str:
        """A manifest without tensors; its digest."""
        manifest = {
            "format": 1, "job": job, "step": step, "parent": parent, "spec": ZERO, "code": ZERO, "ests": 4,
            "determinism": {}, "generation": 1, "state_digest": blob_digest(f"{job} {step}".encode()),
            "metrics": metrics, "history": history, "created": NOON + step,
            "packs": [{"digest": ZERO, "length": 4_000_000}], "tensors": [], "skeleton": None,
        }  # fmt: skip
        return self.blob(json.dumps(manifest | fields).encode())

    def lines(self, first: int, last: int) -> str:
        """The blob of the steps `first <= t < last`: all jobs share it."""
        if (first, last) not in self._lines:
            lines = (json.dumps(step_line(t)).encode() + b"\n" for t in range(first, last))
            self._lines[first, last] = self.blob(b"".join(lines))
        return self._lines[first, last]

    def commits(self, job: str, upto: int, every: int, generation: int = 1) -> records.Head | None:
        """A chain of commits, the newest of which is returned as a head."""
        parent, head = None, None
        for last in range(every, upto + 1, every):
            metrics = {"accuracy": round(1 - math.exp(-last / 3000), 6)}
            parent = self.commit(job, last, parent, self.lines(last - every, last), metrics, generation=generation)
            head = records.Head(
                step=last, manifest=parent, state_digest=blob_digest(f"{job} {last}".encode()), generation=generation,
                metrics=metrics,
            )  # fmt: skip
        return head

    def worker(self, name: str, job: str | None, kind: str, step: int, **fields: Any) -> str:
        """A worker; its id."""
        worker = f"{name}-1"
        about: dict[str, Any] = {"host": f"host-{name}", "pid": 1, "device": "cuda:0", "memory": 1 << 36}
        if job:
            about |= {"state": "running", "job": job, "progress": progress(step)}
        self.put(keys.worker(worker), records.WorkerRecord(id=worker, name=name, kind=kind, **(about | fields)))
        return worker

    def job(
        self, name: str, *, state: records.JobState = "running", step: int = 6400, steps: int = 10_000,
        every: int = 100, members: tuple[str, ...] = (), ests: int = 4, **status: Any,
    ) -> None:  # fmt: skip
        """A job with its commits, its plan, and what was heard of it."""
        self.put(keys.spec(name), records.JobRecord(name=name, spec=ZERO, code=ZERO, steps=steps, ests=ests,
                                                    submitted=NOON))  # fmt: skip
        self.put(keys.desired(name), "paused" if state == "paused" else "running")
        self.put(keys.status(name), records.Status(state=state, **status))
        self.put(keys.progress(name), progress(step))
        self.put(keys.plan(name), plan(4, ests, members, "c-1 joins"))
        if head := self.commits(name, step, every):
            self.put(keys.head(name), head)

    def pipeline(self, name: str, stages: dict[str, tuple[str, ...]], begun: dict[str, records.JobState]) -> None:
        """A pipeline of functions.

        Args:
            stages: name -> what it builds on, in order. begun: those that are jobs, and their states.
        """
        outline = [records.StageRecord(name=stage, kind="function", inputs=inputs) for stage, inputs in stages.items()]
        self.put(keys.pipeline(name), records.PipelineRecord(name=name, stages=tuple(outline)))
        for stage, state in begun.items():
            full = f"{name}.{stage}"
            record = records.JobRecord(name=full, spec=ZERO, code=ZERO, steps=1, ests=1, submitted=NOON, pipeline=name)
            self.put(keys.spec(full), record)
            self.put(keys.desired(full), "running")
            self.put(keys.status(full), records.Status(state=state))

    def preempted(self, name: str, workers: tuple[str, ...], at: tuple[int, int, int], ests: int = 4) -> None:
        """Three generations that are over, each since a worker left or died."""
        causes = (f"{workers[0]} joins; {workers[1]} joins", f"{workers[1]} died", f"{workers[2]} joins")
        teams = (workers[:2], workers[:1], (workers[0], workers[2]))
        first = 0
        for number, (last, team, cause) in enumerate(zip(at, teams, causes, strict=True), 1):
            members = plan(number, ests, team, cause).members
            over = records.Generation(generation=number, first=first, last=last, members=members, cause=cause)
            self.put(keys.past(name, number), over)
            first = last


def step_line(t: int) -> dict[str, Any]:
    """What a step says: a loss that falls and jumps, a rate that warms up and decays."""
    loss = 2.3 * math.exp(-t / 2500) + 0.12 * math.sin(t * 12.9898) ** 2 + 0.08
    lr = 0.1 * min(1.0, (t + 1) / 500) * (0.5 + 0.5 * math.cos(math.pi * min(t, 10_000) / 10_000))
    return {
        "step": t,
        "epoch": t // 500,
        "loss": loss,
        "losses": [loss] * 4,
        "lr": [lr],
        "grad_norm": None,
        "skipped": False,
    }


def plan(generation: int, ests: int, workers: tuple[str, ...], cause: str) -> records.Plan:
    return records.Plan(generation=generation, lane="peer", members=ranges.even(ests, workers), cause=cause)


def progress(step: int) -> records.Progress:
    said = step_line(step)
    return records.Progress(
        step=step, started=max(0, step - 1500), generation=4, loss=said["loss"], lr=said["lr"][0],
        samples_per_second=812.5, step_seconds=0.158, compute_seconds=0.13, lane="peer", sent=1_234_567,
    )  # fmt: skip


def one_job(exhibit: Exhibit) -> None:
    """A job that was preempted three times, with three workers of two kinds."""
    workers = ("a-1", "b-1", "c-1")
    exhibit.put(keys.LEADER, "somebody")
    for name, kind in zip("abc", (KINDS[0], KINDS[0], KINDS[1]), strict=True):
        exhibit.worker(name, "digits", kind, 6437)
    recoveries = tuple(
        records.Recovery(cause=cause, seconds=seconds, steps_recomputed=1)
        for cause, seconds in (("b-1 died", 1.84), ("c-1 preempted", 0.41), ("b-1 lost by a-1", 0.63))
    )
    exhibit.job("digits", step=6437, members=workers, recoveries=recoveries, recovered=3,
                attempts={"died": 2, "preempted": 1}, reason="")  # fmt: skip
    rate = {KINDS[0]: records.Rate(0.031, 0.004), KINDS[1]: records.Rate(0.052, 0.004)}
    exhibit.put(keys.rates("digits"), records.Rates(spec=ZERO, kinds=rate, exchange={"peer 3": 0.006}))
    exhibit.preempted("digits", workers, (1800, 3350, 4937))
    exhibit.hang()
    for end, device, found in ((3300, "cpu", "this device is of another class"), (6400, "cuda:0", "")):
        verdict: Literal["verified", "differs"] = "differs" if found else "verified"
        exhibit.verify("digits", Verified(verdict=verdict, start=0, end=end, steps=end, at=NOON + end, host="host-a",
                                          device=device, found=found))  # fmt: skip


def many_jobs(exhibit: Exhibit, count: int, steps: int = 10_000, every: int = 100) -> None:
    """Jobs in all states, most of them far along, with four workers for each that runs."""
    exhibit.put(keys.LEADER, "somebody")
    reasons = {
        "waiting": "it is not its turn: by policy easyscale, the 1250 worker(s) here serve other jobs first",
        "paused": "paused by the user",
        "failed": "the user's code raised at step 4211: ValueError: Expected more than 1 value per channel",
    }
    for number in range(count):
        name, state = f"resnet50-sweep-{number:03d}", STATES[number % len(STATES)]
        step = steps if state == "done" else 0 if state == "waiting" else 100 + (number * 977) % (steps - 100)
        members = tuple(f"{name}-w{i}-1" for i in range(4 if state == "running" else 0))
        for i in range(len(members)):
            exhibit.worker(f"{name}-w{i}", name, KINDS[number % len(KINDS)], step)
        failure = records.Failure(cause="raised", step=step, worker="w", message="no", traceback="Traceback\n  boom")
        exhibit.job(
            name, state=state, step=step, steps=steps, every=every, members=members, reason=reasons.get(state, ""),
            failure=failure if state == "failed" else None,
        )  # fmt: skip
        if members:
            exhibit.preempted(name, (members[0], members[1], members[2]), (step // 4, step // 3, step // 2))
        exhibit.hang()
