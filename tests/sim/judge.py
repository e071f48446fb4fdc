"""The judge: sees every change of the stores as it is applied, and every step, and knows what must never happen.

It reads what is true (the memory behind the lying stores), never through the product's eyes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from easyscale.coordinator import keys, records
from easyscale.pipeline import messages
from easyscale.storage import packs
from easyscale.storage.blobs import blob_key
from easyscale.storage.commits import Marker
from easyscale.storage.manifests import Manifest, decode_manifest

if TYPE_CHECKING:
    from easyscale.coordinator.kv import KeyValue

    from .actors import RunnerProcess
    from .hub import Process
    from .world import SimJob, World

Keys = dict[str, "KeyValue"]


class Judge:
    """Safety. The first violation is kept, in a sentence, and ends the seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violation = ""
        self._claims: dict[str, records.Claim] = {}
        self.reached: dict[str, int] = {}
        self.over = 0
        """How many jobs have ended."""
        self.held: dict[str, int] = {}
        """Step of the state that each runner holds."""
        self.again: dict[tuple[str, int], int] = {}
        """Steps that each generation makes again, by job and generation."""
        self._starts: dict[tuple[str, int], Any] = {}
        self._stepped_in: dict[tuple[str, int], int] = {}

    def check(self, holds: object, sentence: str) -> None:
        """Something must hold."""
        if not holds and not self.violation:
            self.violation = sentence
            self.world.note(f"VIOLATION: {sentence}")

    def lease(self, process: Process) -> None:
        """Whoever believes in its lease must not believe in it longer than the store does."""
        keeper = getattr(getattr(process.owner, "it", None), "_keeper", None)
        held = keeper.lease if keeper is not None else None
        if held is not None:
            ends, believed = self.world.kv.inner.deadlines.get(held.id, float("inf")), held.deadline - process.clock
            self.check(
                believed <= ends + 1e-6,
                f"{process.name} believes in its lease until {believed:.4f}, the store until {ends:.4f}",
            )

    # ---- the training

    def stepped(self, job: SimJob, step: int, value: int, who: str) -> None:
        """A replica holds this state now."""
        self.world.note(f"holds {step}", job=job.name)
        expected = job.expected[step] if step < len(job.expected) else None
        self.check(
            value == expected or (job.flips is not None and job.flips.all),  # then, what is committed is looked at
            f"{who} holds a state of step {step} that an undisturbed run does not have",
        )
        self.held[who] = step
        self.reached[job.name] = max(self.reached.get(job.name, 0), step)

    def started(self, runner: RunnerProcess, run: messages.Run) -> None:
        """A member is told to run. While somebody lives who knows better, no more than the broken step is lost."""
        name, world = runner.job, self.world
        common = run.step, run.members, run.lane, run.held, run.addresses
        known = self._starts.setdefault((name, run.generation), common)
        self.check(known == common, f"members of generation {run.generation} of {name} begin apart: {known}, {common}")
        flips = world.flips_of(name)
        if flips is not None:
            flips.started(run)
            if flips.upset:
                return
        again = self.again[name, run.generation] = max(0, self.reached.get(name, 0) - run.step)
        if not world.losses or again < 2:
            return
        wiser = [
            r.name for r in world.runners
            if r.process.alive and r.job == name and not r.agent.owner.left and not r.disturbed
            and self.held.get(r.name, 0) > run.step + 1
        ]  # fmt: skip
        self.check(
            not wiser,
            f"generation {run.generation} of {name} begins with step {run.step}, though {wiser} hold newer states",
        )

    def said(self, runner: RunnerProcess, message: Any) -> None:
        """A runner says something to its agent."""
        if isinstance(message, messages.Stepped) and self.world.graceful:
            step, generation = message.progress.step, message.progress.generation
            first = self._stepped_in.setdefault((runner.job, step), generation)
            self.check(
                first == generation,
                f"step {step} of {runner.job} was made in generation {first} and again in {generation}, "
                "although nobody was lost",
            )
        flips = self.world.flips_of(runner.job)
        if isinstance(message, messages.Computing) and flips is not None:
            flips.said(runner, message)
        if isinstance(message, messages.Stepped) and flips is not None and runner.run is not None:
            flips.stepped(runner.run, message.progress.step)
        if isinstance(message, messages.Failed):
            self.world.note(f"says it failed: {message.cause}", message=message.message, trace=message.traceback)
            planned = message.cause == "raised" and "UserError" in message.message
            hurt = message.cause == "died" and self.world.hurt
            guilty = message.cause == "corrupt" and flips is not None and flips.blamed(runner)
            self.check(
                planned or hurt or guilty or message.cause == "preempted",
                f"{runner.name} failed for no reason of the story's: {message.cause}: {message.message}",
            )

    def settled(self, wrong: tuple[int, ...]) -> None:
        """Replicas differed, and the runner at work knows who is right."""
        runner = next((r for r in self.world.runners if r.process is self.world.hub.process), None)
        flips = self.world.flips_of(runner.job) if runner is not None else None
        if runner is not None and flips is not None:
            flips.settled(runner, wrong)

    # ---- the object store

    def stored(self, key: str, data: bytes) -> None:
        """An object is there from now on. A marker must not be, before all that it stands for is."""
        if "/commits/" not in key:
            return
        name = key.split("/")[1]
        marker = msgspec.json.decode(data, type=Marker)
        self.check(self._present(blob_key(marker.manifest)), f"marker {key} was there before its manifest")
        manifest = self._manifest(marker.manifest)
        if manifest is None:
            return
        for pack in manifest.packs:
            self.check(self._present(blob_key(pack.digest)), f"marker {key} was there before its pack {pack.digest}")
        self.check(
            manifest.history is None or self._present(blob_key(manifest.history)),
            f"marker {key} was there before its history",
        )
        self._check_state(self.world.jobs[name], manifest)

    def _present(self, key: str) -> bool:
        return key in self.world.client.objects

    def _manifest(self, digest: str) -> Manifest | None:
        data = self.world.client.intact.get(blob_key(digest))
        return decode_manifest(data) if data is not None else None

    def _check_state(self, job: SimJob, manifest: Manifest) -> None:
        value = None
        for pack in manifest.packs:
            data = self.world.client.intact.get(blob_key(pack.digest))
            found = packs.decode(data) if data is not None else {}
            if "model/parameters/w" in found:
                value = int(found["model/parameters/w"])
        expected = job.expected[manifest.step]
        excused = job.flips is not None and job.flips.excused
        self.check(excused or value == expected, f"a wrong state was committed for step {manifest.step} of {job.name}")

    # ---- the key-value store

    def applied(self, before: Keys, after: Keys, author: Process | None) -> None:
        """A transaction was applied, or a lease ended."""
        for key in [key for key, kv in after.items() if before.get(key) is not kv]:
            if not key.startswith(keys.JOBS):
                continue
            name, _, rest = key.removeprefix(keys.JOBS).partition("/")
            job = self.world.jobs.get(name)
            if job is None:
                continue
            if rest == "plan":
                self._planned(job, before, after, author)
            elif rest == "head":
                self._published(job, before, after, author)
            elif rest.startswith("claims/"):
                self._claimed(job, rest, after[key], before.get(key), after)
            elif rest.startswith("reports/"):
                report = records.decode(after[key].value, records.Report)
                self.world.note(f"report {report.cause} of {report.worker} at step {report.step}", job=name)
        self._count(before, after, author)

    def _leads(self, before: Keys, author: Process | None, what: str) -> None:
        leader = before.get(keys.LEADER)
        ids = {c.id for c in self.world.coordinators if c.process is author}
        self.check(leader and leader.value.decode() in ids, f"{what} was written by a coordinator that does not lead")

    def _planned(self, job: SimJob, before: Keys, after: Keys, author: Process | None) -> None:
        key = keys.plan(job.name)
        plan = records.decode(after[key].value, records.Plan)
        old = records.decode(before[key].value, records.Plan).generation if key in before else 0
        who = " ".join(f"{m.worker}[{m.first}:{m.last}]" for m in plan.members)
        self.world.note(f"generation {plan.generation}: {who or 'nobody'} ({plan.cause})", job=job.name)
        self.check(plan.generation == old + 1, f"generation {old} of {job.name} was followed by {plan.generation}")
        self._leads(before, author, f"generation {plan.generation} of {job.name}")
        status = before.get(keys.status(job.name))
        kept = records.decode(status.value, records.Status).quarantined if status is not None else {}
        wrong = [m.worker for m in plan.members if any(f"(worker {m.worker.rsplit('-', 1)[0]})" in d for d in kept)]
        self.check(not wrong, f"generation {plan.generation} of {job.name} has members in quarantine: {wrong}")
        self.world.on_plan()
        ests = [est for m in plan.members for est in range(m.first, m.last)]
        self.check(not ests or ests == list(range(job.spec.ests)), f"a plan of {job.name} leaves ESTs out")

    def _published(self, job: SimJob, before: Keys, after: Keys, author: Process | None) -> None:
        name, client = job.name, self.world.client
        head = records.decode(after[keys.head(name)].value, records.Head)
        old = records.decode(before[keys.head(name)].value, records.Head) if keys.head(name) in before else None
        self.world.note(f"head {head.step} (generation {head.generation})", job=name)
        plan = records.decode(before[keys.plan(name)].value, records.Plan)
        me = author.name if author else ""
        self.check(head.generation == plan.generation, f"a fenced holder ({me}) published step {head.step} of {name}")
        slot = plan.slot_of(me)
        claim = before.get(keys.claim(name, plan.generation, slot)) if slot is not None else None
        self.check(
            claim and records.decode(claim.value, records.Claim).worker == me,
            f"{me} published step {head.step} of {name} without a claim in generation {plan.generation}",
        )
        manifest = self._manifest(head.manifest)
        self.check(manifest, f"the head of {name} names a manifest that was never stored")
        if manifest is None:
            return
        parent, at = (old.manifest, old.step) if old else (None, 0)
        damage = self._damage(name, before)
        if damage is not None and old is not None and damage.manifest == old.manifest:
            hurt = any(client.damaged(key) for key in self._objects_of(old.manifest)) or self.world.hurt
            self.check(hurt, f"the head {old.step} of {name} was given up, and nothing is wrong with it")
            parent, at = damage.usable_manifest, damage.usable_step
        self.check(head.step > at, f"the head of {name} went from step {at} to step {head.step}")
        self.check(manifest.parent == parent, f"the chain of {name} is broken at step {head.step}")
        self.check(manifest.step == head.step, f"head {head.step} of {name} names step {manifest.step}")
        missing = [key for key in self._objects_of(head.manifest) if not self._present(key)]
        self.check(not missing, f"head {head.step} of {name} was published without {missing}")
        self._check_state(job, manifest)
        self._check_history(job, manifest, at)

    def _damage(self, name: str, before: Keys) -> records.Damage | None:
        kv = before.get(keys.damage(name))
        return records.decode(kv.value, records.Damage) if kv else None

    def _objects_of(self, digest: str) -> list[str]:
        manifest = self._manifest(digest)
        blobs = [pack.digest for pack in manifest.packs] if manifest else []
        return [blob_key(blob) for blob in [digest, *blobs]]

    def _check_history(self, job: SimJob, manifest: Manifest, after: int) -> None:
        data = self.world.client.intact.get(blob_key(manifest.history or ""), b"")
        lines = [msgspec.json.decode(line) for line in data.splitlines()]
        steps = [line["step"] for line in lines]
        wanted = list(range(after, manifest.step))
        self.check(
            steps == wanted,
            f"the history of {job.name} up to step {manifest.step} holds the steps {steps} instead of {wanted}: "
            "samples are lost or doubled",
        )
        for line in lines:
            self.check(
                line["ests"] == list(range(job.spec.ests)),
                f"step {line['step']} of {job.name} was made with the ESTs {line['ests']}",
            )

    def _claimed(self, job: SimJob, rest: str, new: KeyValue, old: KeyValue | None, after: Keys) -> None:
        claim = records.decode(new.value, records.Claim)
        self.world.note(f"claim {rest} by {claim.worker}, holds {claim.held}", job=job.name)
        self.check(old is None, f"claim {rest} of {job.name} was changed")
        known = self._claims.setdefault(f"{job.name}/{rest}", claim)
        self.check(known == claim, f"claim {rest} of {job.name} was made a second time, and another one")
        generation, slot = (int(part) for part in rest.removeprefix("claims/").split("/"))
        plan = records.decode(after[keys.plan(job.name)].value, records.Plan)
        self.check(generation == plan.generation, f"claim {rest} of {job.name} came after its generation")
        self.check(
            slot < len(plan.members) and plan.members[slot].worker == claim.worker,
            f"claim {rest} of {job.name} is not {claim.worker}'s",
        )

    def _count(self, before: Keys, after: Keys, author: Process | None) -> None:
        """Every attempt that ended is counted once: in the transaction that removes what speaks of it."""
        self._taken_back(before, after, author)
        for name in self.world.jobs:
            old, new = before.get(keys.status(name)), after.get(keys.status(name))
            prefix = f"{keys.job(name)}reports/"
            gone = [key for key in before if key.startswith(prefix) and key not in after]
            if new is old or new is None:
                decided = author is not None and any(c.process is author for c in self.world.coordinators)
                removed = [key for key in gone if decided]
                over = old is not None and records.decode(old.value, records.Status).state in records.TERMINAL
                self.check(not removed or over, f"{removed} were removed and not counted")
                continue
            self._leads(before, author, f"the status of {name}")
            was = records.decode(old.value, records.Status) if old else records.Status()
            now = records.decode(new.value, records.Status)
            if now.state != was.state:
                self.world.note(f"state {now.state} {now.reason}", job=name)
            self.over += (now.state in records.TERMINAL) - (was.state in records.TERMINAL)
            counted = sum(now.attempts.values()) - sum(was.attempts.values())
            if counted:
                self.world.note(f"attempts {now.attempts}", job=name)
            over = was.state in records.TERMINAL or before.get(keys.desired(name), new).value == b"cancelled"
            reported = {records.decode(before[key].value, records.Report).worker for key in gone}
            taken = {
                key.removeprefix(keys.ASSIGNED)
                for key in before
                if key.startswith(keys.ASSIGNED) and key not in after and before[key].value.decode() == name
            }
            lost = self._dropped(name, before, after) | taken
            self.check(
                counted <= len(reported | lost),
                f"{counted} attempts of {name} were counted where {sorted(reported | lost)} had ended",
            )
            self.check(
                over or counted >= len(reported | taken),
                f"{sorted(reported | taken)} had ended and what told of it was removed, but {counted} attempts counted",
            )
            self.check(
                all(now.attempts.get(cause, 0) >= count for cause, count in was.attempts.items()),
                f"attempts of {name} were forgotten",
            )

    def _taken_back(self, before: Keys, after: Keys, author: Process | None) -> None:
        """An assignment of a worker that is gone speaks of an attempt: only with its count does it go."""
        if not any(coordinator.process is author for coordinator in self.world.coordinators):
            return  # a worker's own farewell
        for key in [key for key in before if key.startswith(keys.ASSIGNED) and key not in after]:
            worker, name = key.removeprefix(keys.ASSIGNED), before[key].value.decode()
            status = before.get(keys.status(name))
            over = status is not None and records.decode(status.value, records.Status).state in records.TERMINAL
            changed = any(before.get(k) is not after.get(k) for k in (keys.status(job) for job in self.world.jobs))
            wish = before.get(keys.desired(name))
            self.check(
                keys.worker(worker) in before or over or changed or (wish is not None and wish.value == b"cancelled"),
                f"{worker}, assigned to {name}, is gone, and nobody counted it",
            )

    def _dropped(self, name: str, before: Keys, after: Keys) -> set[str]:
        """Members whose generation ends in this transaction and who are not in the next one."""
        key = keys.plan(name)
        if before.get(key) is after.get(key) or key not in before:
            return set()
        old, new = (records.decode(kv.value, records.Plan) for kv in (before[key], after[key]))
        return {m.worker for m in old.members} - {m.worker for m in new.members}

    def check_attempts(self, job: SimJob, view: Any) -> None:
        """At the end: what the story did to a job is what was counted, where nothing else happened to it."""
        status = view.status.value if view.status else records.Status()
        if self.world.graceful:
            self.check(status.attempts.keys() <= {"preempted"}, f"nobody was lost, and counted were {status.attempts}")
        if self.world.losses:
            ends = sum(count for kind, count in self.world.injected.items() if kind.startswith(("SIGKILL", "SIGSTOP")))
            self.check(
                status.attempts.get("died", 0) <= ends,
                f"{ends} workers and runners were killed or stopped, and counted were {status.attempts}",
            )
        upset = job.flips is not None and job.flips.upset
        again = [steps for (name, _), steps in self.again.items() if name == job.name]
        if self.world.losses and not upset and all(steps < 2 for steps in again):
            told = [recovery.steps_recomputed for recovery in status.recoveries]
            self.check(max(told, default=0) < 2, f"no step but the broken ones was made again, and told is {told}")
        if job.poison is not None:
            # Members of one generation may die together: each death is an attempt, all of them one try of the step.
            # A policy may have taken workers away before.
            died = status.attempts.get("died", 0)
            self.check(
                status.attempts.keys() <= {"died", "preempted"} and job.spec.retries.died < died <= job.killed,
                f"step {job.poison} of {job.name} killed {job.killed} runners, counted were {status.attempts}",
            )
            self.check(
                status.streak == {"died": job.spec.retries.died + 1},
                f"{job.name} was to be tried {job.spec.retries.died + 1} times, counted were {status.streak}",
            )
        elif job.raised and view.state == "failed":
            self.check(
                status.attempts.keys() == {"raised"}
                and job.spec.retries.raised < status.attempts["raised"] <= job.raised,
                f"{job.name} raised {job.raised} times, counted were {status.attempts}",
            )
        elif job.raised:
            self.check(
                status.attempts == {"raised": job.raised},
                f"{job.name} raised {job.raised} times, counted were {status.attempts}",
            )
