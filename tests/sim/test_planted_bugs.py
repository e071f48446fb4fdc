"""The opposite of the other tests: mistakes that are easy to make are planted in the product, one at a time, and the
simulation must find each of them within the seeds of a CI run. One that it does not find shows what it cannot see."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import tally
from easyscale.coordinator import attempts, breaks, coordinator, keys, lease, membership, quarantine, records, views
from easyscale.coordinator.transactions import apply
from easyscale.errors import CorruptError
from easyscale.pipeline import (
    agent,
    committer,
    lanes,
    messages,
    publishing,
    replicas,
    runner,
    runner_state,
    session,
    worker,
)
from easyscale.storage import blobs, commits, transfers, trees

from sim import peers
from sim.scenario import simulate

Patch = Callable[[Any, str, Any], None]

CI_SEEDS = 500


def compares_without(patch: Patch, keep: Callable[[Any], bool]) -> None:
    real = publishing._publication

    def publication(*arguments: Any) -> Any:
        txn = real(*arguments)
        return txn._replace(compares=tuple(compare for compare in txn.compares if keep(compare)))

    patch(publishing, "_publication", publication)


def no_fencing_comparison(patch: Patch) -> None:
    compares_without(patch, lambda compare: compare.key.endswith("/head"))


def generation_not_compared(patch: Patch) -> None:
    compares_without(patch, lambda compare: not compare.key.endswith("/plan"))


def claim_not_compared(patch: Patch) -> None:
    compares_without(patch, lambda compare: "/claims/" not in compare.key)


def head_not_compared(patch: Patch) -> None:
    compares_without(patch, lambda compare: not compare.key.endswith("/head"))


def lease_counted_from_after_the_renewal(patch: Patch) -> None:
    real = lease.LeaseKeeper._renew

    def renew(self: Any, held: Any, sent: float) -> None:
        real(self, held, sent)
        if self._lease is not None and self._lease.sent == sent:
            self._lease = held.renewed(self._clock())

    patch(lease.LeaseKeeper, "_renew", renew)


def marker_before_blobs(patch: Patch) -> None:
    real, put, late = commits.mark, commits.put_blob, []

    def put_later(store: Any, *pieces: Any, **options: Any) -> str:
        late.append(pieces)
        return blobs.blob_digest(*pieces)

    def mark(store: Any, manifest: Any, digest: str) -> None:
        real(store, manifest, digest)
        while late:
            put(store, *late.pop())

    for module in (commits, transfers):
        patch(module, "put_blob", put_later)
    patch(commits, "mark", mark)


def head_by_list(patch: Patch) -> None:
    real = runner.Runner._load

    def load(self: Any, run: Any) -> Any:
        listed = sorted(self._store.list(f"jobs/{self._committer.job}/commits/"))
        marker = (
            commits.read_marker(self._store, self._committer.job, int(listed[-1].split("/")[-1])) if listed else None
        )
        if marker is not None and self._engine.step != run.step:
            base = messages.Base(step=marker.step, manifest=marker.manifest)
            run = msgspec.structs.replace(run, base=base)
        return real(self, run)

    patch(runner.Runner, "_load", load)


def worker_name_without_nonce(patch: Patch) -> None:
    patch(worker, "boot_id", lambda name: name)


def attempts_counted_at_failure_only(patch: Patch) -> None:
    def ended(job: Any, assigned: Any, elsewhere: Any, lost: Any, *more: Any) -> Any:
        return real(job, {}, elsewhere, {w: cause for w, cause in lost.items() if w in job.reports}, *more)

    real = attempts.ended
    patch(attempts, "ended", ended)


def deaths_while_preparing_are_not_counted(patch: Patch) -> None:
    def ended(job: Any, assigned: Any, *more: Any) -> Any:
        return real(job, {w: entry for w, entry in assigned.items() if job.slot_of(w) is not None}, *more)

    real = attempts.ended
    patch(attempts, "ended", ended)


def a_dead_member_is_counted_for_its_assignment_too(patch: Patch) -> None:
    def ended(job: Any, assigned: Any, *more: Any) -> Any:
        return real(job, {w: entry for w, entry in assigned.items() if job.slot_of(w) is None}, *more)

    real = attempts.ended
    patch(attempts, "ended", ended)


def who_leaves_keeps_its_assignment(patch: Patch) -> None:
    def farewell(kv: Any, txn: Any) -> Any:
        kept = tuple(o for o in txn.operations if not o.key.startswith(keys.ASSIGNED))
        return apply(kv, txn._replace(operations=kept))

    patch(worker, "apply", farewell)


def history_of_the_last_commit_only(patch: Patch) -> None:
    patch(committer, "KEPT_BASES", 1)
    patch(committer.Committer, "_lines", history_as_far_as_known)


def history_as_far_as_known(self: Any, after: int, upto: int) -> bytes:
    return b"".join(line + b"\n" for step, line in sorted(self._history.items()) if after < step <= upto)


def a_deposed_coordinator_acts(patch: Patch) -> None:
    def unguarded(kv: Any, txn: Any) -> Any:
        return apply(kv, txn._replace(compares=tuple(c for c in txn.compares if c.field != "create")))

    patch(coordinator, "apply", unguarded)


def a_member_starts_with_what_it_holds(patch: Patch) -> None:
    real = runner.Runner._load

    def load(self: Any, run: Any) -> Any:
        return None if 0 < self._engine.step < run.step else real(self, run)

    patch(runner.Runner, "_load", load)


def the_start_is_the_oldest_state(patch: Patch) -> None:
    def start_step(self: Any) -> int | None:
        if not self.members or len(self.claims) < len(self.members):
            return None
        return max(self.base[0], min(entry.value.held for entry in self.claims.values()))

    patch(views.JobView, "start_step", start_step)


def a_pause_lets_go_before_the_commit(patch: Patch) -> None:
    def pause(self: Any, runner: Any, job: Any, slot: int, claimed: bool) -> Any:
        yield from self._release(job)

    patch(agent.Agent, "_pause", pause)


def est_order_by_arrival(patch: Patch) -> None:
    real = lanes.StoreLane.poll

    def poll(self: Any, step: int) -> Any:
        return list(self._received.values()) if real(self, step) is not None else None

    patch(lanes.StoreLane, "poll", poll)


def claim_twice_per_generation(patch: Patch) -> None:
    patch(agent.Agent, "_may_claim", lambda self, job, slot: slot is not None and not job.over)


def samples_doubled_at_a_commit(patch: Patch) -> None:
    def lines(self: Any, after: int, upto: int) -> bytes:
        return b"".join(line + b"\n" for step, line in sorted(self._history.items()) if after <= step <= upto)

    patch(committer.Committer, "_lines", lines)


def snapshot_of_a_later_step(patch: Patch) -> None:
    patch(trees, "snapshot", lambda tensors, reuse=None: dict(tensors))


def a_commit_is_a_sign_of_life(patch: Patch) -> None:
    real = runner_state.RunnerState.hear

    def hear(self: Any, message: Any, now: float) -> None:
        if isinstance(message, messages.Publish):
            self._computing = None
        real(self, message, now)

    patch(runner_state.RunnerState, "hear", hear)


def partials_without_a_digest(patch: Patch) -> None:
    real = lanes.unpack

    def unpack(data: bytes) -> Any:
        with contextlib.suppress(CorruptError):
            return real(data)
        try:
            length = int.from_bytes(data[32:40], "little")
            return msgspec.json.decode(data[40 : 40 + length], type=lanes.Control), data[40 + length :]
        except msgspec.DecodeError as error:
            raise CorruptError("damaged") from error

    patch(lanes, "unpack", unpack)


def accusations_are_never_forgotten(patch: Patch) -> None:
    real = breaks.Breaks.cleared

    def cleared(self: Any, job: Any, record: Any, revision: int) -> bool:
        return (job.name, record.id) not in self._accused and real(self, job, record, revision)

    patch(breaks.Breaks, "cleared", cleared)


def an_accused_member_is_counted_at_once_and_again_when_it_ends(patch: Patch) -> None:
    real = membership.Membership.losses

    def losses(self: Any, *arguments: Any) -> Any:
        found = real(self, *arguments)
        return dataclasses.replace(found, ended=found.ended | dict.fromkeys(found.accused, "died"), accused={})

    patch(membership.Membership, "losses", losses)


def members_start_before_all_have_claimed(patch: Patch) -> None:
    def start(self: Any, runner: Any, job: Any, slot: int) -> Any:
        missing = [s for s in range(len(job.members)) if s not in job.claims]
        if job.plan.value.lane == "peer" and 0 < len(missing) < len(job.members):
            absent = {(job.generation, s): views.Entry(job.plan.kv, records.Claim(worker="", held=0)) for s in missing}
            job = dataclasses.replace(job, all_claims=job.all_claims | absent)
        return real(self, runner, job, slot)

    real = agent.Agent._start
    patch(agent.Agent, "_start", start)


def the_wrong_member_gives_its_state(patch: Patch) -> None:
    real = peers.PeerLane.give

    def give(self: Any, slots: Any, parcel: Any) -> bool:
        return real(self, slots, parcel._replace(state=self.runner.it._engine.state() | {"step": self.run.step - 1}))

    patch(peers.PeerLane, "give", give)


def a_given_state_comes_without_its_history(patch: Patch) -> None:
    patch(committer.Committer, "adopt", lambda self, history: self.forget())


def the_majority_counts_without_recomputing(patch: Patch) -> None:
    def replay(self: Any, until: int) -> Any:
        self._restored = True
        yield from ()
        return ()

    patch(replicas.Replicas, "_replay", replay)


def samples_of_partials_are_not_compared(patch: Patch) -> None:
    real = replicas.Replicas._replay

    def replay(self: Any, until: int) -> Any:
        yield from real(self, until)
        return ()

    patch(replicas.Replicas, "_replay", replay)


def one_in_quarantine_is_planned_again(patch: Patch) -> None:
    patch(quarantine, "reason", lambda record, job: "")


def states_are_not_compared_before_a_commit(patch: Patch) -> None:
    patch(replicas.Replicas, "compare_now", lambda self: iter(()))


def the_first_step_of_a_generation_is_not_compared(patch: Patch) -> None:
    real = session.Session.checks
    patch(session.Session, "checks", lambda self, step: step != self.run.step and real(self, step))


def what_an_audit_finds_is_ignored(patch: Patch) -> None:
    patch(replicas.Replicas, "settle_audit", lambda self, controls: iter(()))


BUGS: dict[Callable[[Patch], None], int] = {
    no_fencing_comparison: 14,
    generation_not_compared: 36,
    claim_not_compared: 91,
    head_not_compared: 398,
    lease_counted_from_after_the_renewal: 0,
    marker_before_blobs: 0,
    head_by_list: 21,
    worker_name_without_nonce: 112,
    attempts_counted_at_failure_only: 15,
    a_deposed_coordinator_acts: 91,
    a_member_starts_with_what_it_holds: 18,
    the_start_is_the_oldest_state: 5,
    a_pause_lets_go_before_the_commit: 255,
    est_order_by_arrival: 5,
    claim_twice_per_generation: 119,
    samples_doubled_at_a_commit: 0,
    snapshot_of_a_later_step: 5,
    a_commit_is_a_sign_of_life: 162,
    partials_without_a_digest: 86,
    deaths_while_preparing_are_not_counted: 173,
    a_dead_member_is_counted_for_its_assignment_too: 33,
    who_leaves_keeps_its_assignment: 51,
    history_of_the_last_commit_only: 65,
    accusations_are_never_forgotten: 124,
    an_accused_member_is_counted_at_once_and_again_when_it_ends: 17,
    members_start_before_all_have_claimed: 0,
    the_wrong_member_gives_its_state: 0,
    a_given_state_comes_without_its_history: 153,
    the_majority_counts_without_recomputing: 3,
    samples_of_partials_are_not_compared: 18,
    one_in_quarantine_is_planned_again: 9,
    states_are_not_compared_before_a_commit: 47,
    the_first_step_of_a_generation_is_not_compared: 31,
    what_an_audit_finds_is_ignored: 40,
}
"""Each with a seed that has found it: tried first, since the tests of a CI run have gone through all of them anyway."""


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch.setattr)
    first = BUGS[plant]
    for seed in [*range(first, CI_SEEDS), *range(first)]:
        outcome = simulate(seed)
        if outcome.violation:
            print(f"{plant.__name__}: found by seed {seed}: {outcome.violation}")
            tally.add("planted", plant.__name__)
            return
    pytest.fail(f"{CI_SEEDS} seeds do not find {plant.__name__}")
