"""Stories of a cluster under our policy, as transcripts that are kept in `stories`: who had how many devices when.

A transcript has a line for each moment at which something happened: seconds, what, and the devices of every job then
(`-`: it waits; `.`: it is not there). They come from the simulated cluster, so that what a change of the policy
changes can be read. If it is meant:

    make stories

writes them anew, and `git diff` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from easyscale.coordinator.scheduling.jobs import NOTHING, Rates, Shape
from easyscale.coordinator.scheduling.market import Market
from easyscale.coordinator.scheduling.policy import Costs
from easyscale.coordinator.simulator.engine import Ends, Simulation
from easyscale.coordinator.simulator.submissions import Reclaim, Submission

if TYPE_CHECKING:
    from easyscale.coordinator.scheduling.jobs import Devices
    from easyscale.coordinator.scheduling.policy import Policy
    from easyscale.coordinator.simulator.engine import Event

FOLDER = Path(__file__).parent / "stories"
GAP = "  "
OURS = Market()


def job(
    name: str,
    at: float = 0.0,
    ests: int = 4,
    steps: float = 100.0,
    est: dict[str, float] | None = None,
    least: int = 1,
    most: int | None = None,
    **more: object,
) -> Submission:
    """One whose EST takes a second on a `gpu`."""
    shape = Shape(Rates.of(est or {"gpu": 1.0}), ests, least, most or ests)
    return Submission(name, at, shape, steps, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Story:
    """What is there and what happens. `about`: what there is to see."""

    about: str
    devices: dict[str, int]
    jobs: list[Submission]
    reclaims: tuple[Reclaim, ...] = ()
    policy: Policy = OURS


STORIES = {
    "a_job_arrives_on_an_idle_cluster": Story(
        "It has all that makes it faster: with five to seven devices the slowest would have two ESTs all the same.",
        {"gpu": 7},
        [job("only", 10.0, ests=8)],
    ),
    "a_short_job_arrives_beside_a_long_one": Story(
        "It has the devices, since it is done soonest with them, and the long one goes on when it is.",
        {"gpu": 4},
        [job("long", steps=2000), job("short", 300.0, steps=60)],
    ),
    "a_reclaim_takes_two_of_four": Story(
        "The job shrinks, and grows when the owner gives them back.",
        {"gpu": 4},
        [job("only", steps=400)],
        (Reclaim(100.0, "gpu", 2), Reclaim(300.0, "gpu", -2)),
    ),
    "an_owner_takes_all": Story(
        "The job waits, and goes on from where it was.",
        {"gpu": 2},
        [job("only")],
        (Reclaim(50.0, "gpu", 2), Reclaim(250.0, "gpu", -2)),
    ),
    "a_high_priority_arrives_and_ends": Story(
        "However long it takes, it has what it can use; the others have the rest meanwhile, and then all.",
        {"gpu": 6},
        [job("first", ests=6, steps=600), job("urgent", 100.0, steps=500, priority=1)],
    ),
    "a_tenants_job_beside_anothers_many": Story(
        "Its share is half of the devices, however many and however short the others are.",
        {"gpu": 8},
        [job("long", steps=1500, tenant="one"), *(job(f"s{i}", 50.0 + i, 4, 60, tenant="two") for i in range(6))],
    ),
    "a_starving_one_gets_its_turn": Story(
        "Others are always done sooner, until it has waited for half an hour: then it has what it needs.",
        {"gpu": 2},
        [job("big", least=2, ests=2, steps=4000), *(job(f"s{i}", i * 400.0, 2, 390) for i in range(7))],
        policy=Market(patience=1800.0),
    ),
    "each_kind_goes_where_it_makes_a_difference": Story(
        "What is slow for one job is as good as any for the other.",
        {"new": 2, "old": 2},
        [
            job("picky", ests=2, est={"new": 1.0, "old": 8.0}),
            job("patient", ests=2, est={"new": 1.0, "old": 1.2}),
        ],
    ),
}


class Told(Simulation):
    """A simulation that writes down what happens."""

    def __init__(self, story: Story, policy: Policy) -> None:
        super().__init__(story.devices, story.jobs, policy, Costs(), reclaims=story.reclaims)
        self.lines: list[tuple[str, str, dict[str, str]]] = []
        self._happened: list[str] = []
        self._had: dict[str, Devices] = {}

    def _happen(self, event: Event) -> bool:
        happened = super()._happen(event)
        if happened and isinstance(event, Submission):
            self._happened.append(f"{event.name} arrives")
        elif happened and isinstance(event, Ends):
            self._happened.append(f"{event.name} is done")
            if not self._active:  # nobody is left to decide about
                self._tell()
        elif isinstance(event, Reclaim):
            verb = "takes" if event.count > 0 else "gives back"
            self._happened.append(f"the owner {verb} {abs(event.count)} {event.kind}")
        return happened

    def _decide(self) -> None:
        super()._decide()
        self._tell()

    def _tell(self) -> None:
        has = {name: running.given for name, running in self._active.items()}
        if self._happened or has != self._had:
            cells = {name: self._words(given) for name, given in has.items()}
            self.lines.append((f"{self._now:.0f}", "; ".join(self._happened) or "time passes", cells))
        self._happened, self._had = [], has

    def _words(self, given: Devices) -> str:
        if given == NOTHING:
            return "-"
        if len(self._devices) == 1:
            return str(given[0][1])
        return "+".join(f"{count} {kind}" for kind, count in given)


def transcript(story: Story, policy: Policy | None = None) -> str:
    """A story as text. `policy`: another than its own."""
    told = Told(story, policy or story.policy)
    told.run()
    names = [one.name for one in story.jobs]
    rows = [["s", "what", *names]]
    rows += [[when, what, *(cells.get(name, ".") for name in names)] for when, what, cells in told.lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        GAP.join([row[0].rjust(widths[0]), *(c.ljust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
    there = ", ".join(f"{count} {kind}" for kind, count in story.devices.items())
    return "\n".join([story.about, f"Devices: {there}", "", *lines]) + "\n"


def kept(name: str) -> Path:
    """Where a story's transcript lies."""
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    for name, story in STORIES.items():
        kept(name).write_text(transcript(story))
