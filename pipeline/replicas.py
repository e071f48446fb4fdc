"""Seeing that the replicas of a generation are equal, and its gradients right; and what is done when they are not.

All members have the same sums, so all do the same: recompute, confer, and come to the same verdict (`integrity.py`).
Whoever is in the wrong raises `WrongReplicaError`; if nobody can tell, all raise `DivergenceError`; the others give up
the generation (`OverError`) and hold the right state. If the exchange breaks before all of them have come to the
verdict, whoever knows of the difference recomputes its state alone (`make_good`): nobody hands on what it doubts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from ..errors import DivergenceError, UnavailableError, WrongReplicaError, listed
from ..storage import sums
from . import integrity, messages
from .protocols import OverError, Wait
from .session import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .protocols import Commits, Lane, Replica
    from .session import Control, Session

log = structlog.get_logger()

RETRY_SECONDS = 0.5
"""Before a store that did not answer is asked again."""

KEPT_SAMPLES = 2000
"""Steps of which everybody's samples of partials are remembered, to tell later who has sent wrong ones."""

ADVICE = (
    "if it happens again on other devices, the code computes something else each time (the clock, unseeded random "
    "numbers, threads of its own); `easyscale retry` goes on from the newest commit"
)


@dataclass(slots=True)
class Replicas:
    """All replicas of a generation, as one of its members sees them.

    Args:
        confer: says something to all between two steps; gives what everybody says, by slot.
        restore: makes the replica hold the state of a commit (or the initial one) older than a step.
    """

    session: Session
    replica: Replica
    lane: Lane
    commits: Commits
    say: Callable[[messages.FromRunner], None]
    restore: Callable[[messages.Base, int], None]
    confer: Callable[..., Generator[Wait, None, list[Control]]]
    holding: Holding = field(default_factory=Holding)
    _doubted: int | None = field(default=None, init=False)
    """A step at which states differ, and it is not settled yet."""
    _base: messages.Base = field(default_factory=messages.Base, init=False)
    """The newest commit then."""
    _restored: bool = field(default=False, init=False)
    _samples: deque[tuple[int, list[bytes]]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES), init=False)

    def watched(self) -> int | None:
        """The EST of mine that is audited in this step, if any."""
        return self.session.audited(self.session.run.slot, self.replica.step)

    def witness(self, control: Control, contribution: Any) -> Control:
        """My record for the step at hand, with all that is to be compared."""
        session, replica = self.session, self.replica
        slot, step = session.run.slot, replica.step
        theirs = session.audited(session.audits(slot), step)
        if session.checks(step):
            control = msgspec.structs.replace(control, **self._state())
        return msgspec.structs.replace(
            control,
            sample=b"" if session.alone else contribution.sample,
            gradient=contribution.watched,
            audit=b"" if theirs is None else replica.gradient_sums(theirs),
        )

    def _state(self) -> dict[str, Any]:
        """What is said of the state where states are compared: so all know, too, from where to recompute it."""
        return {"sums": self.replica.sums(), "base": self.commits.base if self.session.run.slot == 0 else None}

    def compare(self, controls: Sequence[Control]) -> Generator[Wait, None, bool]:
        """What `witness` has prepared, of everybody; whether the state was recomputed: see `settle`."""
        self._samples.append((self.replica.step, [control.sample for control in controls]))
        recomputed = yield from self.settle(controls)
        if not recomputed:  # gradients of a wrong state are others, whoever computed them
            yield from self.settle_audit(controls)
        return recomputed

    def compare_now(self) -> Generator[Wait, None, None]:
        """Before anybody else relies on the state held: in a round of its own."""
        if not self.session.alone:
            yield from self.settle((yield from self.confer(**self._state())))

    def settle(self, controls: Sequence[Control]) -> Generator[Wait, None, bool]:
        """See that all replicas hold the same state; if they do not, all recompute it, and the right ones go on.

        Returns:
            Whether the state was recomputed, so that what was made of the old one is worthless.

        Raises:
            WrongReplicaError, DivergenceError: see the module.
        """
        if len({control.sums for control in controls}) == 1:
            self.holding.own |= bool(controls[0].sums)
            return False
        run, step = self.session.run, self.replica.step
        base = controls[0].base
        assert base is not None, "slot 0 says where to begin"
        self._doubted, self._restored, self._base = step, False, base
        self.say(messages.Computing(what="replay"))
        mine = self.replica.exact_sums()
        controls = yield from self.confer(exact=mine, given=not self.holding.own)
        before, given = [control.exact for control in controls], [c.slot for c in controls if c.given]
        found = integrity.differing(before)
        if not found:
            log.info("replicas.alike", step=step)  # they only look different
            self._settled()
            return False
        log.error("replicas.differ", generation=run.generation, step=step, differing=found[:8], base=base.step)
        blamed = yield from self._replay(step)
        mine = self.replica.exact_sums()
        controls = yield from self.confer(exact=mine, blamed=blamed)
        after = [control.exact for control in controls]
        verdict = integrity.judge(before, after, [control.blamed for control in controls], given)
        self._settled()
        if verdict.right is None or verdict.wrong:
            self.lane.part()  # everybody knows: that some go now is no break
        what = f"the states of {len(controls)} workers differ"
        if verdict.right is None:
            raise DivergenceError(
                f"{what} in {listed(verdict.differing)}, and differ again after each has recomputed them from a commit"
                f": nobody can tell which is right\n  {ADVICE}"
            )
        if run.slot in verdict.wrong:
            was = before[run.slot] if mine == verdict.right else mine
            raise WrongReplicaError(integrity.evidence(step, what, verdict.differing, was, verdict.right))
        if verdict.wrong:
            log.error("replicas.settled", step=step, wrong=verdict.wrong)
            raise OverError
        log.error("replicas.settled", step=step, wrong=(), hint="recomputed; who was wrong cannot be told")
        return True

    def make_good(self) -> Generator[Wait, None, None]:
        """Recompute a state that is in doubt when this generation cannot settle it. Else nothing."""
        step = self._doubted
        if step is None:
            return
        log.error("replicas.unsettled", generation=self.session.run.generation, step=step)
        if not self._restored:
            yield from self._restore(step)
        while self.replica.step < step:
            yield Wait(compute=True)
            self.say(messages.Computing(what="replay"))
            self.commits.record(self.replica.run_local())
        self._settled()
        self.holding.own = False

    def _settled(self) -> None:
        self._doubted, self.holding.own = None, True

    def _restore(self, doubted: int) -> Generator[Wait, None, None]:
        self.say(messages.Waiting())  # for a store that may be away
        while not self._restored:
            try:
                self.restore(self._base, doubted)
                self._restored = True
            except UnavailableError as error:
                log.warning("replicas.unavailable", base=self._base.step, error=str(error))
                yield Wait(RETRY_SECONDS)

    def _replay(self, until: int) -> Generator[Wait, None, tuple[int, ...]]:
        """Compute all ESTs from a commit to this step again; which slots' partials were the first to be others."""
        yield from self._restore(until)
        members, samples = self.session.run.members, dict(self._samples)
        blamed: tuple[int, ...] = ()
        while self.replica.step < until:
            yield Wait(compute=True)
            if self.session.broken:
                raise OverError
            self.say(messages.Computing(what="replay"))
            were = samples.get(self.replica.step)
            parts = [self.replica.compute(range(member.first, member.last)) for member in members]
            if were is not None and not blamed:
                pairs = enumerate(zip(were, parts, strict=True))
                blamed = tuple(slot for slot, (sample, part) in pairs if sample != part.sample)
            self.commits.record(self.replica.apply(parts))  # the losses remembered may be wrong, too
        return blamed

    def settle_audit(self, controls: Sequence[Control]) -> Generator[Wait, None, None]:
        """See that who audited an EST got the gradient that its owner got; if not, all compute it again, and vote.

        Raises:
            WrongReplicaError, DivergenceError: see the module.
        """
        session, step = self.session, self.replica.step
        owners = [session.audits(control.slot) for control in controls]
        pairs = [(auditor.slot, owner) for auditor, owner in zip(controls, owners, strict=True)]
        doubtful = [(a, o) for a, o in pairs if controls[a].audit != controls[o].gradient]
        if not doubtful:
            return
        auditor, owner = doubtful[0]
        est = session.audited(owner, step)
        assert est is not None, "who has sums of a gradient was asked for them"
        log.error("audit.differs", step=step, est=est, owner=owner, auditor=auditor)
        self.say(messages.Computing(what="replay"))
        fresh = yield from self.confer(audit=self.replica.gradient_sums(est))
        said = [(owner, controls[owner].gradient), (auditor, controls[auditor].audit)]
        said += [(control.slot, control.audit) for control in fresh]
        right, wrong = integrity.vote([integrity.Opinion(*opinion) for opinion in said])
        self.lane.part()
        names = self.replica.gradient_names
        found = sums.differing([theirs for _, theirs in said], names)
        what = f"the gradient of EST {est} was computed with different results"
        if right is None:
            raise DivergenceError(
                f"{what} in {listed(found)}, and again when all computed it anew: nobody can tell which is right\n"
                f"  {ADVICE}"
            )
        if session.run.slot in wrong:
            mine = next(theirs for slot, theirs in said if slot == session.run.slot and theirs != right)
            opinions = [sums.named(theirs, names) for theirs in (mine, right)]
            raise WrongReplicaError(integrity.evidence(step, what, found, *opinions))
        log.error("audit.settled", step=step, est=est, wrong=wrong)
        raise OverError
