"""An agent in front of a hand-drawn key-value store: what it does about each picture is applied at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easyscale.coordinator import keys
from easyscale.pipeline import messages
from easyscale.pipeline.actions import Action, Send, Start, Write
from easyscale.pipeline.agent import Agent
from pictures import Board, worker_record

if TYPE_CHECKING:
    from easyscale.coordinator.transactions import Outcome

GRACE = 25.0
FLOOR = 1.0
READY = messages.Ready(determinism="class", description={"torch": "2"}, probe="bits")


class Desk(Board):
    """An agent "me" before a board. Its transactions are applied unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent(worker_record("me"), hang_floor=FLOOR, grace=GRACE)
        self.lease = 0
        self.outcome: Outcome = "yes"

    def hold_lease(self) -> None:
        self.lease = self.kv.grant(1e6)
        self.agent.on_lease(self.lease)

    def lose_lease(self) -> None:
        self.kv.revoke(self.lease)
        self.agent.on_lease(0)

    def assign(self, job: str | None) -> None:
        if job is None:
            self.delete(keys.assigned("me"))
        else:
            self.put(keys.assigned("me"), job)

    def act(self, after: float = 0.0) -> list[Action]:
        """One round; all actions but the record's."""
        self.now += after
        view = self.view()
        entry = view.assigned.get("me")
        assigned = entry.value if entry else None
        name = self.agent.wanted_job(assigned)
        done: list[Action] = []
        for action in self.agent.decide(assigned, self.look(name) if name else None, self.now):
            if isinstance(action, Write):
                self._write(action)
            if not (isinstance(action, Write) and action.txn.tag == "record"):
                done.append(action)
        return done

    def _write(self, action: Write) -> None:
        """Outcome `unknown` is the lost answer to a write that was made."""
        outcome = self.outcome
        if outcome != "no" and not self.kv.txn(action.txn.compares, action.txn.operations).succeeded:
            outcome = "no"
        self.agent.on_outcome(action.txn, outcome)

    def tell(self, message: messages.FromRunner) -> None:
        """The runner says something."""
        self.agent.on_message(message, self.now)

    # ---- getting somewhere

    def prepared(self, held: int = 0) -> None:
        """A runner that is ready for the job "job"."""
        self.hold_lease()
        self.job()
        self.assign("job")
        self.probe(torch="2")
        (start,) = self.act()
        assert isinstance(start, Start)
        self.tell(READY)
        if held:
            self.tell(messages.Idle(generation=0, held=held, reason="yield"))
        assert self.act() == []

    def running(self, *others: str, held: int = 0) -> None:
        """The runner runs generation 1 as slot 0; the others have claimed too."""
        self.prepared(held)
        self.plan(1, "me", *others)
        self.act()
        for slot in range(1, 1 + len(others)):
            self.claim(slot, held)
        (send,) = self.act()
        assert isinstance(send, Send)
        assert isinstance(send.message, messages.Run)

    def wrote(self, actions: list[Action]) -> list[str]:
        return [action.txn.tag for action in actions if isinstance(action, Write)]

    def mine(self) -> dict[tuple[int, int], int]:
        """My claims: (generation, slot) -> held."""
        claims = self.look("job").all_claims
        return {at: entry.value.held for at, entry in claims.items() if entry.value.worker == "me"}


def sent(actions: list[Action]) -> list[messages.ToRunner]:
    return [action.message for action in actions if isinstance(action, Send)]
