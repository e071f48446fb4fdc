"""Our scheduler against others on public traces, its plans against optimal ones, and how long it takes to plan.

    python benchmarks/scheduling.py [--traces ../shared/traces] [--only traces alone kinds optimum scale colocation]

All policies are charged the same: what starts, stops, joins and changes cost here (docs/benchmarks.md), and ten times
that where a table says so. `fifo`, `backfill` (EASY) and `srtf` know to the second how long each job will take.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from easyscale.coordinator.scheduling.jobs import Job, Rates, Shape, total
from easyscale.coordinator.scheduling.market import Market
from easyscale.coordinator.scheduling.policies import POLICIES
from easyscale.coordinator.scheduling.policy import Costs
from easyscale.coordinator.scheduling.rigid import Fifo
from easyscale.coordinator.simulator import clusters, traces
from easyscale.coordinator.simulator.engine import Simulation
from easyscale.coordinator.simulator.figures import Figures, figures
from easyscale.coordinator.simulator.submissions import fits
from easyscale.coordinator.simulator.throughputs import Throughputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from easyscale.coordinator.scheduling.policy import Plan, Policy
    from easyscale.coordinator.scheduling.prices import Table
    from easyscale.coordinator.simulator.submissions import Submission

MIXED = {"v100": 32, "p100": 16, "k80": 16}
ALL = ("fifo", "backfill", "srtf", "paper", "easyscale")


class OneAtATime(Fifo):
    """The baseline of the paper's artifact (YARN-CS): one job has the whole cluster, the others wait."""

    name = "one at a time"

    def plan(self, capacity: Mapping[str, int], jobs: Sequence[Job], now: float) -> Plan:
        """See `Policy`."""
        return dict(list(super().plan(capacity, sorted(jobs, key=lambda job: job.arrived)[:1], now).items())[:1])


def simulate(
    devices: Mapping[str, int], jobs: Sequence[Submission], policy: Policy, costs: Costs | None = None, **more
) -> Figures:
    """One policy on one trace."""
    outcome = Simulation(devices, jobs, policy, costs or Costs(), **more).run()
    assert not outcome.refused, outcome.refused
    return figures(policy.name, outcome, devices)


def fitting(jobs: Sequence[Submission], devices: Mapping[str, int], faster: float = 1.0) -> list[Submission]:
    """Jobs that rigid policies can run here, arriving so many times as fast."""
    return [
        replace(job, at=job.at / faster, tenant="")  # the others know no tenants
        for job in jobs
        if fits(job.shape, devices, rigid=True)
    ]


def bounds(jobs: Sequence[Submission]) -> tuple[float, float]:
    """Mean JCT and makespan if every job had the devices that are best for it from its arrival on."""
    alone = [
        job.steps * min(job.shape.step_seconds(((kind, n),)) for kind, _ in job.shape.rates.paces
                        for n in range(1, job.shape.ests + 1))
        for job in jobs
    ]  # fmt: skip
    return fmean(alone), max(job.at + seconds for job, seconds in zip(jobs, alone, strict=True)) - jobs[0].at


def row(*cells: object) -> None:
    """A line of a table."""
    print(
        "| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |", flush=True
    )


def head(*cells: str) -> None:
    """The first lines of one."""
    row(*cells)
    print("|---" * len(cells) + "|")


def compare(title: str, devices: Mapping[str, int], jobs: Sequence[Submission], costs: Costs | None = None) -> None:
    """All policies on one trace, and their ratios to ours."""
    mean, makespan = bounds(jobs)
    print(f"\n{title}: {len(jobs)} jobs; hours; no policy can come below {mean / 3600:.2f} and {makespan / 3600:.1f}\n")
    head("policy", "mean JCT", "ours", "p99 JCT", "ours", "makespan", "ours", "used", "waste", "changes/job", "unfair")
    found = {name: simulate(devices, jobs, POLICIES[name](), costs) for name in ALL}
    ours = found["easyscale"]
    for name, one in found.items():
        row(
            name,
            *(one.jct / 3600, one.jct / ours.jct, one.jct_p99 / 3600, one.jct_p99 / ours.jct_p99),
            *(one.makespan / 3600, one.makespan / ours.makespan),
            *(f"{one.used:.1%}", f"{one.waste:.1%}", one.changes, one.unfair),
        )


def traces_(folder: Path) -> None:
    """Public traces on 64 devices of three kinds, and on Alibaba's cluster."""
    table = Throughputs.read(folder / "gavel_throughputs.json")
    print("\n## Public traces\n\n`ours`: the figure over that of easyscale; above 1, ours is better.")
    rates = table.on(MIXED)
    gavel = traces.jobs(folder / "gavel_msr_seed0.trace", rates)
    for faster in (1, 3, 6, 1000):
        load = f"arriving {faster} times as fast" if faster < 1000 else "all at once"
        compare(f"Gavel's trace, {load}", MIXED, fitting(gavel, MIXED, faster))
    compare("The same, 3 times as fast, costs times ten", MIXED, fitting(gavel, MIXED, 3), Costs().times(10))
    for seed in (0, 1):
        philly = traces.jobs(folder / "philly.csv", rates, seed=seed)[:1000]
        compare(f"Philly, ten times slower, seed {seed}", MIXED, fitting(philly, MIXED, 0.1))
    nodes = clusters.cluster(str(folder / "alibaba2023_nodes.csv"))
    rates = table.on(nodes)
    pods = traces.jobs(folder / "alibaba2023_pods.csv", rates)
    compare("Alibaba's best-effort pods on its cluster", nodes, fitting(pods, nodes))
    philly = traces.jobs(folder / "philly.csv", rates)[:2000]
    compare("Philly, 100 times as fast, on Alibaba's cluster", nodes, fitting(philly, nodes, 100))


def alone(folder: Path) -> None:
    """What the paper compares with."""
    rates = Throughputs.read(folder / "gavel_throughputs.json").on(MIXED)
    jobs = [job for job in traces.made_up(62, rates, seed=1, every=60.0, seconds=600.0) if job.shape.ests <= 16]
    print("\n## The paper's baseline: one job at a time, and changes for nothing\n")
    print(f"{len(jobs)} made-up jobs in about an hour. The paper says 8.3 and 13.2 (mean JCT) of such a comparison.\n")
    head("policy", "mean JCT, min", "over easyscale", "makespan, min", "over easyscale")
    free = Costs(0.0, 0.0, 0.0, 0.0)
    found = [simulate(MIXED, jobs, one, free) for one in (OneAtATime(), *(POLICIES[name]() for name in ALL))]
    for one in found:
        ours = found[-1]
        row(one.policy, one.jct / 60, one.jct / ours.jct, one.makespan / 60, one.makespan / ours.makespan)


def kinds(folder: Path) -> None:
    """What it brings that a job's devices may be of several kinds."""
    rates = Throughputs.read(folder / "gavel_throughputs.json").on(MIXED)
    print("\n## Devices of several kinds in one job (exact numerics) against one kind for each\n")
    head("jobs", "mean JCT, h: mixed", "one kind", "ratio", "makespan, h: mixed", "one kind", "ratio")
    gavel = fitting(traces.jobs(folder / "gavel_msr_seed0.trace", rates), MIXED, 3)
    cases = [("Gavel's trace, 3 times as fast", gavel)]
    for ests in (16, 32, 64):
        for count, every in ((4, 4000.0), (30, 4000.0)):
            big = traces.made_up(count, rates, seed=ests, every=every, seconds=36000.0)
            big = [replace(job, shape=replace(job.shape, ests=ests, most=ests)) for job in big]
            cases.append((f"{count} of {ests} ESTs", big))
    for name, jobs in cases:
        single = [replace(job, shape=replace(job.shape, mixes=False)) for job in jobs]
        mixed, one = (simulate(MIXED, them, Market()) for them in (jobs, single))
        row(name, mixed.jct / 3600, one.jct / 3600, one.jct / mixed.jct, mixed.makespan / 3600, one.makespan / 3600,
            one.makespan / mixed.makespan)  # fmt: skip


def snapshot(jobs: int, devices: int, count: int, seed: int) -> tuple[list[Job], dict[str, int]]:
    """Random jobs that are waiting, and devices of so many kinds."""
    draw = random.Random(seed)
    names = [f"kind{place}" for place in range(count)]
    shapes = []
    for _ in range(60):
        est = draw.uniform(0.05, 1)
        ests = draw.choice((1, 1, 2, 4, 8, 8, 16, 32, 64))
        rates = Rates.of({name: est * draw.uniform(0.7, 5) for name in names}, est * draw.uniform(0, 0.2))
        shapes.append(Shape(rates, ests, 1, ests))
    found = [
        Job(f"job{place}", draw.choice(shapes), draw.lognormvariate(9, 1.5), arrived=float(place))
        for place in range(jobs)
    ]
    return found, dict.fromkeys(names, devices // count)


def optimum(_: Path) -> None:
    """Total worth of plans over that of the best possible ones, by HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    def best(table: Table, free: np.ndarray) -> float:
        each = (table.owner[None, :] == np.arange(len(table.first))[:, None]).astype(float)
        limits = [LinearConstraint(each, 1, 1), LinearConstraint(table.usage.T, 0, free)]
        found = milp(-table.value, constraints=limits, integrality=np.ones(len(table.value)), bounds=Bounds(0, 1))
        return float(-found.fun)

    ratios = []
    for seed in range(200):
        draw = random.Random(seed)
        jobs, there = snapshot(draw.randint(3, 10), draw.randint(6, 40), draw.randint(2, 3), seed)
        market = Market()
        names, free = sorted(there), np.array([there[name] for name in sorted(there)])
        table, given = market.table(jobs, names, free)
        plan = market.plan(there, jobs, 0.0)
        row_of = {(owner, given[place]): place for place, owner in enumerate(table.owner)}
        got = sum(table.value[row_of[place, plan.get(job.name, ())]] for place, job in enumerate(jobs))
        ratios.append(float(got) / best(table, free))
    print("\n## Against the optimum (MILP, HiGHS): total worth of 200 random small plans\n")
    head("mean", "5th percentile", "worst", "within 3 %")
    within = sum(one >= 0.97 for one in ratios)
    row(f"{fmean(ratios):.4f}", f"{np.percentile(ratios, 5):.4f}", f"{min(ratios):.4f}", f"{within} of 200")


def scale(_: Path) -> None:
    """Seconds of a plan, and of the next one when a job has ended."""
    print("\n## Planning\n\nMedians of 7 turns; devices of 6 kinds. `cold`: the first plan of all.\n")
    head("jobs", "devices", "cold, s", "plan, s", "one job ended, s", "devices given")
    for jobs, devices in ((10, 100), (30, 300), (100, 1000), (300, 3000), (1000, 10000)):
        waiting, there = snapshot(jobs, devices, 6, jobs)
        market = Market()

        def turn(them: list[Job], market: Market = market, there: dict[str, int] = there) -> tuple[float, Plan]:
            began = time.perf_counter()
            plan = market.plan(there, them, 60.0)
            return time.perf_counter() - began, plan

        cold, plan = turn(waiting)
        running = [replace(job, given=plan.get(job.name, ())) for job in waiting]
        full = median(turn(waiting)[0] for _ in range(7))
        after = median(turn([job for job in running if job is not running[place]])[0] for place in range(7))
        row(jobs, devices, f"{cold:.3f}", f"{full:.3f}", f"{after:.4f}", sum(total(given) for given in plan.values()))


def colocation(folder: Path) -> None:
    """Devices that serving takes and gives back, on the come and go of Alibaba's latency-sensitive pods."""
    rates = Throughputs.read(folder / "gavel_throughputs.json").on(MIXED)
    taken = traces.reclaims(folder / "alibaba2023_pods.csv", MIXED)
    print(
        "\n## Beside serving: 64 devices, of which Alibaba's latency-sensitive pods take up to 50; a week, 3000 jobs\n"
    )
    print(
        "`idle time used`: share of the time of devices that serving leaves and jobs want. Delays in seconds. The mean"
    )
    print("JCT is that of the jobs that were done within the week.\n")
    head(
        "policy", "idle time used", "reclaims from jobs", "longest delay", "beyond the step", "mean JCT, h", "jobs done"
    )
    jobs = traces.made_up(3000, rates, seed=0, every=300.0)
    for name in ("backfill", "paper", "easyscale"):
        one = simulate(MIXED, jobs, POLICIES[name](), reclaims=taken, until=7 * 86400.0)
        row(
            name,
            f"{one.used:.1%}",
            one.freed,
            one.freed_longest,
            max(0.0, one.freed_beyond_step),
            one.jct / 3600,
            one.jobs,
        )


PARTS: dict[str, Callable[[Path], None]] = {
    "traces": traces_,
    "alone": alone,
    "kinds": kinds,
    "optimum": optimum,
    "scale": scale,
    "colocation": colocation,
}


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    chosen = parser.parse_args()
    if not chosen.traces.is_dir():
        print(f"error: no traces in {chosen.traces}; hint: --traces FOLDER", file=sys.stderr)
        sys.exit(2)
    for name in chosen.only:
        PARTS[name](chosen.traces)


if __name__ == "__main__":
    main()
