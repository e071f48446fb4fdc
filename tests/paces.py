"""A story whose members train: each has a pace, does the ESTs that the plan gives it, and says how long that took."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from easyscale.coordinator import keys, records
from pictures import Story, worker_record


def generations(lines: list[str]) -> list[str]:
    """Of what a course's lines tell, the memberships."""
    return [line.partition(" job: ")[2] for line in lines if "generation" in line]


class Course(Story):
    """A job that runs for seconds or days of virtual time.

    Args:
        noise: coefficient of variation of the seconds that an EST takes, about; seed: of it.
        update: seconds of a step whatever the number of ESTs; exchange: by number of members.
        takes: bytes of memory whatever the number of ESTs, and of an EST more; None: nobody tells.
    """

    def __init__(self, noise: float = 0.0, seed: int = 0, **job: Any) -> None:
        super().__init__()
        self.job(**job)
        self.paces: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        self.exchange: dict[int, float] = {}
        self.update = 0.01
        self.takes: tuple[int, int] | None = None
        self.noise, self._random = noise, random.Random(seed)
        self.step = 0
        self.every = 1.0
        self.lines: list[str] = []
        """Whatever was decided, with the second."""

    def add(self, worker: str, est: float, kind: str = "cpu", **fields: Any) -> None:
        """A worker that is ready, and takes so many seconds for an EST."""
        self.paces[worker], self.kinds[worker] = est, kind
        self.put(keys.worker(worker), worker_record(worker, kind=kind, state="ready", job="job", **fields))
        self.put(keys.assigned(worker), "job")

    def lose(self, *workers: str) -> None:
        """These vanish."""
        for worker in workers:
            self.gone(worker)
            del self.paces[worker]

    def run(self, seconds: float) -> list[str]:
        """A report from each member and a decision, `every` so many seconds; what was decided meanwhile."""
        before = len(self.lines)
        for _ in range(round(seconds / self.every)):
            self._report()
            self.lines += [f"{self.now:g} {line}" for line in self.decide(self.every)]
        return self.lines[before:]

    @property
    def ranges(self) -> str:
        """ESTs of each member, in order."""
        return " ".join(f"{m.worker}{m.last - m.first}" for m in self.look().members)

    @property
    def rates(self) -> records.Rates | None:
        """What is recorded."""
        entry = self.look().rates
        return entry.value if entry else None

    def _report(self) -> None:
        job = self.look()
        times = {m.worker: (m.last - m.first) * self._est(m.worker) for m in job.members if m.worker in self.paces}
        exchange = self.exchange.get(len(times), 0.0) if len(times) > 1 else 0.0
        for slot, member in enumerate(job.members):
            if slot not in job.claims and member.worker in self.paces:
                self.claim(slot, self.step)
        self.step += 1
        mine = {member.worker: member.last - member.first for member in job.members}
        for worker in self.paces:
            progress = None
            if worker in times:
                waited = max(times.values()) - times[worker] + exchange
                progress = records.Progress(
                    step=self.step, generation=job.generation, lane="store", compute_seconds=times[worker],
                    exchange_seconds=waited, step_seconds=times[worker] + waited + self.update,
                    memory=self._footprint(mine[worker]),
                )  # fmt: skip
            self.say(worker, progress)

    def say(self, worker: str, progress: records.Progress | None) -> None:
        """A worker's record: a sign of life, and what it says of its last step."""
        before = self.view().workers[worker].value
        record = msgspec.structs.replace(
            before, beat=before.beat + 1, state="running" if progress else "ready", progress=progress,
            generation=progress.generation if progress else before.generation,
        )  # fmt: skip
        self.put(keys.worker(worker), record)

    def _footprint(self, ests: int) -> records.Footprint | None:
        if self.takes is None:
            return None
        fixed, est = self.takes
        return records.Footprint(peak=fixed + ests * est, ests=ests, est=est)

    def _est(self, worker: str) -> float:
        sigma = self.noise
        return self.paces[worker] * self._random.lognormvariate(0.0, sigma) if sigma else self.paces[worker]
