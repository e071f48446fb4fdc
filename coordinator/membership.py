"""Membership of one job: who of its members is lost, whether its generation must go on, who is in the next one. Pure.

A generation ends only when what its members alone hold is safe, or when one of them is lost; growth waits a moment, so
that those who are still preparing join in one generation. Once speeds are known, a running job follows them when that
is worth a generation, and goes on being so for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import arrangement, breaks, lanes, probes, ranges, reasons, room, throughput
from .breaks import CONFIRM_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from . import records
    from .arrangement import Arrangement, Model
    from .attempts import Alive, Lost
    from .breaks import Breaks
    from .observed import Observed
    from .split import Pace
    from .views import JobView, View


LANE_SECONDS = 5.0
"""How long nothing must have stood in the way of direct exchanges before members give up the object store for them."""


FOLLOW_SECONDS = 3.0
"""How long other ranges must have been `arrangement.GAIN` better before a running job gets them. What is known of
speeds moves slowly already; this is for what comes together, as several workers' factors do."""

FOLLOW_AGAIN_SECONDS = 30.0
"""Between two generations for the sake of speed."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What has happened to the current generation.

    Args:
        ended: members whose attempt has ended, and why.
        accused: members that others have lost, and by whose word. Their attempts are counted when they end.
        broken: why the exchange broke: members cannot go on, even if all of them live. "": it did not.
        doubtful: one is accused that alone holds the newest state. It may still show that it lives.
    """

    ended: Lost = field(default_factory=dict)
    accused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    broken: str = ""
    doubtful: bool = False

    def __contains__(self, worker: str) -> bool:
        return worker in self.ended or worker in self.accused

    @property
    def gently(self) -> bool:
        """Whether nobody was lost but those who were told to go."""
        return not self.accused and not self.broken and all(cause == "preempted" for cause in self.ended.values())

    @property
    def any(self) -> bool:
        """Whether the generation cannot go on as it is."""
        return bool(self.ended or self.accused or self.broken)


@dataclass(slots=True)
class Membership:
    """Decides for one job at a time.

    Args:
        observed, breaks: what the planner has seen and heard.
        claim_patience, settle, speeds: see `planner.py`.
    """

    observed: Observed
    breaks: Breaks
    claim_patience: float
    settle: float
    speeds: bool = True
    _spare: dict[str, frozenset[str]] = field(default_factory=dict)
    """By job: workers that are ready, and without whom a step takes no longer."""
    _followed: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By job: the newest generation that was decided on for the sake of speed, and when."""

    def forget(self, jobs: Mapping[str, JobView]) -> None:
        """Nothing need be remembered of jobs that are over or gone."""
        for name in [name for name in self._spare.keys() | self._followed if name not in jobs or jobs[name].over]:
            self._spare.pop(name, None)
            self._followed.pop(name, None)

    def losses(self, job: JobView, view: View, alive: Alive, now: float) -> Losses:
        """What has happened to the current generation."""
        ended = self._ended(job, view, alive, now)
        words, accused = breaks.told(job, alive), breaks.accused(job, alive)
        newest = max([job.base[0], *(self._told(job, alive, m.worker) for m in job.members if m.worker not in accused)])
        doubtful, over = False, any(cause != "preempted" for cause in ended.values())
        for worker in [w for w in accused if w in ended or self._told(job, alive, w) > newest + 1]:
            if worker in ended or self.breaks.lives(job, view, worker, now):
                del accused[worker]
            else:
                doubted = self.observed.since(f"accused {job.name} {worker}", job.generation, now) < CONFIRM_SECONDS
                if doubted and over:  # the next generation shows whether it lives: only it has what it says it has
                    del accused[worker]
                doubtful |= doubted and not over
        why = next((words[worker].why or "unknown" for worker in sorted(words)), "")
        return Losses(ended, accused, why, doubtful)

    def _told(self, job: JobView, alive: Alive, worker: str) -> int:
        """The newest state that a member has told of. Who tells of a break tells of its state at the same time."""
        held = [claim.value.held for claim in job.all_claims.values() if claim.value.worker == worker]
        record = alive.get(worker)
        if record is not None and record.job == job.name and record.progress is not None:
            held.append(record.progress.step)
        return max(held, default=0)

    def _ended(self, job: JobView, view: View, alive: Alive, now: float) -> Lost:
        """Members that cannot take part any more, and why."""
        lost: Lost = {}
        claims, claimed = job.claims, self.observed.claimed(job)
        age = self.observed.since(f"plan {job.name}", job.generation, now)
        for slot, member in enumerate(job.members):
            worker = member.worker
            report, record = job.reports.get(worker), alive.get(worker)
            if report is not None:
                lost[worker] = report.value.cause
            elif record is None:
                # who leaves takes back its own assignment
                went = worker in self.observed.left or (worker not in view.workers and worker not in view.assigned)
                lost[worker] = "preempted" if went else "died"
            elif slot in claims or job.desired == "paused":
                continue
            elif slot in claimed or (record.job == job.name and record.generation == job.generation):
                lost[worker] = "preempted"  # it says that it had a claim: it let go, or lost its lease and is back
            elif age > self.claim_patience and record.state != "running":
                # one that still runs an older generation is in the middle of a step: its agent watches it
                lost[worker] = "hang"
                self.observed.pass_over(job.name, worker, now)
        return lost

    def hold(self, job: JobView, losses: Losses, allotted: list[str], alive: Alive, now: float) -> bool:
        """Whether the generation must not end yet: members commit under it what only they hold."""
        if losses.doubtful:
            return True
        if not job.members or not losses.gently:
            return False
        if _stopping(job, losses, allotted):
            return not self._let_go(job, alive, now)
        staying = [m.worker for m in job.members if m.worker in allotted and m.worker not in losses]
        return self._hands_over(job, staying, alive, now)

    def next(
        self, job: JobView, view: View, allotted: list[str], alive: Alive, losses: Losses, now: float
    ) -> tuple[records.Member, ...] | None:
        """The members of the next generation, or None to leave things as they are."""
        if _stopping(job, losses, allotted):
            return ()
        spec = job.record
        candidates = [w for w in allotted if w not in losses and self._can_serve(job, view, alive[w], now)]
        staying = [m.worker for m in job.members if m.worker in candidates]
        newcomers = [w for w in candidates if w not in staying]
        workers = lanes.fitting(staying + newcomers, alive, self.breaks.apart(now))[0]
        roomy = self._roomy(job, workers, alive)
        if len(workers) < spec.min_workers:
            members = ranges.even(spec.ests, self._keepers(job, alive, losses))
        elif len(roomy) < spec.min_workers:
            members = ()  # nobody runs more than it has room for, not even to commit what only it holds
        else:
            workers = roomy
            members = self._arrange(job, workers, alive, losses, now)
        if members == job.members and not losses.any and not _reread(job) and not self._nearer(job, alive, now):
            return None
        if not job.members and not members:
            return None
        shrinking = losses.any or len(staying) < len(job.members) or not members
        pending = [w for w in allotted if alive[w].state in ("idle", "preparing") and w not in losses]
        if not shrinking and pending and len(members) < spec.ests:
            grown = self.observed.since(f"growth {job.name}", (job.generation, bool(newcomers)), now)
            if grown < self.settle:
                return None
        return members

    def _paces(self, job: JobView, workers: Sequence[str], alive: Alive) -> dict[str, Pace]:
        """Of these workers; empty if nothing is known of any. Who runs has room for what it runs, whatever it tells."""
        return self._paces_by(self._rates(job, workers, alive), job, workers, alive)

    def _rates(self, job: JobView, workers: Sequence[str], alive: Alive) -> records.Rates | None:
        """What is known or expected of these workers, if anything is, and is to be looked at."""
        return probes.expected(job, workers, alive) if self.speeds else None

    def _paces_by(
        self, rates: records.Rates | None, job: JobView, workers: Sequence[str], alive: Alive
    ) -> dict[str, Pace]:
        found = arrangement.paces_of(rates, workers, alive, job.name)
        if not found:
            return {}
        for member in job.members:
            if member.worker in found and self._runs(job, alive[member.worker]):
                pace = found[member.worker]
                found[member.worker] = pace._replace(most=max(pace.most, member.last - member.first))
        return found

    @staticmethod
    def _runs(job: JobView, record: records.WorkerRecord) -> bool:
        """Whether it has made a step of the current generation."""
        told = record.progress if record.job == job.name else None
        return told is not None and told.generation == job.generation

    def _roomy(self, job: JobView, workers: list[str], alive: Alive) -> list[str]:
        """Which of these have room for an EST; nobody, if all together have too little for the job."""
        paces = self._paces(job, workers, alive)
        if room.lacking(job.record.ests, paces, alive):
            return []
        return [worker for worker in workers if not paces or paces[worker].most]

    def lacking(self, job: JobView, allotted: list[str], alive: Alive) -> str:
        """Why a job cannot run for want of memory, as far as is known; "" if not so."""
        workers = allotted or [worker for worker, record in alive.items() if not record.leaving]
        return room.lacking(job.record.ests, self._paces(job, workers, alive), alive)

    def _arrange(
        self, job: JobView, workers: list[str], alive: Alive, losses: Losses, now: float
    ) -> tuple[records.Member, ...]:
        """Who of these are members, and of which ranges."""
        model = self._model(job, workers, alive, now)
        served = [member.worker for member in job.members]
        if model is None:
            self._spare.pop(job.name, None)
            chosen = workers[: job.record.ests]
            return job.members if chosen == served else ranges.even(job.record.ests, chosen)
        staying = [worker for worker in workers if worker in served or self._leads(job, alive, worker)]
        newcomers = [worker for worker in workers if worker not in staying]
        rates = throughput.known(job)
        unknown = [w for w in newcomers if rates is None or throughput.kind_of(alive[w]) not in rates.kinds]
        spare, found = self._spare.get(job.name, frozenset()), model.grow(staying, newcomers, unknown)
        fresh = [worker for worker in found.workers if worker not in served and worker not in spare]
        if not (losses.any or fresh or any(worker not in workers for worker in served)):
            found = self._follow(job, model, staying, newcomers, alive, now) or model.as_is(job.members)
        elif self._follows(job):  # it was not written, and now there is a better reason
            del self._followed[job.name]
        self._spare[job.name] = frozenset(workers) - frozenset(found.workers)
        return found.members

    def _leads(self, job: JobView, alive: Alive, worker: str) -> bool:
        """Whether it has told of a newer state than any member and the store have: then it must be one."""
        return self._told(job, alive, worker) > max(
            [job.base[0], *(self._told(job, alive, member.worker) for member in job.members)]
        )

    def _follow(
        self, job: JobView, model: Model, staying: list[str], newcomers: list[str], alive: Alive, now: float
    ) -> Arrangement | None:
        """What speed alone makes of a generation that could go on as it is; None: it does."""
        if throughput.known(job) is None:  # what probes say is not worth a generation
            return None
        found = model.improve(staying, newcomers)
        # Who goes must not hold what only it has: all have made a step together.
        common = all(
            member.worker in alive and (told := alive[member.worker].progress) and told.generation == job.generation
            for member in job.members
        )
        gains = common and found.seconds < model.seconds(job.members) * (1 - arrangement.GAIN)
        waited = self.observed.since(f"ranges {job.name}", (job.generation, gains), now)
        followed, when = self._followed.get(job.name, (0, 0.0))
        lately = 0 < followed <= job.generation and now - when < FOLLOW_AGAIN_SECONDS
        if not gains or waited < FOLLOW_SECONDS or lately:
            return None
        self._followed[job.name] = job.generation + 1, now
        return found

    def _follows(self, job: JobView) -> bool:
        """Whether the next generation was decided on for the sake of speed alone."""
        return self._followed.get(job.name, (0, 0.0))[0] == job.generation + 1

    def paces(self, job: JobView, members: Sequence[records.Member], alive: Alive) -> Mapping[str, Pace]:
        """Of all who serve and will serve, if their speed alone is why there is a next generation; else empty."""
        workers = dict.fromkeys(member.worker for member in [*job.members, *members])
        if not self._follows(job):
            return {}
        return self._paces(job, [worker for worker in workers if worker in alive], alive)

    def _model(self, job: JobView, workers: Sequence[str], alive: Alive, now: float) -> Model | None:
        """What is known or expected of the speed of these workers, if anything is."""
        rates = self._rates(job, workers, alive)
        paces = self._paces_by(rates, job, workers, alive)
        if rates is None or not paces:
            return None
        apart = self.breaks.apart(now)
        before = {member.worker: member.last - member.first for member in job.members}
        return arrangement.Model(
            job.record.ests, job.record.min_workers, paces, rates.exchange,
            lambda chosen: lanes.choose(chosen, alive, apart), before,
        )  # fmt: skip

    def lane(self, members: Sequence[records.Member], alive: Alive, now: float) -> records.LaneKind:
        """The lane of a generation of these members."""
        return lanes.choose([member.worker for member in members], alive, self.breaks.apart(now))

    def left_out(
        self, job: JobView, members: Sequence[records.Member], allotted: list[str], alive: Alive, now: float
    ) -> str:
        """Why some that are ready are no members: "" if they are."""
        mine = [member.worker for member in members]
        ready = [w for w in allotted if w not in mine and alive[w].job == job.name and alive[w].state == "ready"]
        spare = [w for w in ready if members and w in self._spare.get(job.name, ())]
        paces = self._paces(job, ready, alive)
        tight = [w for w in ready if members and paces and not paces[w].most]
        others = [w for w in ready if w not in spare and w not in tight]
        kept = lanes.fitting(mine + others, alive, self.breaks.apart(now))[1]
        return "; ".join(filter(None, [kept, reasons.spare(spare, alive), reasons.tight(tight, alive)]))

    def _keepers(self, job: JobView, alive: Alive, losses: Losses) -> list[str]:
        """Members who survive a loss and cannot go on: in a generation of their own they commit what only they hold."""
        survivors = [m.worker for m in job.members if m.worker in alive and m.worker not in losses]
        survivors = [w for w in survivors if alive[w].job == job.name and alive[w].state in ("ready", "running")]
        held = max((self._told(job, alive, worker) for worker in survivors), default=0)
        return survivors if losses.any and held > job.base[0] else []

    def _nearer(self, job: JobView, alive: Alive, now: float) -> bool:
        """Whether members that use the object store have been able to reach each other for a while."""
        if len(job.members) < 2 or job.plan is None or job.plan.value.lane == "peer":
            return False
        lane = self.lane(job.members, alive, now)
        stable = self.observed.since(f"lane {job.name}", (job.generation, lane), now)
        return lane == "peer" and stable >= LANE_SECONDS

    def _hands_over(self, job: JobView, staying: list[str], alive: Alive, now: float) -> bool:
        """Whether only a member that goes holds the newest state: it commits it under this generation first."""
        held = {m.worker: self._told(job, alive, m.worker) for m in job.members if m.worker in alive}
        safe = max([job.base[0], *(step for worker, step in held.items() if worker in staying)])
        # Members that run this generation have its state in common, whatever they have told of it yet. Among peers they
        # have only when those who were behind have been given it: when one who stays has made a step.
        told = (alive[worker].progress for worker in staying if worker in alive)
        given = any(progress is not None and progress.generation == job.generation for progress in told)
        common = given or job.plan is None or job.plan.value.lane != "peer"
        apart = [w for w in held if not common or alive[w].state != "running" or alive[w].generation < job.generation]
        # Who still runs an older generation is in the middle of a step, and will hold more than it has told of.
        ahead = {w: held[w] + (alive[w].state == "running" and 0 < alive[w].generation < job.generation) for w in apart}
        late = any(step > safe for worker, step in ahead.items() if worker not in staying)
        waited = self.observed.since(f"hand-over {job.name}", (job.generation, safe), now) if late else 0.0
        return late and waited < self.claim_patience

    def _let_go(self, job: JobView, alive: Alive, now: float) -> bool:
        """Whether members that all stop, because the job pauses or because they leave, are done."""
        here = [alive[m.worker] for m in job.members if m.worker in alive]
        if job.claims or any(record.state == "running" for record in here):
            return False
        unsaved = any(record.progress and record.progress.step > job.base[0] for record in here)
        waited = self.observed.since(f"pause {job.name}", (job.generation, job.base, unsaved), now)
        return not unsaved or waited > self.claim_patience

    def _can_serve(self, job: JobView, view: View, record: records.WorkerRecord, now: float) -> bool:
        if self.observed.passed_over(job.name, record.id, self.claim_patience, now):
            return False
        if record.job != job.name or record.id in job.reports:
            return False
        if job.slot_of(record.id) is not None:
            return record.state in ("ready", "running")
        # Not one that is in the middle of an older generation's step: all others would have to wait for its end.
        return self.breaks.cleared(job, record, view.workers[record.id].kv.mod_revision)


def _stopping(job: JobView, losses: Losses, allotted: list[str]) -> bool:
    """Whether all members stop for good, as the job pauses, they leave or others need them, and none of them failed."""
    going = not any(member.worker in allotted for member in job.members)
    return bool(job.members) and (going or job.desired == "paused") and losses.gently


def _reread(job: JobView) -> bool:
    """Whether the head turned out damaged after the members claimed, so that they must agree anew."""
    damage, plan = job.damage, job.plan
    return bool(job.damaged and damage and plan and damage.kv.mod_revision > plan.kv.mod_revision)
