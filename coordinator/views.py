"""Read-only pictures of the key-value store, parsed once: what decisions are made from.

A record that cannot be read is left out of the picture and named in `damaged`: one bad value must not stop every job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import CorruptError
from . import keys, records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .kv import KeyValue

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Entry(Generic[R]):
    """A parsed value with the key it came from, whose revisions later comparisons use."""

    kv: KeyValue
    value: R


@dataclass(slots=True)
class JobView:
    """All keys of one job. `claims` are those of the current plan's generation, by slot."""

    name: str
    spec: Entry[records.JobRecord] | None = None
    desired: str = "running"
    wish: KeyValue | None = None
    plan: Entry[records.Plan] | None = None
    all_claims: dict[tuple[int, int], Entry[records.Claim]] = field(default_factory=dict)
    head: Entry[records.Head] | None = None
    status: Entry[records.Status] | None = None
    probe: Entry[records.Probe] | None = None
    damage: Entry[records.Damage] | None = None
    progress: Entry[records.Progress] | None = None
    rates: Entry[records.Rates] | None = None
    reports: dict[str, Entry[records.Report]] = field(default_factory=dict)
    logs: dict[str, records.LogRecord] = field(default_factory=dict)

    @property
    def record(self) -> records.JobRecord:
        """What scheduling needs to know of the job, of which the caller knows that it is there."""
        assert self.spec is not None, f"{self.name} has no specification"
        return self.spec.value

    @property
    def generation(self) -> int:
        """The current generation; 0 before the first plan."""
        return self.plan.value.generation if self.plan else 0

    @property
    def members(self) -> tuple[records.Member, ...]:
        """The current plan's members."""
        return self.plan.value.members if self.plan else ()

    @property
    def claims(self) -> dict[int, Entry[records.Claim]]:
        """Claims of the current generation by slot."""
        return {slot: entry for (g, slot), entry in self.all_claims.items() if g == self.generation}

    @property
    def base(self) -> tuple[int, str | None]:
        """Step and manifest of the newest commit that can be read; (0, None) is the initial state."""
        if self.head is None:
            return 0, None
        if self.damage is not None and self.damaged:
            return self.damage.value.usable_step, self.damage.value.usable_manifest
        return self.head.value.step, self.head.value.manifest

    @property
    def damaged(self) -> bool:
        """Whether the head is known to be damaged: any commit newer than `base` may take its place."""
        head, damage = self.head, self.damage
        return head is not None and damage is not None and damage.value.manifest == head.value.manifest

    @property
    def state(self) -> records.JobState:
        """The job's state as last recorded."""
        return self.status.value.state if self.status else "waiting"

    @property
    def over(self) -> bool:
        """Whether nothing will run any more unless the user acts."""
        return self.state in records.TERMINAL

    @property
    def counts(self) -> bool:
        """Whether attempts that end are counted: not those that a user's cancel or the job's own end cut short."""
        return self.spec is not None and not self.over and self.desired != "cancelled"

    def slot_of(self, worker: str) -> int | None:
        """The worker's slot in the current plan, or None when it is no member."""
        return self.plan.value.slot_of(worker) if self.plan else None

    def start_step(self) -> int | None:
        """The step at which the current generation starts: the newest state any member holds or can load.

        None until every member has claimed, since only then everybody sees the same answer: claims never change,
        and only members of the generation can move the head, never past what one of them held.
        """
        claims = self.claims
        if not self.members or len(claims) < len(self.members):
            return None
        return max([self.base[0], *(entry.value.held for entry in claims.values())])


@dataclass(slots=True)
class View:
    """Everything: what the coordinator decides from."""

    workers: dict[str, Entry[records.WorkerRecord]] = field(default_factory=dict)
    assigned: dict[str, Entry[str]] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    leader: KeyValue | None = None
    damaged: list[str] = field(default_factory=list)


def parse(entries: Iterable[KeyValue]) -> View:
    """Build a picture from keys read with one `range`."""
    view = View()
    for kv in entries:
        try:
            _place(view, kv)
        except (CorruptError, UnicodeDecodeError, ValueError) as error:
            view.damaged.append(f"{kv.key}: {error}")
    return view


def _place(view: View, kv: KeyValue) -> None:
    key = kv.key
    if key.startswith(keys.WORKERS):
        record = records.decode(kv.value, records.WorkerRecord, key)
        view.workers[record.id] = Entry(kv, record)
    elif key.startswith(keys.ASSIGNED):
        view.assigned[key.removeprefix(keys.ASSIGNED)] = Entry(kv, kv.value.decode())
    elif key == keys.LEADER:
        view.leader = kv
    elif key.startswith(keys.JOBS):
        name, _, rest = key.removeprefix(keys.JOBS).partition("/")
        job = view.jobs.setdefault(name, JobView(name))
        _place_in_job(job, rest, kv)


_SINGLE: dict[str, type[Any]] = {
    "spec": records.JobRecord,
    "plan": records.Plan,
    "head": records.Head,
    "status": records.Status,
    "probe": records.Probe,
    "damage": records.Damage,
    "progress": records.Progress,
    "rates": records.Rates,
}


def _place_in_job(job: JobView, rest: str, kv: KeyValue) -> None:
    if rest in _SINGLE:
        setattr(job, rest, Entry(kv, records.decode(kv.value, _SINGLE[rest], kv.key)))
    elif rest == "desired":
        job.desired, job.wish = kv.value.decode(), kv
    elif rest.startswith("claims/"):
        generation, slot = rest.removeprefix("claims/").split("/")
        entry = Entry(kv, records.decode(kv.value, records.Claim, kv.key))
        job.all_claims[int(generation), int(slot)] = entry
    elif rest.startswith("reports/"):
        report = records.decode(kv.value, records.Report, kv.key)
        job.reports[rest.removeprefix("reports/")] = Entry(kv, report)
    elif rest.startswith("logs/"):
        job.logs[rest.removeprefix("logs/")] = records.decode(kv.value, records.LogRecord, kv.key)
